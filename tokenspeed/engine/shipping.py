"""What of a prompt still has to be sent: an agent's turn repeats all turns before it.

The front remembers the prompts that it sent, and the worker keeps them until it is told to forget
one. A prompt that begins like one of them is sent as the number of tokens they share and the rest.
"""

from __future__ import annotations

from msgspec.structs import replace

from tokenspeed.beginnings import Beginnings
from tokenspeed.request import Request
from tokenspeed.wire import Submit

CHUNK_BYTES = 8192  # 2,048 tokens; a prompt shorter than one is sent as it is
MAX_BYTES = 32 << 20  # remembered here, and kept by the worker for each of its fronts


class Shipping:
    """One per connection: a new worker knows nothing."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._last = 0
        self._sent: Beginnings[bytes, int] = Beginnings(CHUNK_BYTES, max_bytes)

    def submit(self, request: Request) -> Submit:
        """The message that makes the worker take this request."""
        packed = request.tokens
        if not CHUNK_BYTES <= len(packed) <= self._max_bytes:
            return Submit(request)
        # Nobody may measure, by how much is sent, what another one asked.
        found = self._sent.find(packed, request.salt)
        self._last += 1
        # The worker reads a message's base before it forgets, so that one may be among them.
        forget = self._sent.keep(packed, found, self._last, len(packed), request.salt)
        shared = found.shared // 4
        if shared:
            request = replace(request, tokens=packed[4 * shared :])
        return Submit(request, self._last, found.value or 0, shared, tuple(forget))
