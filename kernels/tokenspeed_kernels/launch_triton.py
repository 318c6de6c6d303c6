"""What the Triton kernels share: programmatic dependent launch and facts about the device.

Every kernel here begins with `after_producer`. On sm_90 and later it is launched while the kernel
before it on the stream still drains; `after_producer` blocks until that one is complete and its
writes are visible, then lets the kernel after this one start. So what a kernel does before
`after_producer` may read only what was written two kernels back or earlier, and no kernel may
return without having called it.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def after_producer(PDL: tl.constexpr):
    """Waits for the kernel before this one; see the module's text."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


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
