"""Compiles Triton kernels on all cores, before anything waits for them.

A kernel is compiled when it is first launched with such arguments, one after the other. Here a
rehearsal of the work launches everything once, but nothing runs: what is not compiled yet is handed
to a pool of threads, and the rehearsal goes on at once. Each thread asks a process to compile
(`compilers.py`) and takes the kernel from the cache; without one it compiles in this process, where
the compiler holds the interpreter's lock while it reads a kernel's source. The C compiler, which
makes a launcher for each signature that no kernel had before, is a process of its own.
"""

# Triton has no types.
# mypy: allow-subclassing-any

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from triton import AsyncCompileMode, JITFunction
from triton.compiler import ASTSource
from triton.runtime._async_compile import active_mode
from triton.runtime.cache import get_cache_manager, triton_key
from triton.runtime.jit import JITCallable

from tokenspeed_kernels.compilers import Compilers, Tie

log = logging.getLogger(__name__)


# A compiler takes some 200 MB while it works, and the kernel that takes longest bounds the gain.
MOST_COMPILERS = 16


@dataclass(frozen=True, slots=True)
class Compiled:
    """How many kernels were not in memory yet, of these how many other processes compiled, and the
    seconds of the rehearsal and of waiting for them. Kernels of the disk's cache count too; they
    take milliseconds."""

    kernels: int
    apart: int
    rehearsal_s: float
    waiting_s: float


class _Loading(AsyncCompileMode):
    """Brings each kernel to the device as soon as it is compiled."""

    def __init__(self, pool: Executor, compilers: Compilers | None) -> None:
        super().__init__(pool)
        self._compilers = compilers
        self._apart: list[str] = []

    @property
    def apart(self) -> int:
        """Kernels that another process compiled."""
        return len(self._apart)

    def submit(self, key: str, compile_fn: Callable[[], Any], finalize_fn: Any) -> Any:
        def loaded() -> Any:
            if self._compilers is not None:
                self._compile_apart(self._compilers, key, compile_fn)
            kernel = compile_fn()
            _ = kernel.run
            return kernel

        return super().submit(key, loaded, finalize_fn)

    def _compile_apart(self, compilers: Compilers, key: str, compile_fn: Callable[[], Any]) -> None:
        # All that is handed over is a closure.
        given = inspect.getclosurevars(compile_fn).nonlocals
        if not {"src", "target", "options"} <= given.keys():  # another Triton's
            return
        source = given["src"]
        if _in_cache(key, source):
            return
        if not compilers.compile(source, given["target"], given["options"].__dict__):
            return
        if _in_cache(key, source):
            self._apart.append(key)
        else:
            log.warning("%s was compiled under another key than it has here", source.name)

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            # Left as it is where a kernel did not compile; then this process compiles no more.
            active_mode.set(None)


def compile_all(
    rehearsals: Iterable[Callable[[], object]], compilers: Compilers | None = None
) -> Compiled:
    """Runs each rehearsal, in which no Triton kernel does anything, and returns once all that they
    launch is compiled. Nothing else may launch meanwhile. Raises what the compiler raised."""
    began = time.monotonic()
    threads = len(os.sched_getaffinity(0)) if compilers is None else len(compilers)
    with _parsing_in_turn(), ThreadPoolExecutor(threads, "compile") as pool:
        with _Loading(pool, compilers) as mode:
            with _launching_nothing():
                for rehearse in rehearsals:
                    rehearse()
            rehearsed = time.monotonic()
        kernels = len(mode.raw_futures)
        waited = time.monotonic() - rehearsed
        return Compiled(kernels, mode.apart, rehearsed - began, waited)


@contextmanager
def compiling(tie: Tie) -> Iterator[Callable[[Iterable[Callable[[], object]]], Compiled]]:
    """Gives `compile_all`, once, with a process per core where the device is not started yet: to be
    entered before that, on a thread that lasts. `tie` ends a process with its parent."""
    with ExitStack() as stack:
        compilers = _compilers(tie)
        if compilers is not None:
            stack.enter_context(compilers)
        # Half a second of hashing the compiler itself, for which the first kernel need not wait.
        threading.Thread(target=triton_key, name="triton_key", daemon=True).start()

        def once(rehearsals: Iterable[Callable[[], object]]) -> Compiled:
            compiled = compile_all(rehearsals, compilers)
            if compilers is not None:
                compilers.dismiss()
            return compiled

        yield once


def _compilers(tie: Tie) -> Compilers | None:
    count = min(len(os.sched_getaffinity(0)), MOST_COMPILERS)
    if count == 1 or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        return Compilers(count, tie)
    except OSError as error:
        log.warning("kernels are compiled in this process alone: %s", error)
        return None


def _in_cache(key: str, source: ASTSource) -> bool:
    # As `triton.compile` looks it up.
    manager = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    metadata = f"{source.name[:150]}.json"
    return metadata in (manager.get_group(metadata) or {})


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


@contextmanager
def _parsing_in_turn() -> Iterator[None]:
    """Before Python 3.13 all threads count the depth of their syntax trees in one place, and raise
    SystemError where the garbage collector lets another one in (CPython 106905)."""
    parse, turn = JITCallable.parse, threading.RLock()

    def alone(function: Any) -> Any:
        with turn:
            return parse(function)

    JITCallable.parse = alone
    try:
        yield
    finally:
        JITCallable.parse = parse
