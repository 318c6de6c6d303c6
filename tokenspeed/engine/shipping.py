"""What of a prompt still has to be sent: an agent's turn repeats all turns before it.

The front remembers the prompts that it sent, and the worker keeps them until it is told to forget
one. A prompt that begins like one of them is sent as the number of tokens they share and the rest.
Where they may agree is found by chained hashes of their chunks; the bytes are compared before
anything is left out.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec.structs import replace

from tokenspeed.request import Request
from tokenspeed.wire import Submit

CHUNK_BYTES = 8192  # 2,048 tokens; a prompt shorter than one is sent as it is
MAX_BYTES = 32 << 20  # remembered here, and kept by the worker for each of its fronts


class Shipping:
    """One per connection: a new worker knows nothing."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._last = 0
        self._kept: OrderedDict[int, tuple[bytes, list[int]]] = OrderedDict()
        self._at: dict[int, int] = {}  # hash of a beginning -> the latest prompt that has it

    def submit(self, request: Request) -> Submit:
        """The message that makes the worker take this request."""
        packed = request.tokens
        if not CHUNK_BYTES <= len(packed) <= self._max_bytes:
            return Submit(request)
        marks = _marks(packed)
        base, shared = self._base(packed, marks)
        forget = self._keep(packed, marks)
        if shared:
            request = replace(request, tokens=packed[shared:])
        return Submit(request, self._last, base, shared // 4, forget)

    def _base(self, packed: bytes, marks: list[int]) -> tuple[int, int]:
        """The prompt that shares most, and how many bytes; (0, 0) where none does."""
        for place in range(len(marks), 0, -1):
            known = self._at.get(marks[place - 1])
            if known is None:
                continue
            size = place * CHUNK_BYTES
            if self._kept[known][0][:size] == packed[:size]:
                self._kept.move_to_end(known)
                return known, size
        return 0, 0

    def _keep(self, packed: bytes, marks: list[int]) -> tuple[int, ...]:
        """Remembers the prompt; returns which ones are forgotten for it.

        The worker reads a message's base before it forgets, so that one may be among them.
        """
        self._last += 1
        self._kept[self._last] = packed, marks
        self._bytes += len(packed)
        for mark in marks:
            self._at[mark] = self._last
        forget = []
        while self._bytes > self._max_bytes:
            old, (gone, old_marks) = self._kept.popitem(last=False)
            self._bytes -= len(gone)
            for mark in old_marks:
                if self._at.get(mark) == old:
                    del self._at[mark]
            forget.append(old)
        return tuple(forget)


def _marks(packed: bytes) -> list[int]:
    """A hash of each beginning of whole chunks, from the shortest on."""
    marks, mark = [], 0
    for begin in range(0, len(packed) - CHUNK_BYTES + 1, CHUNK_BYTES):
        mark = hash((mark, packed[begin : begin + CHUNK_BYTES]))
        marks.append(mark)
    return marks
