"""Products with few rows on Hopper, written in Gluon: weights stream through a ring of tiles.

    y = x W^T + bias, or silu(y_gate) * y_up where the weight holds both

A program fills its whole ring with weights before it waits for whoever writes `x`, so that memory
is busy while the kernels before it end and the small ones between two products run; Triton starts
no copy of a loop before the loop. Then a tile of the weight and one of `x` meet on the matrix units
at each turn, the weight as the left operand, whose tiles are 64 rows high: the rows of `x` are then
the short side, 8 or more. A slot is filled again once the product before the last has read it.
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from tokenspeed_kernels.gemm.tiles import Ring
from tokenspeed_kernels.launch_triton import cdiv, dependent_launch, next_power_of_2
from tokenspeed_kernels.maps_hopper import tensor_map
from tokenspeed_kernels.weight import SQUARE

MOST_ROWS = 128
_WARPS = 4


@gluon.jit
def _fill(MAP, ring, full, row, turn, first, turns, STAGES: gl.constexpr):
    """Asks for tile `turn` of the rows at `row`, if there is such a turn."""
    slot = turn % STAGES
    column = (first + turn) * MAP.block_shape[1]
    tma.async_copy_global_to_shared(
        MAP, [row, column], full.index(slot), ring.index(slot), turn < turns
    )


@gluon.jit
def _store(
    acc, BIAS, OUT, rows, width, row, first_row, split, HAS_BIAS: gl.constexpr, EVEN: gl.constexpr
):  # fmt: skip
    """Sums [N, M] of outputs `row` on and rows `first_row` on, along the outputs, as they lie in
    memory."""
    stored: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [1, gl.num_warps()], [0, 1])
    acc = gl.convert_layout(acc, stored)
    n = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, stored))
    m = first_row + gl.arange(0, acc.shape[1], gl.SliceLayout(0, stored))
    live = (m < rows)[None, :] & (EVEN | (n < width))[:, None]
    if HAS_BIAS:  # of the first part
        acc += gl.load(BIAS + n, mask=n + split * width < width, other=0.0).to(gl.float32)[:, None]
    place = (split * rows + m)[None, :].to(gl.int64) * width + n[:, None]
    gl.store(OUT + place, acc.to(OUT.dtype.element_ty), mask=live)


@gluon.jit
def _multiply(tile, x, acc, sums, scale, OUTSTANDING: gl.constexpr, SQUARE: gl.constexpr):
    """Begins tile @ x, when the product before it is done with its slot; with SQUARE that one is
    added to `sums` scaled."""
    acc = warpgroup_mma_wait(num_outstanding=OUTSTANDING, deps=[acc])
    if SQUARE:
        sums += acc * scale
    return warpgroup_mma(tile, x, acc, use_acc=SQUARE == 0, is_async=True), sums


@gluon.jit
def _finish(
    acc, up, sums, up_sums, scale, up_scale, W_SCALES, X_SCALES, rows, width, row, first_row,
    GATED: gl.constexpr, SCALED: gl.constexpr, SQUARE: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    """The sums [N, M] of outputs `row` on when the last products are done: scaled, and where GATED
    silu of them times those `width` outputs further."""
    layout: gl.constexpr = sums.type.layout
    if GATED:
        up = warpgroup_mma_wait(num_outstanding=0, deps=[up])
    acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
    if SQUARE:
        acc = sums + acc * scale
        if GATED:
            up = up_sums + up * up_scale
    if SCALED:
        m = first_row + gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))
        x_scales = gl.load(X_SCALES + m, mask=m < rows, other=0.0)[None, :]
    if SCALED and SQUARE:
        acc *= x_scales
        if GATED:
            up *= x_scales
    elif SCALED:
        n = row + gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))
        inside = EVEN | (n < width)
        acc *= gl.load(W_SCALES + n, mask=inside, other=0.0)[:, None] * x_scales
        if GATED:
            up *= gl.load(W_SCALES + width + n, mask=inside, other=0.0)[:, None] * x_scales
    if GATED:
        acc = acc / (1.0 + gl.exp(-acc)) * up
    return acc


@gluon.jit
def _streamed(
    W_MAP, X_MAP, W_SCALES, X_SCALES, BIAS, OUT, rows, out_features, in_features,
    SPLITS: gl.constexpr, GATED: gl.constexpr, SCALED: gl.constexpr, HAS_BIAS: gl.constexpr,
    STAGES: gl.constexpr, EVEN: gl.constexpr, PDL: gl.constexpr, SQUARE: gl.constexpr = 0,
):  # fmt: skip
    """W_MAP: the weight [out, in] in tiles [N, K]; X_MAP: the rows in tiles [M, K]. SCALED: float32
    [out] and [rows], the scales of float8 values; with SQUARE those of the weight are
    [out / SQUARE, in / SQUARE] instead, and a tile lies within one. EVEN: tiles cover the
    outputs."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    N: gl.constexpr = W_MAP.block_shape[0]
    K: gl.constexpr = W_MAP.block_shape[1]
    M: gl.constexpr = X_MAP.block_shape[0]
    block, split = gl.program_id(0), gl.program_id(1)
    first_row = gl.program_id(2) * M
    turns = gl.cdiv(in_features, SPLITS * K)
    first = split * turns
    row = block * N
    half = out_features // 2
    width = half if GATED else out_features
    weights = gl.allocate_shared_memory(W_MAP.dtype, [STAGES, N, K], W_MAP.layout)
    inputs = gl.allocate_shared_memory(X_MAP.dtype, [STAGES, M, K], X_MAP.layout)
    # All that a turn needs comes to one barrier, and each slot is asked for as soon as its barrier
    # is there: every step for a barrier is one at which all warps meet.
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    BYTES: gl.constexpr = (2 if GATED else 1) * W_MAP.block_type.nbytes + X_MAP.block_type.nbytes
    if GATED:
        ups = gl.allocate_shared_memory(W_MAP.dtype, [STAGES, N, K], W_MAP.layout)
    for turn in gl.static_range(STAGES):
        mbarrier.init(full.index(turn), count=1)
        mbarrier.expect(full.index(turn), BYTES, turn < turns)
        _fill(W_MAP, weights, full, row, turn, first, turns, STAGES)
        if GATED:
            _fill(W_MAP, ups, full, half + row, turn, first, turns, STAGES)
    if PDL:
        tl.extra.cuda.gdc_wait()
    for turn in gl.static_range(STAGES):
        _fill(X_MAP, inputs, full, first_row, turn, first, turns, STAGES)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1],
        instr_shape=[16, M, 256 // W_MAP.dtype.primitive_bitwidth],
    )  # fmt: skip
    acc = warpgroup_mma_init(gl.zeros([N, M], gl.float32, layout))
    up = warpgroup_mma_init(gl.zeros([N, M], gl.float32, layout))
    if SQUARE:
        blocks = gl.cdiv(in_features, SQUARE)
    sums, up_sums = gl.zeros([N, M], gl.float32, layout), gl.zeros([N, M], gl.float32, layout)
    scale, up_scale = gl.to_tensor(0.0), gl.to_tensor(0.0)
    for turn in range(turns):
        slot, phase = turn % STAGES, turn // STAGES & 1
        if SQUARE:  # asked for before the tile is waited for
            column = (first + turn) * K // SQUARE
            next_scale = gl.load(W_SCALES + row // SQUARE * blocks + column)
            next_up = next_scale
            if GATED:
                next_up = gl.load(W_SCALES + (half + row) // SQUARE * blocks + column)
        mbarrier.wait(full.index(slot), phase)
        x = inputs.index(slot).permute((1, 0))
        acc, sums = _multiply(weights.index(slot), x, acc, sums, scale, 0, SQUARE)
        if GATED:
            up, up_sums = _multiply(ups.index(slot), x, up, up_sums, up_scale, 1, SQUARE)
        if SQUARE:
            scale, up_scale = next_scale, next_up
        if turn > 0:
            refill = turn - 1 + STAGES
            mbarrier.expect(full.index(refill % STAGES), BYTES, refill < turns)
            _fill(W_MAP, weights, full, row, refill, first, turns, STAGES)
            if GATED:
                _fill(W_MAP, ups, full, half + row, refill, first, turns, STAGES)
            _fill(X_MAP, inputs, full, first_row, refill, first, turns, STAGES)
    acc = _finish(
        acc, up, sums, up_sums, scale, up_scale, W_SCALES, X_SCALES, rows, width, row, first_row,
        GATED, SCALED, SQUARE, EVEN,
    )  # fmt: skip
    _store(acc, BIAS, OUT, rows, width, row, first_row, split, HAS_BIAS, EVEN)
    # Nothing else may lie where a barrier still is, as it would once these are not used any more.
    full._keep_alive()


def stream(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    ring: Ring,
    *,
    gated: bool = False,
    x_scales: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """As `small_triton.multiply`, for any number of rows: MOST_ROWS of them share a tile of the
    weight. Splits cover the inputs exactly. Both are bfloat16, or both float8 with a scale for each
    row: `x_scales` [rows] or [rows, 1], `scales` [out], or of blocks that no tile may cross
    [out / 128, in / 128]."""
    rows, in_features = x.shape
    out_features = weight.shape[0]
    assert ring.splits == 1 or in_features % (ring.splits * ring.inputs) == 0
    assert rows >= 1 and in_features % 8 == 0, "rows of a tensor map begin at multiples of 16 bytes"
    assert x.is_contiguous() and weight.is_contiguous() and out.is_contiguous()
    assert x.dtype is weight.dtype and (scales is None) == (x_scales is None)
    assert not (gated and (bias is not None or ring.splits > 1))
    square = SQUARE if scales is not None and scales.dim() == 2 else 0
    assert not square or (square % ring.inputs == 0 and out_features % square == 0)
    # The sums of blocks and what they are added to are held at once, of gate and up each.
    most = MOST_ROWS // 2 if square and gated else MOST_ROWS
    x_rows = min(max(next_power_of_2(rows), 8), most)
    maps = tensor_map(weight, ring.outputs, ring.inputs), tensor_map(x, x_rows, ring.inputs)
    pdl = dependent_launch(x.device)
    produced = out_features // 2 if gated else out_features
    grid = (cdiv(produced, ring.outputs), ring.splits, cdiv(rows, x_rows))
    _streamed[grid](
        *maps, scales, x_scales, bias, out, rows, out_features, in_features, SPLITS=ring.splits,
        GATED=gated, SCALED=scales is not None, HAS_BIAS=bias is not None, STAGES=ring.stages,
        EVEN=produced % ring.outputs == 0, PDL=pdl, SQUARE=square, num_warps=_WARPS,
        launch_pdl=pdl,
    )  # fmt: skip
