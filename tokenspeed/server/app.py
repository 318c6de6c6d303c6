"""The HTTP application: its routes, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tokenspeed.engine import Engine
from tokenspeed.plan import Plan
from tokenspeed.server.admin import Admin
from tokenspeed.server.anthropic.messages import CountTokens, Messages
from tokenspeed.server.boundary import Boundary
from tokenspeed.server.company import Company, Report, relayed
from tokenspeed.server.endpoint import Endpoint
from tokenspeed.server.health import Health
from tokenspeed.server.keys import ADMIN, Guard, Keys
from tokenspeed.server.listen import is_local
from tokenspeed.server.openai.chat import ChatCompletions
from tokenspeed.server.openai.completions import Completions
from tokenspeed.server.openai.models import Models
from tokenspeed.server.openai.responses import Responses
from tokenspeed.server.openai.tokenize import Detokenize, Tokenize
from tokenspeed.server.openapi import OpenApi
from tokenspeed.server.recent import Recent
from tokenspeed.server.service import STALL_SECONDS, Service
from tokenspeed.server.status import StatusPage
from tokenspeed.server.tracing import Tracer
from tokenspeed.tokenizer import TextModel


def create_app(
    plan: Plan,
    engine: Engine,
    text: TextModel,
    keys: Keys,
    *,
    stall_seconds: float = STALL_SECONDS,
    tracer: Tracer | None = None,
    company: Company | None = None,
) -> App:
    """The application over an engine, which may be in any state. Serve it with
    `listen.uvicorn_config`, whose HTTP protocol tells a half-closed client from one who left.

    `keys` are those of the plan (`keys.read_keys`). `stall_seconds`: how long the engine's loop
    may be silent before the server is not ready. `tracer` gets what became of each request.
    `company` are the other fronts of the engine, if there are any.
    """
    company = company or Company()
    service = Service(plan, engine, text, stall_seconds, company)
    health, models, recent = Health(service), Models(service), Recent()
    status = StatusPage(service, recent)
    relay = company.relay
    routes = [
        Route("/status", status.page),
        Route("/status.json", status.data if relay is None else relayed(relay)),
        Route("/openapi.json", OpenApi(service).get),
        Route("/livez", health.live),
        Route("/readyz", health.ready),
        Route("/health", health.ready),
        Route("/startupz", health.startup),
        Route("/metrics", health.metrics if relay is None else relayed(relay)),
        Route("/v1/models", models.list),
        Route("/v1/models/{name:path}", models.one),
        Route("/v1/completions", Endpoint(service, Completions()), methods=["POST"]),
        Route("/v1/messages", Endpoint(service, Messages()), methods=["POST"]),
        Route("/v1/messages/count_tokens", CountTokens(service), methods=["POST"]),
        Route("/tokenize", Tokenize(service), methods=["POST"]),
        Route("/v1/tokenize", Tokenize(service), methods=["POST"]),
        Route("/detokenize", Detokenize(service), methods=["POST"]),
        Route("/v1/detokenize", Detokenize(service), methods=["POST"]),
        Route("/v1/responses", Endpoint(service, Responses()), methods=["POST"]),
        Route("/v1/chat/completions", Endpoint(service, ChatCompletions()), methods=["POST"]),
        *(Admin(service).routes() if relay is None else ()),
    ]

    # Not a Starlette: its own layers for errors would handle each piece of a stream twice more.
    router = Router(routes, redirect_slashes=False)
    entry = Boundary(
        Guard(_Listeners(router, plan.serve.metrics_port), keys, company.uses),
        metrics=service.metrics,
        routes=[route.path for route in routes],
        log_requests=plan.serve.log_requests,
        recent=recent,
        tracer=tracer,
    )
    return App(entry, service, recent, routes)


class _Listeners:
    """What is served where: with a listener for metrics, it has them alone and the API's has not.
    The appliance's own socket has all, and the paths of administrators, which no port has."""

    def __init__(self, app: ASGIApp, metrics_port: int | None) -> None:
        self._app = app
        self._metrics_port = metrics_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_local(scope) and not self._is_public(scope):
            raise HTTPException(404)
        await self._app(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        if scope["path"].startswith(ADMIN):
            return False
        port = (scope.get("server") or ("", None))[1]
        on_metrics = port == self._metrics_port
        return self._metrics_port is None or on_metrics == (scope["path"] == "/metrics")


class App:
    """An ASGI application. `close` it in the end; a server's lifespan events do not."""

    def __init__(
        self, entry: Boundary, service: Service, recent: Recent, routes: Sequence[Route]
    ) -> None:
        self.routes = tuple(routes)
        self._recent = recent
        self._entry = entry
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # then the router raises what it does not know, instead of answering
        await self._entry(scope, receive, send)

    def take(self, plan: Plan) -> None:
        """Goes on with a plan that differs in what the front alone decides: limits, names,
        defaults. Requests that are under way keep what they began with."""
        self._service.take(plan)
        self._entry.log_requests = plan.serve.log_requests

    def report(self) -> Report:
        """What this front knows of itself, for who shows all of them."""
        return Report(
            state=self._service.front_state(),
            counts=self._service.metrics.counts(),
            errors=tuple(self._recent.entries()),
        )

    def close(self) -> None:
        self._service.close()
