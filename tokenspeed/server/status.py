"""The status page: one file of HTML that needs nothing else, and the data that it shows.

The page holds no data, so anybody may load it; what it shows it asks for with the reader's key.
"""

from __future__ import annotations

import time
from importlib import resources
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed.engine import Down, EngineUnavailable, Loading, Ready
from tokenspeed.metrics import combined
from tokenspeed.server.recent import Recent, newest
from tokenspeed.server.service import Service

PAGE = resources.files("tokenspeed.server").joinpath("page/status.html")
CHAT = resources.files("tokenspeed.server").joinpath("page/chat.html")
STATS_SECONDS = 1.0
HEADERS = {
    "cache-control": "no-store",
    # Nothing is loaded from anywhere, and nobody frames it.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class StatusPage:
    """The page and its data for one service."""

    def __init__(self, service: Service, recent: Recent) -> None:
        self._service = service
        self._recent = recent
        # A model without chats has no box for them.
        chat = CHAT.read_bytes() if service.text.has_chat_template else b""
        self._html = PAGE.read_bytes().replace(b"<!-- chat -->", chat)

    async def page(self, request: Request) -> Response:
        return Response(self._html, media_type="text/html; charset=utf-8", headers=HEADERS)

    async def data(self, request: Request) -> Response:
        service = self._service
        try:
            stats = msgspec.to_builtins(await service.engine.stats(STATS_SECONDS))
        except EngineUnavailable:
            stats = None
        reports = await service.peers.reports()
        state = combined(service.front_state(), (report.state for report in reports))
        body = {
            "now": time.time(),
            "uptime_seconds": time.time() - service.started,
            "state": self._state(),
            "plan": self._plan(),
            "capacity": self._capacity(),
            "front": msgspec.to_builtins(state),
            "engine": stats,
            "errors": newest(self._recent.entries(), *(report.errors for report in reports)),
        }
        return Response(msgspec.json.encode(body), media_type="application/json", headers=HEADERS)

    def _state(self) -> dict[str, Any]:
        try:
            self._service.capacity()
        except EngineUnavailable as error:
            return {"name": error.reason, "detail": error.detail}
        return {"name": "ready", "detail": ""}

    def _plan(self) -> dict[str, Any]:
        plan = self._service.plan
        return {
            "name": plan.name,
            "digest": self._service.digest[:12],
            "tokenspeed": plan.tokenspeed,
            "hardware": plan.hardware,
            "device": msgspec.to_builtins(plan.device),
            "model": {
                "source": plan.model.source,
                "names": plan.model.served_names,
                "load": plan.model.load,
                "parameters": sum(group.parameters for group in plan.model.weights),
                "weights": str(plan.model.linear_format),
            },
            "parallel": msgspec.to_builtins(plan.parallel),
            "cache": {
                "dtype": plan.cache.dtype,
                "block_size": plan.cache.block_size,
                "prefix_cache": plan.cache.prefix_cache,
                "tiers": msgspec.to_builtins(plan.cache.tiers),
            },
            "scheduler": msgspec.to_builtins(plan.scheduler),
            "memory": msgspec.to_builtins(plan.memory),
            "kernels": [
                {"op": choice.op, "variant": choice.variant, "kernel": choice.kernel}
                for choice in plan.kernels
            ],
        }

    def _capacity(self) -> dict[str, Any] | None:
        """What was measured after the start; None before."""
        match self._service.engine.state:
            case Ready(capacity):
                return dict(msgspec.to_builtins(capacity))
            case Loading() | Down():
                return None
