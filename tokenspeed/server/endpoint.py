"""What every endpoint that generates does, in this order: read, admit, render, generate, answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from tokenspeed.server.exchange import Exchange, ignored_header, read_json
from tokenspeed.server.keys import require_scope, tenant_of
from tokenspeed.server.openai.answering import ANSWERING, Answering, Prompt
from tokenspeed.server.openai.types import Limits, Options
from tokenspeed.server.service import Service


class Asked(Protocol):
    """A body that was read. `ignored` are the fields that had no effect."""

    @property
    def options(self) -> Options: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...


Body = TypeVar("Body", bound=Asked)


class Api(Protocol[Body]):
    """One way to ask and to answer. Everything raises ApiError for what cannot be done.

    `param` is the field that holds the prompt."""

    param: str

    def read(self, body: object, limits: Limits) -> Body: ...

    def sequences(self, request: Body) -> int:
        """How many answers it takes."""
        ...

    async def prepare(
        self, service: Service, request: Body, options: Options, most: int
    ) -> tuple[Options, Sequence[Prompt]]:
        """The prompts, and the options that fit them: `most` tokens are the limit of a prompt and
        its answer together."""
        ...

    async def answer(
        self,
        answering: Answering,
        request: Body,
        exchange: Exchange,
    ) -> None: ...


class Endpoint(Generic[Body]):
    """An ASGI application."""

    def __init__(self, service: Service, api: Api[Body]) -> None:
        self._service = service
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, api, arrived = self._service, self._api, time.monotonic()
        # Readers of each path make other things of the same messages.
        space = scope["path"].encode() + b"\0" + tenant_of(scope)
        decode = partial(service.bodies.decode, name=api.param, space=space)
        body = await read_json(scope, receive, service.plan.serve.max_body_bytes, decode)
        request = api.read(body, service.limits)
        service.require_model(request.options.model)
        if request.options.priority:
            require_scope(scope, "priority", "priority")
        capacity = service.require_capacity()
        with service.admission.hold(api.sequences(request), capacity.max_running):
            options = request.options.salted(tenant_of(scope))
            most = service.context_limit(capacity)
            options, prompts = await api.prepare(service, request, options, most)
            answering = Answering(
                service,
                options,
                prompts,
                capacity=capacity,
                arrived=arrived,
                param=api.param,
            )
            scope[ANSWERING] = answering
            exchange = Exchange(scope, receive, send, ignored_header(request.ignored))
            await api.answer(answering, request, exchange)
