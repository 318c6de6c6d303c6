"""The way from host memory to a device."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A point on the road; it is passed once all copies that were begun before are done."""

    def synchronize(self) -> None:
        """Waits until it is passed."""
        ...


class Road(Protocol):
    """Copies from one ring of host memory, in the order in which they are begun. Any thread may
    use it."""

    def ring(self, slots: int, slot_bytes: int) -> torch.Tensor:
        """The memory that copies may start from, uint8 [slots, slot bytes], until `close`."""
        ...

    def allocate(self, count: int) -> torch.Tensor:
        """uint8 [count] on the device."""
        ...

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Begins a copy, which may be done much later."""
        ...

    def mark(self) -> Mark: ...

    def hand_over(self, data: torch.Tensor, mark: Mark) -> None:
        """Lets what the caller computes from now on use `data`, once `mark` is passed."""
        ...

    def close(self) -> None:
        """Waits for every copy, and gives up the ring."""
        ...


class CudaRoad:
    """Pinned memory and a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ring: torch.Tensor | None = None

    def ring(self, slots: int, slot_bytes: int) -> torch.Tensor:
        assert self._ring is None, "a road has one ring"
        ring = torch.empty(slots, slot_bytes, dtype=torch.uint8)
        # Not by torch's allocator, which would keep the memory pinned for good.
        _check(_runtime().cudaHostRegister(ring.data_ptr(), ring.nbytes, 0))
        self._ring = ring
        return ring

    def allocate(self, count: int) -> torch.Tensor:
        # Memory of this stream is used again by it alone: what arrives and goes leaves no gaps
        # between what stays.
        with torch.cuda.stream(self._stream):
            return torch.empty(count, dtype=torch.uint8, device=self._device)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record(self._stream)
        return mark

    def hand_over(self, data: torch.Tensor, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(mark)
        data.record_stream(stream)

    def close(self) -> None:
        self._stream.synchronize()
        if self._ring is not None:
            _check(_runtime().cudaHostUnregister(self._ring.data_ptr()))
            self._ring = None
            torch.cuda.empty_cache()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _check(error: Any) -> None:
    torch.cuda.check_error(error)
