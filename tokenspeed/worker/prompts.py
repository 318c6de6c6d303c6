"""Prompts that fronts refer back to, see `engine.shipping`."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from msgspec.structs import replace

from tokenspeed.request import Request
from tokenspeed.wire import Submit

# Twice what a front remembers. Only a front that forgets to say so meets it.
MAX_BYTES = 64 << 20


class _Kept:
    def __init__(self) -> None:
        self.prompts: OrderedDict[int, bytes] = OrderedDict()
        self.bytes = 0

    def forget(self, number: int) -> None:
        self.bytes -= len(self.prompts.pop(number, b""))


class Prompts:
    """The kept prompts of all fronts."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._of: defaultdict[str, _Kept] = defaultdict(_Kept)

    def whole(self, front: str, message: Submit) -> Request | None:
        """The request with its whole prompt; None when its base is not kept here."""
        request, kept = message.request, self._of[front]
        if message.base:
            base = kept.prompts.get(message.base, b"")[: 4 * message.shared]
            if len(base) < 4 * message.shared:
                return None
            request = replace(request, tokens=base + request.tokens)
        if message.number:
            kept.forget(message.number)
            kept.prompts[message.number] = request.tokens
            kept.bytes += len(request.tokens)
        for number in message.forget:
            kept.forget(number)
        while kept.bytes > self._max_bytes:
            kept.forget(next(iter(kept.prompts)))
        return request

    def drop(self, front: str) -> None:
        """The front is gone."""
        self._of.pop(front, None)
