"""Rows in float8 with a scale for each 128 inputs."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch, next_power_of_2
from tokenspeed_kernels.weight import E4M3_LARGEST, LEAST_SCALED

# Inputs of a row under one scale.
GROUP = 128
_LARGEST = tl.constexpr(E4M3_LARGEST)
_LEAST = tl.constexpr(LEAST_SCALED)


@triton.jit
def _quantise_groups(
    X, OUT, SCALES, D: tl.constexpr, SIZE: tl.constexpr, COUNT_PAD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A row of D per program, SIZE inputs under a scale."""
    after_producer(PDL)
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, COUNT_PAD)
    at = group[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(X + token * D + at, mask=at < D, other=0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(x), 1), _LEAST)
    narrow = (x * tl.fdiv(_LARGEST, most)[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + token * D + at, narrow, mask=at < D)
    tl.store(SCALES + token * (D // SIZE) + group, most * (1.0 / _LARGEST), mask=group < D // SIZE)


def quantise_groups(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [T, D] as float8 [T, D] and float32 scales [T, D / GROUP]: x is their product."""
    tokens, width = x.shape
    assert x.is_contiguous() and width % GROUP == 0
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scales = torch.empty((tokens, width // GROUP), dtype=torch.float32, device=x.device)
    pdl = dependent_launch(x.device)
    if tokens:
        _quantise_groups[(tokens,)](
            x, out, scales, D=width, SIZE=GROUP,
            COUNT_PAD=next_power_of_2(width // GROUP), PDL=pdl, num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
    return out, scales
