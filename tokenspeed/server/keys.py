"""API keys: who may come in, and whose prefix cache a request reads.

Where there are keys, every path but `OPEN` wants one, whatever the path looks like and whether it
exists: what is not known to be open is closed. Only hashes are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from tokenspeed import env
from tokenspeed.errors import Problem, UnavailableError
from tokenspeed.server.openai.errors import ApiError
from tokenspeed.server.origin import require_no_stranger

# The status page holds no data; what it shows it asks for with a key.
OPEN = frozenset({"/livez", "/readyz", "/health", "/startupz", "/status"})
_TENANT = "tokenspeed.tenant"
_HASHED = re.compile(r"sha256:([0-9a-f]{64})")
_BEARER = b"Bearer "


class Keys:
    """`digests` are the SHA-256 of every key. Without any the server is open to everybody.

    `local` is one more key, made anew for each process: the appliance's own requests carry it.
    """

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        known = tuple(dict.fromkeys(digests))
        self.required = bool(known)
        self.local = secrets.token_urlsafe(32) if known else ""
        self._digests = (*known, _digest(self.local.encode())) if known else ()

    def tenant(self, presented: Iterable[bytes]) -> bytes | None:
        """What separates the owner of the first right key from others; None when none is right.

        Takes the same time for every wrong key: each is compared with all, as hashes.
        """
        found = None
        for key in presented:
            digest = _digest(key)
            for known in self._digests:
                if hmac.compare_digest(digest, known) and found is None:
                    found = known
        return None if found is None else _digest(b"tenant" + found)[:16]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def read_keys(references: Sequence[str]) -> Keys:
    """The keys that the references of a plan lead to: one per line, as it is or as its SHA-256
    (`sha256:` and 64 hex digits).

    Raises UnavailableError naming every reference that leads nowhere, never what stands there.
    """
    digests: list[bytes] = []
    problems: list[Problem] = []
    for reference in references:
        try:
            lines = [line.strip() for line in env.secret(reference).splitlines()]
        except (LookupError, OSError, UnicodeDecodeError) as error:
            problems.append(_no_key(reference, _reason(error)))
            continue
        found = [_stored(line) for line in lines if line]
        if not found:
            problems.append(_no_key(reference, "it is empty"))
        digests += found
    if problems:
        raise UnavailableError(*problems)
    return Keys(digests)


def _stored(line: str) -> bytes:
    hashed = _HASHED.fullmatch(line)
    return bytes.fromhex(hashed[1]) if hashed else _digest(line.encode())


def _reason(error: Exception) -> str:
    match error:
        case OSError(strerror=str(words)):
            return words
        case UnicodeDecodeError():
            return "it is not text"
    return "it is not set"


def _no_key(reference: str, why: str) -> Problem:
    return Problem(
        code="TS-S241",
        path="serve.api_keys",
        message=f"no API key can be read from {reference}: {why}",
        hint="put one key per line there, or its hash as sha256:<hex>",
    )


class Guard:
    """Refuses whoever has no key with 401, before anything else looks at the request."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            admit(scope, self._keys)
            if not self._keys.required:
                require_no_stranger(scope)
        await self._app(scope, receive, send)


def admit(scope: Scope, keys: Keys) -> None:
    """Notes the tenant in the scope. Raises ApiError 401 for a request without a right key."""
    if not keys.required or scope["path"] in OPEN:
        return
    presented = list(_presented(scope["headers"]))
    tenant = keys.tenant(presented)
    if tenant is None:
        raise _unauthorized(bool(presented))
    scope[_TENANT] = tenant


def tenant_of(scope: Scope) -> bytes:
    """b"" where no key is asked for."""
    tenant: bytes = scope.get(_TENANT, b"")
    return tenant


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """`Authorization: Bearer KEY`, and `x-api-key: KEY`, which Anthropic's clients send."""
    for name, value in headers:
        if name == b"authorization" and value.startswith(_BEARER):
            yield value[len(_BEARER) :]
        elif name == b"x-api-key":
            yield value


def _unauthorized(presented: bool) -> ApiError:
    wanted = "Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
    return ApiError(
        401,
        f"{'This API key is not known here.' if presented else 'An API key is needed.'} {wanted}",
        code="invalid_api_key",
    )


def open_to_strangers(host: str, keys: Keys) -> bool:
    """Whether other machines may use the server without a key."""
    if keys.required or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True  # a name may stand for any address
