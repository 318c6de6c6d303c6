"""The last answers that were errors, for people who look at the server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import Any

KEPT = 20
_PATH_LETTERS = 80


class Recent:
    """Keeps no text of a client but the path it asked for, cut short."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def note(self, method: str, path: str, status: int, request_id: str) -> None:
        entry = {"method": method, "path": path[:_PATH_LETTERS], "status": status}
        self._entries.appendleft(entry | {"time": time.time(), "request_id": request_id})

    def entries(self) -> list[dict[str, Any]]:
        """The newest first; `time` in seconds since the epoch."""
        return list(self._entries)


def newest(*several: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of several fronts, as one would have kept them."""
    entries = sorted(chain(*several), key=lambda entry: float(entry["time"]), reverse=True)
    return entries[:KEPT]
