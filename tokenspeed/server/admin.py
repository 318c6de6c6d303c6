"""What an administrator may do to a running instance. Only its own socket leads here.

Nothing in a request says where anything is written or read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tokenspeed import log as logs
from tokenspeed.engine import EngineUnavailable
from tokenspeed.server.exchange import read_json, while_connected
from tokenspeed.server.keys import ADMIN
from tokenspeed.server.openai.errors import ApiError, bad_request, unavailable
from tokenspeed.server.openai.fields import Fields
from tokenspeed.server.service import Service
from tokenspeed.wire import LayerLoad

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 4096
DEFAULT_STEPS = 20
MAX_STEPS = 256  # the trace of so many is written in seconds, in which no other step is made
PROFILE_SECONDS = 30.0  # for an instance that has nothing to do


class Admin:
    """The endpoints of one service. Each answers with a JSON object."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        endpoints = {
            "drain": self.drain,
            "resume": self.resume,
            "flush": self.flush,
            "experts": self.experts,
            "profile": self.profile,
            "log-level": self.log_level,
        }
        return [
            Route(ADMIN + name, endpoint, methods=["POST"]) for name, endpoint in endpoints.items()
        ]

    async def drain(self, request: Request) -> Response:
        """New requests are refused until `resume`; open ones run on."""
        read_nothing(await _body(request))
        return await self._pause(True)

    async def resume(self, request: Request) -> Response:
        read_nothing(await _body(request))
        return await self._pause(False)

    async def _pause(self, paused: bool) -> Response:
        engine = self._service.engine
        if engine.paused != paused:
            log.info("an administrator %s", "drains this instance" if paused else "ends the drain")
        engine.paused = paused
        peers = self._service.peers
        peers.pause(paused)
        await peers.reports()  # then what they said last is of after the pause
        count = engine.open_requests + peers.open_requests
        return _answer({"draining": engine.draining, "open_requests": count})

    async def flush(self, request: Request) -> Response:
        """Forgets every cached prefix. What running requests hold stays theirs."""
        read_nothing(await _body(request))
        try:
            blocks = await self._service.engine.asking.flush()
        except EngineUnavailable as error:
            raise unavailable(error) from error
        log.info("the prefix cache was flushed", extra={"fields": {"blocks": blocks}})
        return _answer({"blocks": blocks})

    async def experts(self, request: Request) -> Response:
        """The tokens that each expert was given since the worker's start, by layer. `imbalance`:
        those of the busiest one over the mean."""
        read_nothing(await _body(request))
        if not self._service.plan.expert_load:
            why = "Nobody counts them; advanced.expert_load: true in the recipe does."
            raise ApiError(409, why, code="not_counted")
        try:
            layers = await self._service.engine.asking.experts()
        except EngineUnavailable as error:
            raise unavailable(error) from error
        return _answer({"layers": [_layer(one) for one in layers]})

    async def profile(self, request: Request) -> Response:
        """Answers once the steps were recorded, or those of PROFILE_SECONDS."""
        steps = read_profile(await _body(request))
        async with while_connected(request.receive):
            try:
                done = await self._service.engine.asking.profile(steps, PROFILE_SECONDS)
            except EngineUnavailable as error:
                raise unavailable(error) from error
        if done.error:
            raise ApiError(409, f"No profile: {done.error}.", code="no_profile")
        return _answer({"file": done.file, "steps": done.steps})

    async def log_level(self, request: Request) -> Response:
        """Of all fronts and of the worker, until the instance ends."""
        level = read_log_level(await _body(request))
        logs.set_level(level)
        self._service.engine.asking.set_log_level(level)
        self._service.peers.set_log_level(level)
        return _answer({"level": level})


def _layer(load: LayerLoad) -> dict[str, Any]:
    total = sum(load.tokens)
    imbalance = max(load.tokens) * len(load.tokens) / total if total else 0.0
    return {"layer": load.layer, "imbalance": round(imbalance, 3), "tokens": load.tokens}


def read_nothing(body: object) -> None:
    """Raises ApiError 400 when there is anything in it, as the other readers do for what they do
    not know: here it is a mistake of somebody who can mend it."""
    _require_known(Fields(body))


def read_profile(body: object) -> int:
    """The number of steps."""
    fields = Fields(body)
    steps = fields.integer("steps", 1, MAX_STEPS)
    _require_known(fields)
    return DEFAULT_STEPS if steps is None else steps


def read_log_level(body: object) -> str:
    fields = Fields(body)
    level = fields.choice("level", logs.LEVELS)
    _require_known(fields)
    if level is None:
        raise fields.fail("level", "one of " + ", ".join(logs.LEVELS))
    return level


def _require_known(fields: Fields) -> None:
    for name in fields.unread():
        raise bad_request(f"There is no field {name[:60]!r} here.", name[:60], "unknown_field")


async def _body(request: Request) -> object:
    """The decoded body; without one it is empty."""
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return {}
    body: object = await read_json(request.scope, request.receive, MAX_BODY_BYTES)
    return body


def _answer(body: Mapping[str, Any]) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(body), media_type="application/json", headers=headers)
