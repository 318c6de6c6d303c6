"""GET /v1/models and /v1/models/{name}."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed.server.service import Service


class Models:
    """The served names, each with what a client may want to know before it asks."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request) -> Response:
        names = self._service.plan.model.served_names
        page = {"first_id": names[0], "last_id": names[-1], "has_more": False}
        return _json({"object": "list", "data": [self._entry(name) for name in names], **page})

    async def one(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._service.require_model(name)
        return _json(self._entry(name))

    def _entry(self, name: str) -> dict[str, Any]:
        plan = self._service.plan
        return {
            "id": name,
            "object": "model",
            "created": self._service.started,
            "owned_by": "tokenspeed",
            # As Anthropic's clients call them.
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(self._service.started, UTC).isoformat(),
            "max_model_len": plan.scheduler.max_model_len,
            "task": "generate",
            "has_chat_template": self._service.text.has_chat_template,
            "tool_format": self._service.dialect.tool_format,
            "reasoning_format": self._service.dialect.reasoning_format,
            "sampling_defaults": asdict(plan.serve.sampling),
            "plan_digest": self._service.digest,
        }


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
