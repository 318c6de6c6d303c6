"""Products with few rows in Triton: the weight is read once, at the rate of memory.

    y = x W^T (scales) + bias, or silu(y_gate) * y_up where the weight holds both

One row is a dot product per output in ordinary arithmetic, straight from memory to registers. A
few rows go through the matrix units with a deep pipeline of weight tiles. The inputs may be split
over programs: each then writes its float32 part, and whoever reads the parts adds them up.

Where there is one row, a program asks for its first weights while the kernels before still run.

float8 weights (e4m3) are widened on their way to the matrix units, exactly, to float16: that takes
one instruction for two of them, and to bfloat16 it takes four. The rows become float16 as well,
rounded no more than bfloat16 had rounded them; what lies beyond 65,504 is cut off there.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tokenspeed_kernels.gemm.tiles import Tile
from tokenspeed_kernels.launch_triton import (
    cdiv,
    dependent_launch,
    next_power_of_2,
    start_next,
    wait_for_producer,
)

# Rows of `x` at most.
MOST_ROWS = 128


@triton.jit
def _row_of(block, i, half, N: tl.constexpr, GATED: tl.constexpr):
    """Row of the weight behind output `i` of a block: gate rows first, then those of up."""
    if GATED:
        row = block * (N // 2) + i % (N // 2) + i // (N // 2) * half
    else:
        row = block * N + i
    return row


@triton.jit
def _silu_mul(gate, up, OUT):
    return (gate / (1.0 + tl.exp(-gate)) * up).to(OUT.dtype.element_ty)


@triton.jit
def _one_row(
    X, WEIGHT, SCALES, BIAS, OUT, out_features, in_features, scale_stride,
    N: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr,
    SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """SCALE: 0 none, 1 one per row of the weight, 2 one per 128 x 128 of it. EVEN: the tiles
    cover the weight exactly."""
    start_next(PDL)
    block, split = tl.program_id(0), tl.program_id(1)
    half = out_features // 2
    n = _row_of(block, tl.arange(0, N), half, N, GATED)
    k = tl.arange(0, K)
    span = in_features // SPLITS
    first, stop = split * span, (split + 1) * span
    weights = WEIGHT + n.to(tl.int64)[:, None] * in_features
    scales = SCALES
    if SCALE == 2:
        scales = SCALES + (n // 128)[:, None] * scale_stride
    inside = EVEN | (n < out_features)[:, None]
    # Weights are constant: they are on their way while the producer of X still runs.
    column = first + k
    here = EVEN | (column < stop)
    w = tl.load(weights + column[None, :], mask=inside & here[None, :], other=0.0,
                eviction_policy="evict_first")  # fmt: skip
    wait_for_producer(PDL)
    x = tl.load(X + column, mask=here, other=0.0)
    acc = w.to(tl.float32) * x.to(tl.float32)[None, :]
    if SCALE == 2:
        acc *= tl.load(scales + (column // 128)[None, :], mask=inside & here[None, :], other=0.0)
    for begin in tl.range(first + K, stop, K, num_stages=STAGES):
        column = begin + k
        here = EVEN | (column < stop)
        w = tl.load(weights + column[None, :], mask=inside & here[None, :], other=0.0,
                    eviction_policy="evict_first")  # fmt: skip
        x = tl.load(X + column, mask=here, other=0.0)
        product = w.to(tl.float32) * x.to(tl.float32)[None, :]
        if SCALE == 2:
            scale = tl.load(scales + (column // 128)[None, :], mask=inside & here[None, :],
                            other=0.0)  # fmt: skip
            product *= scale
        acc += product
    y = tl.sum(acc, 1)
    if SCALE == 1:
        y *= tl.load(SCALES + n, mask=n < out_features, other=0.0)
    if HAS_BIAS:
        # Of the parts the first has it.
        has = (n < out_features) & (split == 0)
        y += tl.load(BIAS + n, mask=has, other=0.0).to(tl.float32)
    if GATED:
        gate, up = tl.split(tl.trans(tl.reshape(y, (2, N // 2))))
        place = block * (N // 2) + tl.arange(0, N // 2)
        tl.store(OUT + place, _silu_mul(gate, up, OUT), mask=place < half)
    else:
        tl.store(OUT + split * out_features + n, y.to(OUT.dtype.element_ty), mask=n < out_features)


@triton.jit
def _few_rows(
    X, WEIGHT, MAP, SCALES, BIAS, OUT, rows, out_features, in_features, x_stride, scale_stride,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr,
    SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, MAPS: tl.constexpr,
    STAGES: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `_one_row`; weights and rows meet as WIDE. MAP: the weight as a tensor map of [N or N / 2,
    K], where MAPS."""
    start_next(PDL)
    block, split = tl.program_id(0), tl.program_id(1)
    half = out_features // 2
    n = _row_of(block, tl.arange(0, N), half, N, GATED)
    m = tl.arange(0, M)
    k = tl.arange(0, K)
    span = in_features // SPLITS
    first, stop = split * span, (split + 1) * span
    wait_for_producer(PDL)
    weights = WEIGHT + n.to(tl.int64)[:, None] * in_features
    inside = EVEN | (n < out_features)[:, None]
    # Rows past the last repeat it: no mask in the loop, and they are not stored.
    inputs = X + tl.minimum(m, rows - 1)[:, None] * x_stride
    acc = tl.zeros([N, M], tl.float32)
    if MAPS and GATED:
        gate = tl.zeros([N // 2, M], tl.float32)
        up = tl.zeros([N // 2, M], tl.float32)
    for begin in tl.range(first, stop, K, num_stages=STAGES):
        column = begin + k
        here = EVEN | (column < stop)[None, :]
        x = tl.load(inputs + column[None, :], mask=here, other=0.0)
        if tl.float16 == WIDE:
            # The largest float16: beyond it lies infinity.
            x = tl.minimum(tl.maximum(x.to(tl.float32), -65504.0), 65504.0).to(WIDE)
        if MAPS and GATED:
            gate_w = MAP.load([block * (N // 2), begin])
            up_w = MAP.load([half + block * (N // 2), begin])
            gate = tl.dot(gate_w.to(x.dtype), tl.trans(x), gate)
            up = tl.dot(up_w.to(x.dtype), tl.trans(x), up)
        else:
            if MAPS:
                w = MAP.load([block * N, begin])
            else:
                w = tl.load(weights + column[None, :], mask=inside & here, other=0.0)
            if SCALE == 2:
                scale = tl.load(SCALES + (n // 128) * scale_stride + begin // 128,
                                mask=n < out_features, other=0.0)  # fmt: skip
                acc += tl.dot(w.to(x.dtype), tl.trans(x)) * scale[:, None]
            else:
                acc = tl.dot(w.to(x.dtype), tl.trans(x), acc)
    if GATED:
        place = block * (N // 2) + tl.arange(0, N // 2)
        if not MAPS:
            gate, up = tl.split(tl.permute(tl.reshape(acc, (2, N // 2, M)), (1, 2, 0)))
        if SCALE == 1:
            gate *= tl.load(SCALES + place, mask=place < half, other=0.0)[:, None]
            up *= tl.load(SCALES + half + place, mask=place < half, other=0.0)[:, None]
        tl.store(
            OUT + m[None, :] * half + place[:, None], _silu_mul(gate, up, OUT),
            mask=(place < half)[:, None] & (m < rows)[None, :],
        )  # fmt: skip
    else:
        if SCALE == 1:
            acc *= tl.load(SCALES + n, mask=n < out_features, other=0.0)[:, None]
        if HAS_BIAS:
            has = (n < out_features) & (split == 0)
            acc += tl.load(BIAS + n, mask=has, other=0.0).to(tl.float32)[:, None]
        part = split.to(tl.int64) * rows + m
        tl.store(
            OUT + part[None, :] * out_features + n[:, None], acc.to(OUT.dtype.element_ty),
            mask=(n < out_features)[:, None] & (m < rows)[None, :],
        )  # fmt: skip


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: Tile,
    *,
    scales: torch.Tensor | None = None,
    gated: bool = False,
) -> None:
    """out = x weight^T scales + bias for up to MOST_ROWS rows of `x`.

    `scales` float32: [out], or [out / 128, in / 128]. `gated`: the rows of `weight` are those of a
    gate and of an up projection, and `out` is silu(gate) * up. With `tile.splits` > 1 `out` is
    float32 [splits, rows, out], whose sum over the splits is the product.
    """
    rows, in_features = x.shape
    out_features = weight.shape[0]
    splits = tile.splits
    assert x.stride(1) == 1 and weight.is_contiguous() and out.is_contiguous()
    assert 1 <= rows <= MOST_ROWS
    assert splits == 1 or in_features % (splits * tile.inputs) == 0
    assert not (gated and (bias is not None or splits > 1))
    assert out.numel() == splits * rows * (out_features // 2 if gated else out_features)
    pdl = dependent_launch(x.device)
    produced = out_features // 2 if gated else out_features
    block = tile.outputs // 2 if gated else tile.outputs
    grid = (cdiv(produced, block), splits)
    kind = 0 if scales is None else scales.dim()
    scale_stride = 0 if scales is None else scales.stride(0)
    even = produced % block == 0 and in_features % (splits * tile.inputs) == 0
    constants = {
        "N": tile.outputs, "K": tile.inputs, "SPLITS": splits, "GATED": gated, "SCALE": kind,
        "HAS_BIAS": bias is not None, "EVEN": even, "STAGES": tile.stages,
        "PDL": pdl,
    }  # fmt: skip
    if rows == 1 and not tile.matrix:
        _one_row[grid](
            x, weight, scales, bias, out, out_features, in_features, scale_stride,
            **constants, num_warps=tile.warps, launch_pdl=pdl,
        )  # fmt: skip
        return
    maps = tile.maps and even and not (gated and kind == 2)
    box = TensorDescriptor.from_tensor(weight, [block, tile.inputs]) if maps else None
    _few_rows[grid](
        x, weight, box, scales, bias, out, rows, out_features, in_features, x.stride(0),
        scale_stride, M=max(next_power_of_2(rows), 8), MAPS=maps,
        WIDE=tl.float16 if weight.element_size() == 1 else tl.bfloat16, **constants,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
