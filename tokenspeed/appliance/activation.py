"""Where the listening socket comes from: the service manager's hands, or a port of our own.

A socket unit holds the port for good: while the service is down its queue fills, and nobody is
refused. Without one the manager is asked to keep our own socket, so that a crash refuses nobody.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

from tokenspeed.appliance.front import listen
from tokenspeed.appliance.notify import Notifier
from tokenspeed.errors import Problem, ResolveError
from tokenspeed.plan import ServePlan

# The name under which the manager keeps a socket that we bound.
KEPT = "tokenspeed-kept"


@dataclass(frozen=True, slots=True)
class Listener:
    """`passed`: it was there before, and may have people waiting in its queue. `held`: a socket
    unit keeps it open when this process is gone."""

    socket: socket.socket
    passed: bool
    held: bool


class Port:
    """The listening socket over the life of a process, in which instances may follow one another.

    `passed` are the descriptors that the manager passed on, with their names; they stay open.
    `keep`: a socket of our own stays open between two instances, and its queue with it.
    """

    def __init__(
        self, passed: tuple[tuple[int, str], ...], notifier: Notifier, *, keep: bool
    ) -> None:
        self._of_units = [number for number, name in passed if name != KEPT]
        kept = [number for number, name in passed if name == KEPT]
        self._own = socket.socket(fileno=kept[0]) if kept else None
        self._notifier = notifier
        self._keep = keep

    def take(self, serve: ServePlan) -> Listener:
        """For one instance, which closes what it gets.

        Raises ResolveError when a socket unit listens elsewhere than the plan says, else as
        `listen`.
        """
        if self._of_units:
            return Listener(_of_unit(self._of_units, serve), passed=True, held=True)
        own, self._own = self._own, None
        passed = own is not None and _is_at(own, serve)
        if own is None or not passed:
            if own is not None:
                self._notifier.forget(KEPT)
                own.close()
            own = listen(serve.host, serve.port)
            self._notifier.keep(KEPT, own)
        if self._keep:
            self._own = own.dup()
        return Listener(_prepared(own), passed=passed, held=False)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


def _of_unit(numbers: list[int], serve: ServePlan) -> socket.socket:
    listeners = [socket.socket(fileno=os.dup(number)) for number in numbers]
    if len(listeners) == 1 and _is_at(listeners[0], serve):
        return _prepared(listeners[0])
    places = ", ".join(_place(listener) for listener in listeners)
    for listener in listeners:
        listener.close()
    raise ResolveError(
        Problem(
            code="TS-S222",
            path="serve.port",
            message=f"the socket unit listens at {places}; the plan says {serve.host}:{serve.port}",
            hint="`tokenspeed install` writes the unit again; it must have one stream socket",
        )
    )


def _is_at(listener: socket.socket, serve: ServePlan) -> bool:
    """A plan with port 0 takes any."""
    if listener.type != socket.SOCK_STREAM or listener.family == socket.AF_UNIX:
        return False
    host, port = listener.getsockname()[:2]
    wanted: set[object] = set()
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(
            serve.host, serve.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        wanted = {entry[4][0] for entry in found}
    return host in wanted and serve.port in (0, port)


def _place(listener: socket.socket) -> str:
    name = listener.getsockname()
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)


def _prepared(listener: socket.socket) -> socket.socket:
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener
