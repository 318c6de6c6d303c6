"""How much work the server takes on at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokenspeed.server.openai.errors import bad_request, too_busy


class Admission:
    """Counts sequences from the moment their request is read until it is answered.

    Those beyond `max_running` wait in the engine; once `max_waiting` of them do, further
    requests are refused at once. Counting starts before tokenisation, which costs time too.
    `max_waiting` may change meanwhile.
    """

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._held = 0

    @contextmanager
    def hold(self, sequences: int, max_running: int) -> Iterator[None]:
        """Raises ApiError: 429 when the places are taken, 400 when there are never so many."""
        limit = max_running + self.max_waiting
        if sequences > limit:
            message = f"The request asks for {sequences} sequences; this server takes {limit}."
            raise bad_request(message, "n")
        if self._held + sequences > limit:
            raise too_busy(limit)
        self._held += sequences
        try:
            yield
        finally:
            self._held -= sequences
