"""Where steps run: in order, one after the other, beside the loop that launches them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import torch

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


class Pending(Protocol[Value_co]):
    """The outcome of submitted work."""

    def result(self) -> Value_co:
        """Blocks until the work is done. Raises what the work raised."""
        ...


class Stream(Protocol):
    """Runs submitted work in order. Tensors may be used by later work without waiting."""

    def submit(self, work: Callable[[], Value]) -> Pending[Value]: ...

    def close(self) -> None: ...


class CpuStream:
    """One thread with `threads` compute threads below it."""

    def __init__(self, threads: int) -> None:
        # The thread count of a new thread is torch's own default, not that of its parent.
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="stream", initializer=torch.set_num_threads, initargs=(threads,)
        )

    def submit(self, work: Callable[[], Value]) -> Pending[Value]:
        return self._executor.submit(work)

    def close(self) -> None:
        """Ends the thread once its work is done."""
        self._executor.shutdown(wait=True)


class CudaStream:
    """The device's current stream: work is enqueued at once and an event marks its end."""

    def submit(self, work: Callable[[], Value]) -> Pending[Value]:
        value = work()
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return _Enqueued(value, done)

    def close(self) -> None:
        torch.cuda.synchronize()


class _Enqueued(Generic[Value]):
    def __init__(self, value: Value, done: torch.cuda.Event) -> None:
        self._value = value
        self._done = done

    def result(self) -> Value:
        self._done.synchronize()
        return self._value
