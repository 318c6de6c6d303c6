"""Rows in float8 with a scale for each 128 inputs, made beside the placing of pairs."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch
from tokenspeed_kernels.moe.group_triton import WARPS, Groups, group, place, places
from tokenspeed_kernels.weight import E4M3_LARGEST, LEAST_SCALED

# Inputs of a row under one scale.
GROUP = 128
_LARGEST = tl.constexpr(E4M3_LARGEST)
_LEAST = tl.constexpr(LEAST_SCALED)


@triton.jit
def _quantise_row(
    X, OUT, SCALES, token, D: tl.constexpr, SIZE: tl.constexpr, COUNT_PAD: tl.constexpr
):
    """A row of D, SIZE inputs under a scale."""
    group = tl.arange(0, COUNT_PAD)
    at = group[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(X + token * D + at, mask=at < D, other=0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(x), 1), _LEAST)
    narrow = (x * tl.fdiv(_LARGEST, most)[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + token * D + at, narrow, mask=at < D)
    tl.store(SCALES + token * (D // SIZE) + group, most * (1.0 / _LARGEST), mask=group < D // SIZE)


@triton.jit
def _quantise_groups(
    X, OUT, SCALES, D: tl.constexpr, SIZE: tl.constexpr, COUNT_PAD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    after_producer(PDL)
    _quantise_row(X, OUT, SCALES, tl.program_id(0).to(tl.int64), D, SIZE, COUNT_PAD)


@triton.jit(do_not_specialize=["num_pairs", "most"])
def _place_and_quantise(
    CHOSEN, SEEN, PAIRS, EXPERTS, COUNT, X, OUT, SCALES, num_pairs, most,
    E_PAD: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr,
    SIZE: tl.constexpr, COUNT_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program 0 places all pairs, each of the others makes a row float8."""
    after_producer(PDL)
    program = tl.program_id(0)
    if program == 0:
        place(CHOSEN, SEEN, SEEN, PAIRS, EXPERTS, COUNT, num_pairs, most, 0, 1,
              E_PAD, BLOCK, CHUNK, True)  # fmt: skip
    else:
        _quantise_row(X, OUT, SCALES, program.to(tl.int64) - 1, D, SIZE, COUNT_PAD)


def _shape(x: torch.Tensor) -> dict[str, int]:
    width = x.shape[1]
    assert x.is_contiguous() and width % GROUP == 0
    return {"D": width, "SIZE": GROUP, "COUNT_PAD": triton.next_power_of_2(width // GROUP)}


def _room(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    return out, x.new_empty((len(x), x.shape[1] // GROUP), dtype=torch.float32)


def quantise_groups(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [T, D] as float8 [T, D] and float32 scales [T, D / GROUP]: x is their product."""
    out, scales = _room(x)
    pdl = dependent_launch(x.device)
    if len(x):
        _quantise_groups[(len(x),)](
            x, out, scales, **_shape(x), PDL=pdl, num_warps=4, launch_pdl=pdl
        )
    return out, scales


def group_and_quantise(
    x: torch.Tensor, chosen: torch.Tensor, num_experts: int, block: int
) -> tuple[Groups, torch.Tensor, torch.Tensor]:
    """`group` and `quantise_groups`, of few tokens in one launch."""
    to = places(chosen, num_experts, block)
    if to.programs > 1:
        return group(chosen, num_experts, block), *quantise_groups(x)
    made, (out, scales), pdl = to.groups, _room(x), dependent_launch(x.device)
    _place_and_quantise[(1 + len(x),)](
        chosen, to.seen, made.pairs, made.experts, made.count, x, out, scales, to.num_pairs,
        made.most, E_PAD=to.experts_pad, BLOCK=block, CHUNK=to.chunk, **_shape(x), PDL=pdl,
        num_warps=WARPS, launch_pdl=pdl,
    )  # fmt: skip
    return made, out, scales
