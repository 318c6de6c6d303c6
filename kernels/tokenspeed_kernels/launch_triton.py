"""What the Triton kernels share: programmatic dependent launch and facts about the device.

On sm_90 and later a kernel is launched while those before it on the stream still run.
`wait_for_producer` blocks until the kernel before is complete and its writes are visible; since
every program of every kernel waits before it returns, all that came earlier is complete too.
`start_next` lets the kernel after this one take what room is left on the device.

A kernel that starts the next one before it waits itself (a product, a norm, rope, attention) may be
followed by several that have not waited either. Before it waits, a kernel therefore reads
constants only, or what was written before a kernel between them that waits first and then starts
the next one (`after_producer`). In a step the embedding is such a one, after all that is written
once for its layers. Nothing is written before the wait.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def start_next(PDL: tl.constexpr):
    """Lets the kernel after this one start; see the module's text."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_producer(PDL: tl.constexpr):
    """Waits for the kernel before this one; see the module's text."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def after_producer(PDL: tl.constexpr):
    """Waits for the kernel before this one, then lets the one after it start."""
    wait_for_producer(PDL)
    start_next(PDL)


def cdiv(count: int, size: int) -> int:
    """The least number of pieces of `size` that hold `count`. Triton's own, which kernels may call
    too, takes microseconds."""
    return -(-count // size)


def next_power_of_2(count: int) -> int:
    """The least power of 2 that is no less than `count`."""
    return 1 << max(count - 1, 0).bit_length()


@functools.cache
def dependent_launch(device: torch.device) -> bool:
    """True where kernels on `device` may start before the one ahead of them is done."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (9, 0)
    )


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of `device`; 2 where kernels are interpreted on a CPU."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Whether `device` has Hopper's tensor maps, barriers and warpgroup products."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) == (9, 0)
    )
