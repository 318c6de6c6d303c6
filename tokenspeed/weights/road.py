"""The way from host memory to a device."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A point on the road; it is passed once all copies that were begun before are done."""

    def synchronize(self) -> None:
        """Waits until it is passed."""
        ...


class Lane(Protocol):
    """Slots of host memory from which one thread, the one that asked for the lane, copies. They
    last until the road is closed."""

    def slot(self, index: int) -> memoryview:
        """Where to write what is to be copied next, once the copy before it is done. Waits."""
        ...

    def copy(self, index: int, target: torch.Tensor) -> None:
        """Begins a copy from the beginning of the slot, which may be done much later."""
        ...


class Road(Protocol):
    """Copies to one device, in the order in which they are begun. Any thread may use it."""

    def lane(self, slots: int, slot_bytes: int) -> Lane: ...

    def allocate(self, count: int) -> torch.Tensor:
        """uint8 [count] on the device."""
        ...

    def mark(self) -> Mark: ...

    def hand_over(self, data: torch.Tensor, mark: Mark) -> None:
        """Lets what the caller computes from now on use `data`, once `mark` is passed."""
        ...

    def close(self) -> None:
        """Waits for every copy, and gives up the slots. No thread may use a lane any more."""
        ...


class CudaRoad:
    """Pinned memory and a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pinned: list[torch.Tensor] = []

    def lane(self, slots: int, slot_bytes: int) -> Lane:
        # Of the calling thread: what it copies and allocates.
        torch.cuda.set_stream(self.stream)
        return _CudaLane(self, slots, slot_bytes)

    def allocate(self, count: int) -> torch.Tensor:
        # Memory of this stream is used again by it alone: what arrives and goes leaves no gaps
        # between what stays.
        with torch.cuda.stream(self.stream):
            return torch.empty(count, dtype=torch.uint8, device=self._device)

    def pin(self, data: torch.Tensor) -> None:
        # Not by torch's allocator, which would keep the memory pinned for good.
        _check(_runtime().cudaHostRegister(data.data_ptr(), data.nbytes, 0))
        self._pinned.append(data)

    def mark(self) -> torch.cuda.Event:
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record(self.stream)
        return mark

    def hand_over(self, data: torch.Tensor, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(mark)
        data.record_stream(stream)

    def close(self) -> None:
        self.stream.synchronize()
        while self._pinned:
            slot = self._pinned.pop()  # its lane may be gone: nothing else keeps the memory
            _check(_runtime().cudaHostUnregister(slot.data_ptr()))
        torch.cuda.empty_cache()


class _CudaLane:
    """Pins a slot when it is first full: by then its pages exist, and other threads read."""

    def __init__(self, road: CudaRoad, slots: int, slot_bytes: int) -> None:
        self._road = road
        whole = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE  # what is pinned are pages
        memory = mmap.mmap(-1, slots * whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._slots = torch.frombuffer(memory, dtype=torch.uint8).view(slots, whole)
        self._views: list[memoryview] = [slot.numpy().data for slot in self._slots]
        self._marks: list[torch.cuda.Event | None] = [None] * slots

    def slot(self, index: int) -> memoryview:
        mark = self._marks[index]
        if mark is not None:
            mark.synchronize()
        return self._views[index]

    def copy(self, index: int, target: torch.Tensor) -> None:
        mark = self._marks[index]
        if mark is None:
            self._road.pin(self._slots[index])
        target.copy_(self._slots[index, : len(target)], non_blocking=True)
        if mark is None:
            self._marks[index] = self._road.mark()
        else:
            mark.record(self._road.stream)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _check(error: Any) -> None:
    torch.cuda.check_error(error)
