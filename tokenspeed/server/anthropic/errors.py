"""The same errors in the envelope that Anthropic's clients read."""

from __future__ import annotations

import msgspec

from tokenspeed.server.openai.errors import ApiError

# Says to the vendor's clients (their tool runner above all) that they should go on without threads.
UNTHREADED = "thread_unsupported_request"
PREFIX = "/v1/messages"
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def speaks_anthropic(path: str) -> bool:
    """Whether clients of this path expect this envelope."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def error_body(error: ApiError, request_id: str | None = None) -> bytes:
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    told: dict[str, object] = {
        "type": _KINDS.get(error.status, default),
        "message": error.message,
    }
    if error.code == UNTHREADED:
        told["details"] = {"error_code": error.code}
    body: dict[str, object] = {"type": "error", "error": told}
    if request_id is not None:
        body["request_id"] = request_id
    return msgspec.json.encode(body)
