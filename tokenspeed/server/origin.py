"""Keeps web pages from using a server that asks for no key.

A browser lets any page send requests to this machine. It names the page in `Origin`, and sends the
name under which the page found us in `Host`; a page cannot forge either. Where keys are asked for
nothing of this is needed: no page has one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import Scope

from tokenspeed.server.openai.errors import ApiError


def require_no_stranger(scope: Scope) -> None:
    """Raises ApiError 403 for a request that another site's page makes."""
    origin, host = _first(scope["headers"], b"origin"), _first(scope["headers"], b"host")
    if origin is not None and _authority(origin) != (host or "").lower():
        raise _forbidden("foreign_origin", "A web page of another site may not use this server.")
    # A name that leads to this machine may be anybody's, and then its pages are of one origin
    # with us. Beyond the loopback interface the server's own names are not known here.
    if host and _is_loopback(_server(scope)) and not _is_loopback(_name(host)):
        message = f"This server is reached as localhost, not as {_name(host)[:100]!r}."
        raise _forbidden("foreign_host", message)


def _forbidden(code: str, message: str) -> ApiError:
    hint = "Where API keys are set (serve.api_keys), a key is asked for instead."
    return ApiError(403, f"{message} {hint}", code=code)


def _first(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name == wanted), None)


def _authority(origin: str) -> str:
    """`http://a:1` -> `a:1`; "" for `null` and whatever is no origin."""
    return urlsplit(origin).netloc.lower()


def _name(host: str) -> str:
    """The host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _server(scope: Scope) -> str:
    server = scope.get("server")
    return str(server[0]) if server else ""


def _is_loopback(name: str) -> bool:
    name = name.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
