"""How much work the server takes on at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from tokenspeed.server.openai.errors import bad_request, too_busy


class Places:
    """How many sequences the fronts of one engine hold. Each writes its own cell of `cells`, which
    they may share as memory (format "q"), and reads all of them.

    Nothing is locked: fronts that read in the same microsecond may each let one request in where
    there was a place for one.
    """

    def __init__(self, cells: memoryview | None = None, own: int = 0) -> None:
        self._cells = memoryview(array("q", [0])) if cells is None else cells
        self._own = own

    @property
    def taken(self) -> int:
        return sum(self._cells)

    def take(self, sequences: int) -> None:
        """Negative to give back."""
        self._cells[self._own] += sequences

    def clear(self, cell: int) -> None:
        """That front is gone, and what it held with it."""
        self._cells[cell] = 0


class Admission:
    """Counts sequences from the moment their request is read until it is answered.

    Those beyond `max_running` wait in the engine; once `max_waiting` of them do, further
    requests are refused at once. Counting starts before tokenisation, which costs time too.
    `max_waiting` may change meanwhile.
    """

    def __init__(self, max_waiting: int, places: Places | None = None) -> None:
        self.max_waiting = max_waiting
        self._places = places or Places()

    @contextmanager
    def hold(self, sequences: int, max_running: int) -> Iterator[None]:
        """Raises ApiError: 429 when the places are taken, 400 when there are never so many."""
        limit = max_running + self.max_waiting
        if sequences > limit:
            message = f"The request asks for {sequences} sequences; this server takes {limit}."
            raise bad_request(message, "n")
        if self._places.taken + sequences > limit:
            raise too_busy(f"All {limit} places for requests are taken")
        self._places.take(sequences)
        try:
            yield
        finally:
            self._places.take(-sequences)
