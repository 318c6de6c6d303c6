"""Compiles Triton kernels on all cores, before anything waits for them.

A kernel is compiled when it is first launched with such arguments, one after the other. Here a
rehearsal of the work launches everything once, but nothing runs: what is not compiled yet is handed
to a pool of threads, and the rehearsal goes on at once. The compiler holds the interpreter's lock
only while it reads a kernel's source, and the assembler is a process of its own,
as is the C compiler, which makes a launcher for each signature that no kernel had before.
"""

# Triton has no types.
# mypy: allow-subclassing-any

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triton import AsyncCompileMode, JITFunction


@dataclass(frozen=True, slots=True)
class Compiled:
    """How many kernels were not in memory yet, and the seconds of the rehearsal and of waiting for
    them. Those of the disk's cache count too; they take milliseconds."""

    kernels: int
    rehearsal_s: float
    waiting_s: float


class _Loading(AsyncCompileMode):
    """Brings each kernel to the device as soon as it is compiled."""

    def submit(self, key: Any, compile_fn: Callable[[], Any], finalize_fn: Any) -> Any:
        def loaded() -> Any:
            kernel = compile_fn()
            _ = kernel.run
            return kernel

        return super().submit(key, loaded, finalize_fn)


def compile_all(rehearsals: Iterable[Callable[[], object]]) -> Compiled:
    """Runs each rehearsal, in which no Triton kernel does anything, and returns once all that they
    launch is compiled. Nothing else may launch meanwhile. Raises what the compiler raised."""
    began = time.monotonic()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "compile") as pool:
        with _Loading(pool) as mode:
            with _launching_nothing():
                for rehearse in rehearsals:
                    rehearse()
            rehearsed = time.monotonic()
        kernels = len(mode.raw_futures)
        return Compiled(kernels, rehearsed - began, time.monotonic() - rehearsed)


@contextmanager
def _launching_nothing() -> Iterator[None]:
    # A kernel that is compiled already must not run either: its inputs were never written.
    launch = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(kernel, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_only
    try:
        yield
    finally:
        JITFunction.run = launch
