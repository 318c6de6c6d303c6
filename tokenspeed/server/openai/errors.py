"""Errors as OpenAI's clients expect them: one envelope, a status, a stable code."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tokenspeed.engine import EngineUnavailable

LOADING_RETRY_SECONDS = 5
BUSY_RETRY_SECONDS = 1


class ApiError(Exception):
    """Ends a request with this status and body. The message is for the client: it holds no
    path, class name or traceback."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> bytes:
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})

    def headers(self) -> dict[str, str]:
        if self.status == 504:
            return {"x-should-retry": "false"}  # clients would ask for the same again, three times
        if self.status == 401:
            return {"www-authenticate": 'Bearer realm="tokenspeed"'}
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code or "invalid_value")


def model_not_found(name: str, served: tuple[str, ...]) -> ApiError:
    return ApiError(
        404,
        f"The model {name[:200]!r} does not exist here. Served: {', '.join(served)}.",
        param="model",
        code="model_not_found",
    )


def context_too_long(limit: int, prompt: int, requested: int, param: str) -> ApiError:
    """`requested` is the answer's max_tokens (at least 1 when a token is to be generated)."""
    message = (
        f"This model's maximum context length is {limit} tokens, but the prompt has {prompt} "
        f"and {requested} were requested for the answer ({prompt + requested} in total)."
    )
    return bad_request(message, param, "context_length_exceeded")


def too_busy(why: str) -> ApiError:
    return ApiError(
        429,
        f"{why}. Try again shortly.",
        kind="rate_limit_error",
        code="queue_full",
        retry_after=BUSY_RETRY_SECONDS,
    )


def waited_too_long() -> ApiError:
    return ApiError(
        429,
        "The request waited longer than this server lets one wait. Try again shortly.",
        kind="rate_limit_error",
        code="queue_timeout",
        retry_after=BUSY_RETRY_SECONDS,
    )


def rate_limited(message: str, seconds: float) -> ApiError:
    """One key asks too much; `seconds` until it may again."""
    return ApiError(
        429,
        message,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=max(1, math.ceil(seconds)),
    )


def unavailable(error: EngineUnavailable) -> ApiError:
    """The state in words, without the operator's details."""
    words = {
        "loading": "The model is still loading.",
        "draining": "The server is draining and takes no new requests.",
        "down": "The engine is not running. It is being restarted.",
        "stalled": "The engine does not respond.",
    }
    return ApiError(
        503,
        words[error.reason],
        kind="server_error",
        code=f"engine_{error.reason}",
        retry_after=LOADING_RETRY_SECONDS,
    )


def out_of_time() -> ApiError:
    return ApiError(
        504,
        "The answer was not complete within the time that this server gives a request.",
        kind="server_error",
        code="request_timeout",
    )


def engine_failed() -> ApiError:
    """A request was taken, but the engine could not complete it."""
    return ApiError(
        503,
        "The engine stopped before the answer was complete.",
        kind="server_error",
        code="engine_failed",
        retry_after=LOADING_RETRY_SECONDS,
    )


def internal_error() -> ApiError:
    return ApiError(
        500,
        "The server made a mistake. It was logged under the id in X-Request-Id.",
        kind="server_error",
        code="internal_error",
    )
