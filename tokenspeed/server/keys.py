"""API keys: who may come in, to what, how often, and whose prefix cache a request reads.

Where there are keys, every path but `OPEN` wants one, whatever the path looks like and whether it
exists: what is not known to be open is closed. Only hashes are kept. Files with keys are read
again when they change; what cannot be read then leaves the keys as they were.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from tokenspeed import env
from tokenspeed.errors import Problem, UnavailableError
from tokenspeed.server.listen import is_local
from tokenspeed.server.openai.errors import ApiError, rate_limited
from tokenspeed.server.origin import require_no_stranger

log = logging.getLogger(__name__)

# The status page holds no data; what it shows it asks for with a key.
OPEN = frozenset({"/livez", "/readyz", "/health", "/startupz", "/status"})
_WATCHING = frozenset({"/metrics", "/status.json"})  # the rest but ADMIN is inference
SCOPES = frozenset({"inference", "metrics", "priority", "admin"})
# Of a key that says nothing about it: it may neither administrate nor go before others.
_USUAL = frozenset({"inference", "metrics"})
ADMIN = "/admin/"  # what these paths begin with; they exist on the instance's own socket only
LOOK_SECONDS = 2.0  # between looks at the files
_TENANT = "tokenspeed.tenant"
_GRANTED = "tokenspeed.scopes"
_HASHED = re.compile(r"sha256:([0-9a-f]{64})")
_BEARER = b"Bearer "


@dataclass(frozen=True, slots=True)
class Key:
    """What the holder of a key may do. `rate` is requests per minute, `concurrent` how many at
    once; None for no limit."""

    digest: bytes
    scopes: frozenset[str] = _USUAL
    rate: int | None = None
    concurrent: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.rate is not None or self.concurrent is not None


class Uses(Protocol):
    """Where the requests of a key are counted, if not here."""

    def using(self, key: Key) -> AbstractAsyncContextManager[None]:
        """As `Keys.using`."""


@dataclass(slots=True)
class _Use:
    """`credit` are requests that may be made at once; it grows back with time."""

    credit: float
    at: float
    open: int = 0


@dataclass(slots=True)
class _Source:
    """Where keys come from, and how those files looked when they were read."""

    references: Sequence[str] = ()
    stamps: tuple[tuple[int, ...], ...] = ()
    looked: float = field(default_factory=time.monotonic)


class Keys:
    """Without any the server is open to everybody.

    `local` is one more key, which the appliance's own requests carry: that of `made`, or one made
    anew for each process. It is "" until there are others.
    """

    def __init__(
        self,
        keys: Iterable[Key] = (),
        source: _Source | None = None,
        clock: Callable[[], float] = time.monotonic,
        made: str = "",
    ) -> None:
        self.required = False
        self.local = ""
        self.made = made or secrets.token_urlsafe(32)
        self._known: tuple[Key, ...] = ()
        self._own: tuple[Key, ...] = ()
        self._uses: dict[bytes, _Use] = {}
        self._source = source or _Source()
        self._clock = clock
        self._set(keys)

    def take(self, references: Sequence[str]) -> None:
        """Those that these references of a plan lead to, from now on. Raises UnavailableError as
        `read_keys` does, and then stays as it was."""
        source = _Source(tuple(references), _stamps(references))
        keys = _read(references)
        self._source = source
        self._set(keys)

    def _set(self, keys: Iterable[Key]) -> None:
        known = tuple({key.digest: key for key in keys}.values())
        self.required = bool(known)
        if known and not self.local:
            self.local = self.made
            self._own = (Key(_digest(self.local.encode()), SCOPES),)
        self._known = (*known, *self._own) if known else ()

    def find(self, presented: Iterable[bytes]) -> Key | None:
        """The first right key; None when none is right.

        Takes the same time for every wrong key: each is compared with all, as hashes.
        """
        found = None
        for given in presented:
            digest = _digest(given)
            for known in self._known:
                if hmac.compare_digest(digest, known.digest) and found is None:
                    found = known
        return found

    @contextmanager
    def using(self, key: Key) -> Iterator[None]:
        """One request of this key. Raises ApiError 429 when there are too many of them."""
        now = self._clock()
        burst = key.rate or 1
        use = self._uses.setdefault(key.digest, _Use(burst, now))
        if key.concurrent is not None and use.open >= key.concurrent:
            raise rate_limited(f"This key may have {key.concurrent} requests open at once.", 1)
        if key.rate is not None:
            use.credit = min(burst, use.credit + (now - use.at) * key.rate / 60)
            use.at = now
            if use.credit < 1:
                seconds = (1 - use.credit) * 60 / key.rate
                raise rate_limited(f"This key may make {key.rate} requests per minute.", seconds)
            use.credit -= 1
        use.open += 1
        try:
            yield
        finally:
            use.open -= 1

    def refresh(self) -> None:
        """Reads files again that changed, looking every few seconds at most."""
        now = self._clock()
        if not self._source.references or now - self._source.looked < LOOK_SECONDS:
            return
        self._source.looked = now
        stamps = _stamps(self._source.references)
        if stamps == self._source.stamps:
            return
        self._source.stamps = stamps
        try:
            keys = _read(self._source.references)
        except UnavailableError as error:
            log.error("the API keys stay as they were: %s", error)
            return
        self._set(keys)
        log.info("API keys were read again", extra={"fields": {"keys": len(keys)}})


def tenant(key: Key) -> bytes:
    """What separates the owner of a key from others."""
    return _digest(b"tenant" + key.digest)[:16]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def read_keys(references: Sequence[str], made: str = "") -> Keys:
    """The keys that the references of a plan lead to, one per line: the key as it is or as its
    SHA-256 (`sha256:` and 64 hex digits), then perhaps `scopes=inference,admin`, `rate=60` (per
    minute) and `concurrent=8`.

    Raises UnavailableError naming every reference that leads nowhere, never what stands there.
    """
    source = _Source(tuple(references), _stamps(references))
    return Keys(_read(references), source, made=made)


def _read(references: Sequence[str]) -> list[Key]:
    keys: list[Key] = []
    problems: list[Problem] = []
    for reference in references:
        try:
            lines = [line.strip() for line in env.secret(reference).splitlines()]
            found = [_stored(line) for line in lines if line]
        except (LookupError, OSError, UnicodeDecodeError, _BadLine) as error:
            problems.append(_no_key(reference, _reason(error)))
            continue
        if not found:
            problems.append(_no_key(reference, "it is empty"))
        keys += found
    if problems:
        raise UnavailableError(*problems)
    return keys


def _stamps(references: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    stamps = []
    for reference in references:
        try:
            found = env.secret_file(reference)
            stat = found.stat() if found is not None else None
        except (OSError, LookupError):
            stat = None
        stamps.append(() if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(stamps)


class _BadLine(ValueError):  # noqa: N818 - becomes a Problem
    """What stands behind a key is not understood. Holds no part of the key."""


def _stored(line: str) -> Key:
    written, *words = line.split()
    hashed = _HASHED.fullmatch(written)
    digest = bytes.fromhex(hashed[1]) if hashed else _digest(written.encode())
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := given.keys() - {"scopes", "rate", "concurrent"}:
        # Not shown: it may be the second half of a key that was broken by a space.
        raise _BadLine(f"{len(unknown)} words behind a key are none of scopes=, rate=, concurrent=")
    scopes = frozenset(given["scopes"].split(",")) if "scopes" in given else _USUAL
    if not scopes <= SCOPES:
        raise _BadLine(f"scopes are {', '.join(sorted(SCOPES))}")
    return Key(digest, scopes, _count(given, "rate"), _count(given, "concurrent"))


def _count(given: dict[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) < 10**9:
        raise _BadLine(f"{name}= wants a number from 1 on")
    return int(text)


def _reason(error: Exception) -> str:
    match error:
        case OSError(strerror=str(words)):
            return words
        case UnicodeDecodeError():
            return "it is not text"
        case _BadLine():
            return str(error)
    return "it is not set"


def _no_key(reference: str, why: str) -> Problem:
    return Problem(
        code="TS-S241",
        path="serve.api_keys",
        message=f"no API key can be read from {reference}: {why}",
        hint="put one key per line there, or its hash as sha256:<hex>; scopes=, rate= and "
        "concurrent= may follow it",
    )


class Guard:
    """Refuses whoever has no key with 401, before anything else looks at the request. `uses` counts
    the requests of keys with limits; without it `keys` does."""

    def __init__(self, app: ASGIApp, keys: Keys, uses: Uses | None = None) -> None:
        self._app = app
        self._keys = keys
        self._uses = uses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            key = admit(scope, self._keys)
            if key is not None and scope["method"] == "POST":
                if self._uses is not None and key.is_limited:
                    async with self._uses.using(key):
                        await self._app(scope, receive, send)
                    return
                with self._keys.using(key):
                    await self._app(scope, receive, send)
                return
        await self._app(scope, receive, send)


def admit(scope: Scope, keys: Keys) -> Key | None:
    """Notes the tenant in the scope; the key that opened, None where none is asked for.

    Raises ApiError: 401 without a right key, 403 when it does not open this path, or when a web
    page asks a server without keys.
    """
    if not keys.required:
        require_no_stranger(scope)
        return None
    if scope["path"] in OPEN:
        return None
    keys.refresh()
    presented = list(_presented(scope["headers"]))
    key = keys.find(presented)
    if key is None:
        raise _unauthorized(bool(presented))
    wanted = _scope_of(scope)
    scope[_GRANTED] = key.scopes
    require_scope(scope, wanted)
    scope[_TENANT] = tenant(key)
    return key


def require_scope(scope: Scope, wanted: str, param: str | None = None) -> None:
    """Raises ApiError 403 when the request's key is not for that; without keys all is allowed."""
    granted = scope.get(_GRANTED, SCOPES)
    if wanted not in granted:
        message = f"This key is for {', '.join(sorted(granted))} only, not for {wanted}."
        raise ApiError(403, message, param=param, code="insufficient_scope")


def _scope_of(scope: Scope) -> str:
    if is_local(scope) and scope["path"].startswith(ADMIN):
        return "admin"
    return "metrics" if scope["path"] in _WATCHING else "inference"


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
