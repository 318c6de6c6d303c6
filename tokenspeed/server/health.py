"""Probes. Asking costs no tokens and never waits for the engine.

/livez: the event loop turns. /readyz (/health): a request would be taken now; the body says why
not. /startupz: how far the start is; 200 once the engine was ready.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed.engine import EngineUnavailable, Loading, Ready
from tokenspeed.metrics import CONTENT_TYPE, combined
from tokenspeed.server.openai.errors import LOADING_RETRY_SECONDS
from tokenspeed.server.service import Service

STATS_SECONDS = 1.0


class Health:
    """The probes and the metrics of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def live(self, request: Request) -> Response:
        return _answer(200, {"status": "live"})

    async def ready(self, request: Request) -> Response:
        try:
            self._service.capacity()
        except EngineUnavailable as error:
            return _answer(503, {"status": error.reason, "detail": error.detail})
        return _answer(200, {"status": "ready"})

    async def startup(self, request: Request) -> Response:
        match self._service.engine.state:
            case Ready():
                return _answer(200, {"status": "started", "stage": "ready", "percent": 100})
            case Loading(stage, fraction):
                percent = int(fraction * 100)
                return _answer(503, {"status": "loading", "stage": stage, "percent": percent})
            case _:
                return _answer(503, {"status": "down", "stage": "down", "percent": 0})

    async def metrics(self, request: Request) -> Response:
        service = self._service
        try:
            stats = await service.engine.stats(STATS_SECONDS)
        except EngineUnavailable:
            stats = None
        reports = await service.peers.reports()
        state = combined(service.front_state(), (report.state for report in reports))
        body = service.metrics.render(state, stats, [report.counts for report in reports])
        return Response(body, media_type=CONTENT_TYPE)


def _answer(status: int, body: dict[str, Any]) -> Response:
    headers = {"cache-control": "no-store"}
    if status == 503:
        headers["retry-after"] = str(LOADING_RETRY_SECONDS)
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type="application/json",
        headers=headers,
    )
