"""What kernels of experts share: the activation between the two products, and the sum of what the
pairs of a token made."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch
from tokenspeed_kernels.moe.reference import ALPHA

_ALPHA = tl.constexpr(ALPHA)
# Up to so many tokens what a pair makes stays float32 until it is summed; of more it would be most
# of the traffic.
_EXACT_TOKENS = 128
# Outputs of a program that sums.
_BLOCK = 1024


@triton.jit
def activate(gate, up, clamp, CLAMP: tl.constexpr):
    """The gated activation of `op.Experts`, float32."""
    if CLAMP:
        gate = tl.minimum(gate, clamp)
        up = tl.minimum(tl.maximum(up, -clamp), clamp) + 1.0
        return up * gate / (1.0 + tl.exp(-_ALPHA * gate))
    return up * gate / (1.0 + tl.exp(-gate))


@triton.jit
def _sum_pairs(
    MADE, ADDED, OUT, D: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
    APART: tl.constexpr, HAS_ADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    after_producer(PDL)
    token = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_ADDED:
        total += tl.load(ADDED + token * D + d, mask=d < D, other=0.0).to(tl.float32)
    for place in tl.static_range(TOP):
        row = place * tl.num_programs(0) + token if APART else token * TOP + place
        at = MADE + row * D + d
        total += tl.load(at, mask=d < D, other=0.0).to(tl.float32)
    tl.store(OUT + token * D + d, total.to(OUT.dtype.element_ty), mask=d < D)


def stays_exact(tokens: int) -> bool:
    """Whether what the pairs of so many tokens make is kept in float32 until it is summed."""
    return tokens <= _EXACT_TOKENS


def sum_pairs(
    made: torch.Tensor, added: torch.Tensor | None, out: torch.Tensor, *, apart: bool = False
) -> None:
    """`out` [T, D] = the sum over k of `made` [T, k, D] or [T * k, D], in that order, and `added`
    [T, D]. T > 0. `apart`: `made` is [k, T, D]."""
    tokens, width = out.shape
    pdl = dependent_launch(out.device)
    _sum_pairs[(tokens, cdiv(width, _BLOCK))](
        made, added, out, D=width, TOP=made.numel() // out.numel(), BLOCK=_BLOCK,
        APART=apart, HAS_ADDED=added is not None, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
