"""Tensors of the files, brought to a device in the order in which they are wanted.

Threads read ahead into slots of host memory, a fixed number each, and every slot that is full goes
to the device in one copy. Small tensors travel together, in parcels; a large one alone. The files
are read, not mapped: one that is cut off meanwhile is an error then, not the end of the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import torch

from tokenspeed.weights.parameter import Progress
from tokenspeed.weights.road import Lane, Mark, Road
from tokenspeed.weights.stored import Stored, open_weights

_ALIGNED = 256  # bytes; where a tensor may begin in a parcel
_TELL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Flow:
    """How much is on its way at once. A reader fills one of its slots while others are copied;
    `ahead_bytes` bounds what is on the device and was not taken yet."""

    readers: int = 8
    slots_each: int = 2
    slot_bytes: int = 8 << 20  # 16 MiB take a quarter longer on an H200: bench/results
    parcel_bytes: int = 64 << 20
    ahead_bytes: int = 1 << 30


FLOW = Flow()


@dataclass(slots=True, eq=False)
class _Parcel:
    """Tensors, each at its offset in one piece of device memory."""

    tensors: list[tuple[int, Stored]] = field(default_factory=list)
    bytes: int = 0
    on_way: int = 0  # chunks that were not sent to the device yet
    data: torch.Tensor | None = None
    mark: Mark | None = None  # once all is on the road


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What one slot takes: the bytes of a parcel from `begin` to `end`."""

    parcel: _Parcel
    begin: int
    end: int

    def pieces(self) -> Iterator[tuple[Stored, int, int, int]]:
        """The tensors in it: each with where it goes on in the slot, and which of its bytes."""
        for at, tensor in self.parcel.tensors:
            first, last = max(at, self.begin), min(at + tensor.bytes, self.end)
            if first < last:
                yield tensor, first - self.begin, first - at, last - at


class Arrivals:
    """Runs its readers as a context. `take` gives the tensors of `order`, one after the other;
    `progress` hears of every byte that was read."""

    def __init__(
        self, order: Sequence[Stored], road: Road, progress: Progress, flow: Flow = FLOW
    ) -> None:
        assert all(tensor.bytes for tensor in order)
        self._road, self._progress, self._flow = road, progress, flow
        parcels = list(_parcels(order, flow.parcel_bytes))
        chunks = [chunk for parcel in parcels for chunk in _cut(parcel, flow.slot_bytes)]
        for chunk in chunks:
            chunk.parcel.on_way += 1
        self._total = sum(tensor.bytes for tensor in order)
        self._wanted = iter([(parcel, *place) for parcel in parcels for place in parcel.tensors])
        self._files: dict[Path, int] = dict.fromkeys((tensor.path for tensor in order), -1)
        self._slot_bytes = max((chunk.end - chunk.begin for chunk in chunks), default=0)
        self._readers = min(flow.readers, len(chunks))
        self._threads: list[threading.Thread] = []
        self._taking: _Parcel | None = None
        # Guards what is below, and what changes of the parcels.
        self._changed = threading.Condition()
        self._chunks = iter(chunks)
        self._next = next(self._chunks, None)
        self._ahead = 0  # bytes of the parcels that were begun and whose turn has not come
        self._done = 0
        self._error: BaseException | None = None
        self._closed = False

    def __enter__(self) -> Arrivals:
        """Raises CheckpointError for a file that cannot be opened."""
        try:
            for path in self._files:
                self._files[path] = open_weights(path)
            for number in range(self._readers):
                thread = threading.Thread(target=self._read, name=f"weights-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def take(self, tensor: Stored) -> torch.Tensor:
        """The bytes of the tensor, uint8 [bytes] on the device, in memory that it shares with
        others. Waits for it. Raises what a reader raised, and what `progress` does."""
        parcel, at, wanted = next(self._wanted)
        assert wanted is tensor, "tensors are taken in the order that was announced"
        if parcel is not self._taking:
            self._wait_for(parcel)
            self._taking = parcel
        assert parcel.data is not None
        data = parcel.data[at : at + tensor.bytes]
        if parcel.tensors[-1][1] is tensor:
            parcel.data = None  # the memory lives as long as its tensors do
        return data

    def _wait_for(self, parcel: _Parcel) -> None:
        mark = None
        while mark is None:
            with self._changed:
                if parcel.mark is None and self._error is None:
                    self._changed.wait(_TELL_SECONDS)
                if self._error is not None:
                    raise self._error
                mark, done = parcel.mark, self._done
            self._progress(done, self._total)
        assert parcel.data is not None
        self._road.hand_over(parcel.data, mark)
        with self._changed:
            self._ahead -= parcel.bytes
            self._changed.notify_all()

    # ---- the readers

    def _read(self) -> None:
        try:
            slots = self._flow.slots_each
            lane = self._road.lane(slots, self._slot_bytes)
            turn = 0
            while (chunk := self._begin()) is not None:
                self._send(chunk, lane, turn)
                turn = (turn + 1) % slots
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _begin(self) -> _Chunk | None:
        """The next chunk, once there is room for it; None when there is no more to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends or self._has_room)
            if self._ends:
                return None
            chunk, self._next = self._next, next(self._chunks, None)
            assert chunk is not None
            if not chunk.begin:
                self._ahead += chunk.parcel.bytes
                chunk.parcel.data = self._road.allocate(chunk.parcel.bytes)
            return chunk

    @property
    def _ends(self) -> bool:
        return self._next is None or self._closed or self._error is not None

    @property
    def _has_room(self) -> bool:
        """A parcel that is larger than all the room waits until it is alone."""
        assert self._next is not None
        more = 0 if self._next.begin else self._next.parcel.bytes
        return not more or not self._ahead or self._ahead + more <= self._flow.ahead_bytes

    def _send(self, chunk: _Chunk, lane: Lane, slot: int) -> None:
        view = lane.slot(slot)
        read = 0
        for tensor, at, first, last in chunk.pieces():
            tensor.read_into(view[at : at + last - first], self._files[tensor.path], first)
            read += last - first
        parcel = chunk.parcel
        assert parcel.data is not None
        lane.copy(slot, parcel.data[chunk.begin : chunk.end])
        with self._changed:
            self._done += read
            parcel.on_way -= 1
            if not parcel.on_way:
                # All its copies are begun, also those of other readers.
                parcel.mark = self._road.mark()
                self._changed.notify_all()

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._road.close()
        for file in self._files.values():
            if file >= 0:
                os.close(file)


def _parcels(order: Sequence[Stored], most: int) -> Iterator[_Parcel]:
    """Consecutive tensors up to `most` bytes together; a larger one has a parcel to itself."""
    parcel = _Parcel()
    for tensor in order:
        at = -(-parcel.bytes // _ALIGNED) * _ALIGNED
        if parcel.tensors and at + tensor.bytes > most:
            yield parcel
            parcel, at = _Parcel(), 0
        parcel.tensors.append((at, tensor))
        parcel.bytes = at + tensor.bytes
    if parcel.tensors:
        yield parcel


def _cut(parcel: _Parcel, most: int) -> Iterator[_Chunk]:
    for begin in range(0, parcel.bytes, most):
        yield _Chunk(parcel, begin, min(begin + most, parcel.bytes))
