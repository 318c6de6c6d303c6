"""A road to the device that is host memory, and copies as late as it may."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from tokenspeed.weights.road import Mark


@dataclass(frozen=True, slots=True)
class _Place:
    road: LateRoad
    copies: int

    def synchronize(self) -> None:
        self.road.advance(self.copies)


class _Lane:
    def __init__(self, road: LateRoad, slots: torch.Tensor) -> None:
        self._road, self._slots = road, slots
        self._marks: list[Mark | None] = [None] * len(slots)

    def slot(self, index: int) -> memoryview:
        if (mark := self._marks[index]) is not None:
            mark.synchronize()
        return self._slots[index].numpy().data

    def copy(self, index: int, target: torch.Tensor) -> None:
        self._road.copy(self._slots[index, : len(target)], target)
        self._marks[index] = self._road.mark()


class LateRoad:
    """A copy is done when somebody waits for it: who writes to a slot too early, or reads what
    has not arrived, gets the wrong bytes."""

    def __init__(self) -> None:
        self.closed = False
        self.most_allocated = 0  # bytes on the device at once that were not handed over
        self.slot_bytes = 0  # of all lanes
        self._allocated = 0
        self._lock = threading.Lock()
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._done = 0

    def lane(self, slots: int, slot_bytes: int) -> _Lane:
        with self._lock:
            self.slot_bytes += slots * slot_bytes
        return _Lane(self, torch.full((slots, slot_bytes), 0xEE, dtype=torch.uint8))

    def allocate(self, count: int) -> torch.Tensor:
        with self._lock:
            self._allocated += count
            self.most_allocated = max(self.most_allocated, self._allocated)
        return torch.full((count,), 0xDD, dtype=torch.uint8)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        assert not self.closed
        with self._lock:
            self._waiting.append((source, target))

    def mark(self) -> Mark:
        with self._lock:
            return _Place(self, self._done + len(self._waiting))

    def advance(self, copies: int) -> None:
        with self._lock:
            while self._done < copies:
                source, target = self._waiting.pop(0)
                target.copy_(source)
                source.fill_(0xEE)
                self._done += 1

    def hand_over(self, data: torch.Tensor, mark: Mark) -> None:
        mark.synchronize()
        with self._lock:
            self._allocated -= len(data)

    def close(self) -> None:
        self.closed = True
