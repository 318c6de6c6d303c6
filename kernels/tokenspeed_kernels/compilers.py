"""Processes that compile Triton kernels into the cache on disk, from where their caller takes them.

The compiler reads a kernel's source in Python, for which threads of one process wait for one lock.
A process of its own would first import, for seconds, what its caller has imported. So the caller
forks, once, before it has a device, which no fork survives:

    caller -- fork --> seed, asleep until something must be compiled -- fork --> a compiler per core

The caller shares a pipe with each compiler: a job goes down, what went wrong comes up. A compiler
that dies closes its end, and so do all where the seed died: whoever waits there goes without. The
caller's own end closes the pipes too, and the others end with them.
"""

# Triton has no types.
# mypy: allow-any-generics

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import multiprocessing
import operator
import os
import queue
import signal
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.cache import triton_key
from triton.runtime.jit import JITCallable

log = logging.getLogger(__name__)

# A kernel takes seconds, on a busy machine some more. Beyond that its compiler hangs.
PATIENCE_SECONDS = 120.0
CLOSE_SECONDS = 1.0

# Ties the calling process to its parent, whose id it is given: it ends with it.
Tie = Callable[[int], None]


class Compilers:
    """`count` processes, begun when the first kernel needs one; `count` threads may use them at
    once. As a context it ends them for certain. Make it before the process has a device, on a
    thread that outlives it: with that, all of them end."""

    def __init__(self, count: int, tie: Tie) -> None:
        """Raises OSError where no process can be forked."""
        fork = multiprocessing.get_context("fork")
        pairs = [fork.Pipe() for _ in range(count)]
        self._ends = [ours for ours, _ in pairs]
        theirs = [end for _, end in pairs]
        waking, self._wake = fork.Pipe(duplex=False)
        ours = (self._wake, *self._ends)
        self._seed = fork.Process(
            target=_seed, args=(os.getpid(), tie, waking, theirs, ours), name="seed", daemon=True
        )
        with warnings.catch_warnings():
            # Whatever lock another thread holds now stays held in the seed, which takes none that
            # threads of a starting process hold for longer than an instant: it does not log.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._seed.start()
        for end in (waking, *theirs):
            end.close()
        self._waking = threading.Lock()
        self._awake = False
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        for end in self._ends:
            self._idle.put(end)

    def __len__(self) -> int:
        return len(self._ends)

    def __enter__(self) -> Compilers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.dismiss()
        self._seed.join(CLOSE_SECONDS)
        if self._seed.is_alive():  # one of them hangs
            self._seed.kill()
            self._seed.join()
        self._seed.close()

    def compile(self, source: ASTSource, target: Any, options: Mapping[str, Any]) -> bool:
        """As `triton.compile`, into the cache. Blocks; False where it failed, which the log
        explains, or where no compiler is left."""
        try:
            end = self._idle.get_nowait()
        except queue.Empty:
            return False
        try:
            self._begin()
            wrong = _asked(end, encoded(source, target, options))
        except (OSError, EOFError) as error:
            log.warning("a compiler of kernels is gone, %s was with it: %r", source.name, error)
            return False
        except TypeError as error:
            wrong = str(error)
        self._idle.put(end)
        if wrong:
            log.warning("no other process could compile %s: %s", source.name, wrong)
        return not wrong

    def dismiss(self) -> None:
        """Lets them end, and does not wait for that. Nobody may be waiting for one."""
        for end in (self._wake, *self._ends):
            end.close()

    def _begin(self) -> None:
        with self._waking:
            if not self._awake:
                self._wake.send_bytes(b"")
                self._awake = True


def _seed(
    caller: int,
    tie: Tie,
    waking: Connection,
    theirs: Sequence[Connection],
    ours: Sequence[Connection],
) -> None:
    """What the forked process does. It waits for its compilers, which end with their pipes."""
    tie(caller)
    # Ctrl-C reaches the whole group, and the caller decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in ours:
        end.close()
    # Half a second, for which the caller has other things to do: a hash over the compiler, part
    # of every key. The compilers inherit it.
    triton_key()
    try:
        waking.recv_bytes()
    except EOFError:
        return  # all was in the cache
    me, compilers = os.getpid(), []
    for end in theirs:
        pid = os.fork()
        if pid == 0:
            _compile_until_closed(me, tie, end, theirs)
        compilers.append(pid)
    for end in theirs:
        end.close()
    for pid in compilers:
        os.waitpid(pid, 0)


def _compile_until_closed(
    seed: int, tie: Tie, mine: Connection, theirs: Sequence[Connection]
) -> None:
    """A compiler's life; does not return."""
    try:
        tie(seed)
        for end in theirs:
            if end is not mine:
                end.close()
        with contextlib.suppress(EOFError, OSError):
            while True:
                mine.send_bytes(_compiled(mine.recv_bytes()))
    finally:
        os._exit(0)


def _asked(end: Connection, job: bytes) -> str:
    """What a compiler says of it, "" when it is done. Raises OSError or EOFError where it is gone
    or hangs."""
    end.send_bytes(job)
    if not end.poll(PATIENCE_SECONDS):
        raise TimeoutError(f"nothing was heard of it for {PATIENCE_SECONDS:.0f} s")
    return end.recv_bytes().decode()


def _compiled(job: bytes) -> bytes:
    try:
        source, target, options = decoded(job)
        triton.compile(source, target=target, options=options)
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode(errors="replace")
    return b""


def encoded(source: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> bytes:
    """What `triton.compile` is given, as JSON. Raises TypeError where that cannot say it."""
    job = {
        "kind": _name(type(source)),
        "kernel": _name(source.fn),
        "signature": [[name, _plain(value)] for name, value in source.signature.items()],
        "constants": [[_plain(path), _plain(value)] for path, value in source.constants.items()],
        "attributes": [[_plain(path), _plain(value)] for path, value in source.attrs.items()],
        "target": [target.backend, target.arch, target.warp_size],
        "options": {name: _plain(value) for name, value in options.items()},
    }
    return json.dumps(job).encode()


def decoded(job: bytes) -> tuple[ASTSource, GPUTarget, dict[str, Any]]:
    """The same again: equal to it, so that the kernel gets the same key."""
    parts = json.loads(job)
    constants, attributes = (
        {_whole(path): _whole(value) for path, value in parts[part]}
        for part in ("constants", "attributes")
    )
    signature = {name: _whole(value) for name, value in parts["signature"]}
    source = _named(*parts["kind"])(_named(*parts["kernel"]), signature, constants, attributes)
    options = {name: _whole(value) for name, value in parts["options"].items()}
    return source, GPUTarget(*parts["target"]), options


def _plain(value: Any) -> Any:
    """A value in JSON: what JSON has not stands in an object, with its kind."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_plain(one) for one in value]
        case tuple():
            return {"tuple": [_plain(one) for one in value]}
        case tl.dtype():
            return {"dtype": value.name}
        case tl.constexpr():
            return {"constexpr": _plain(value.value)}
        case JITCallable():
            return {"function": _name(value)}
    raise TypeError(f"{type(value).__name__} {value!r} has no form that can be sent")


def _whole(value: Any) -> Any:
    match value:
        case list():
            return [_whole(one) for one in value]
        case {"tuple": items}:
            return tuple(_whole(one) for one in items)
        case {"dtype": name}:
            return tl.dtype(name)
        case {"constexpr": inner}:
            return tl.constexpr(_whole(inner))
        case {"function": name}:
            return _named(*name)
    return value


def _name(value: Any) -> tuple[str, str]:
    where = value.__module__, value.__qualname__
    try:
        found = _named(*where)
    except AttributeError:
        found = None
    if found is not value:
        raise TypeError(f"{'.'.join(where)} does not name it")
    return where


def _named(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))
