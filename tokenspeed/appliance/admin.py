"""What this machine's own user may ask of an instance through its Unix socket.

POST /admin/reload      read the recipe again, take over what can be: 200 with what became of
                        it, 409 with the problems of a recipe that cannot be used
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tokenspeed.errors import TokenspeedError
from tokenspeed.server.keys import ADMIN, Keys, admit
from tokenspeed.server.openai.errors import ApiError

RELOAD = f"{ADMIN}reload"


class Admin:
    """An ASGI application; `reload` says what became of it as JSON."""

    def __init__(self, keys: Keys, reload: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._keys = keys
        self._reload = reload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(scope)
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response:
        try:
            admit(scope, self._keys)
        except ApiError as error:
            return Response(error.body(), error.status, error.headers(), "application/json")
        if (scope["method"], scope["path"]) != ("POST", RELOAD):
            return JSONResponse({"problems": []}, 404)
        try:
            return JSONResponse(await self._reload())
        except TokenspeedError as error:
            problems = [asdict(problem) for problem in error.problems]
            return JSONResponse({"problems": problems, "exit_code": int(error.exit_code)}, 409)
