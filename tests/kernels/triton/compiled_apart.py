"""Compiles kernels for sm_90 as a worker with such a device does: in other processes.

Run as a script: an interpreting process cannot compile. Prints a line of JSON for each part, last
the ids of the processes that compile, and waits to be killed.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from tokenspeed_kernels.activation.silu_mul_triton import silu_mul
from tokenspeed_kernels.compile_triton import Compiled, compile_all, compiling
from tokenspeed_kernels.compilers import Compilers
from tokenspeed_kernels.gemm.streamed_gluon import stream
from tokenspeed_kernels.gemm.tiles import Ring
from triton.backends.compiler import GPUTarget
from triton.compiler import CompilationError

from tokenspeed.worker.parent import die_with_parent

# In this process: True for each kernel that was found on disk, False for one that was compiled.
seen: list[bool] = []


class NoDevice:
    """What rehearsing and loading kernels, which nothing launches, asks of a driver."""

    @property
    def utils(self):
        return self

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device):
        return {"max_shared_mem": 227 << 10}

    def load_binary(self, name, binary, shared, device):
        return 1, 1, 0, 0, 1024

    def launcher_cls(self, source, metadata):
        return print


@triton.jit
def _wrong(OUT, N: tl.constexpr):
    tl.static_assert(N == 1, "this kernel cannot be compiled")
    tl.store(OUT, N)


def gate(dtype):
    silu_mul(torch.empty(3, 2048, dtype=dtype))


def multiply():
    shapes = ((8, 256), (64, 256), (8, 64))
    x, weight, out = (torch.empty(shape, dtype=torch.bfloat16) for shape in shapes)
    stream(x, weight, None, out, Ring(128, 2))


def wrong():
    _wrong[(1,)](torch.empty(1), N=2)


def told(part: str, compiled: Compiled | None = None, **more: object) -> None:
    if compiled is not None:
        more |= {"kernels": compiled.kernels, "apart": compiled.apart}
    line = {"part": part, "found": seen.count(True), "here": seen.count(False), **more}
    print(json.dumps(line), flush=True)
    seen.clear()


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def processes() -> list[int]:
    """The seed and its compilers."""
    (seed,) = multiprocessing.active_children()
    return [seed.pid, *children(seed.pid)]


def main() -> None:
    triton.knobs.compilation.listener = lambda cache_hit, **_: seen.append(cache_hit)
    triton.runtime.driver.set_active(NoDevice())
    with Compilers(2, die_with_parent) as compilers:
        work = [lambda: gate(torch.bfloat16), multiply, lambda: gate(torch.bfloat16)]
        told("apart", compile_all(work, compilers))
        told("in memory", compile_all(work, compilers))
        for pid in processes()[1:]:
            os.kill(pid, signal.SIGKILL)
        told("killed", compile_all([lambda: gate(torch.float16)], compilers))
    with compiling(die_with_parent) as compile_once:
        told("unused", compile_once([lambda: gate(torch.bfloat16)]))
    told("closed", left=len(multiprocessing.active_children()))
    with Compilers(2, die_with_parent) as compilers:
        told("again", compile_all([lambda: gate(torch.float32)], compilers))
        try:
            compile_all([wrong], compilers)
        except CompilationError as error:
            told("wrong", error=str(error))
        told("waiting", left=processes())
        sys.stdin.read()


if __name__ == "__main__":
    main()
