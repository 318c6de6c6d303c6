"""The other fronts of one engine, as a front sees them.

One of them is the first: it knows the whole, and the others ask it for what is told of the whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from tokenspeed.metrics import Counts, FrontState
from tokenspeed.server.admission import Places
from tokenspeed.server.keys import Uses

# Answers a GET of this path as the first front does.
Relay = Callable[[str], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a front says of itself: `errors` as `Recent.entries`."""

    state: FrontState
    counts: Counts
    errors: tuple[dict[str, Any], ...]


class Peers(Protocol):
    """The other fronts, for the first one."""

    @property
    def open_requests(self) -> int:
        """Of all of them, as they said last."""

    async def reports(self) -> Sequence[Report]:
        """Of each that runs, as it is now, and of those that are gone what they counted. Takes a
        second at most."""

    def pause(self, paused: bool) -> None:
        """As `Engine.paused`, of each and of those that take their places."""

    def set_log_level(self, level: str) -> None: ...


class Nobody:
    """The peers of a front that is alone."""

    open_requests = 0

    async def reports(self) -> Sequence[Report]:
        return ()

    def pause(self, paused: bool) -> None:
        pass

    def set_log_level(self, level: str) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """`places` and `uses` are where limits are counted that hold for all fronts together; without
    `uses` this front counts the use of keys. `relay` is None for the first front."""

    peers: Peers = field(default_factory=Nobody)
    places: Places | None = None
    uses: Uses | None = None
    relay: Relay | None = None


def relayed(relay: Relay) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint whose answer the first front gives."""

    async def endpoint(request: Request) -> Response:
        return await relay(request.url.path)

    return endpoint
