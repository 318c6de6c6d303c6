"""The second product of one token's experts on Hopper, in Gluon: weights stream through rings.

    out[d] = sum over choices of w (Wd[d] inner)

A program has a ring of tiles, some rows of a weight by some inputs, and asks for the tile behind
the last one as soon as it has read one. All programs run at once, and their rings are full before
the first product's last programs end. They let the norm behind them start early, too: of the many
small programs of `one_token_triton` the last begin late, and it waits for its weight.
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tokenspeed_kernels.launch_triton import dependent_launch, next_power_of_2, num_multiprocessors
from tokenspeed_kernels.maps_hopper import tensor_map

# Of a tile, and tiles of a ring: two programs fit a multiprocessor. As measured.
ROWS, INPUTS, STAGES = 8, 256, 12
WARPS = 4
# What the choices' first products may be together, as all of it is kept in shared memory.
_MOST_INNER = 8192


def fits(hidden: int, inner: int, top: int, device: torch.device) -> bool:
    """Whether the product was made for such experts: there is room for all programs at once."""
    small = top * inner <= _MOST_INNER and hidden // ROWS <= 2 * num_multiprocessors(device)
    return small and hidden % ROWS == 0 and inner % INPUTS == 0


@gluon.jit
def _ask(
    W_MAP, EXPERTS, ring, turn, slot, begin,
    D: gl.constexpr, TOP: gl.constexpr, CHUNKS: gl.constexpr,
):  # fmt: skip
    """Asks for the tile of a turn, if there is one: all chunks of a choice, then the next one's."""
    tiles, full = ring
    there = turn < TOP * CHUNKS
    row = gl.load(EXPERTS + gl.minimum(turn // CHUNKS, TOP - 1)) * D + begin
    mbarrier.expect(full.index(slot), W_MAP.block_type.nbytes, there)
    tma.async_copy_global_to_shared(
        W_MAP, [row, turn % CHUNKS * W_MAP.block_shape[1]], full.index(slot), tiles.index(slot),
        there,
    )  # fmt: skip


@gluon.jit
def _down_ring(
    W_MAP, INNER, WEIGHTS, EXPERTS, OUT,
    D: gl.constexpr, F: gl.constexpr, TOP: gl.constexpr, INNER_PAD: gl.constexpr,
    STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Some outputs. W_MAP: the weights [experts * D, F] in tiles [R, K]. INNER: F values of each
    choice. The choice was made before the kernel ahead began (`launch_triton`)."""
    R: gl.constexpr = W_MAP.block_shape[0]
    K: gl.constexpr = W_MAP.block_shape[1]
    EACH: gl.constexpr = 128 // W_MAP.dtype.primitive_bitwidth
    CHUNKS: gl.constexpr = F // K
    L: gl.constexpr = gl.BlockedLayout(
        [1, EACH], [32 * EACH // K, K // EACH], [gl.num_warps(), 1], [1, 0]
    )
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    begin = gl.program_id(0) * R
    tiles = gl.allocate_shared_memory(W_MAP.dtype, [STAGES, R, K], W_MAP.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    ring = (tiles, full)
    for stage in gl.static_range(STAGES):
        _ask(W_MAP, EXPERTS, ring, stage, stage, begin, D, TOP, CHUNKS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    i = gl.arange(0, INNER_PAD, gl.BlockedLayout([EACH], [32], [gl.num_warps()], [0]))
    inner = gl.load(INNER + i, mask=i < TOP * F, other=0.0)
    held = gl.allocate_shared_memory(inner.dtype, [INNER_PAD], PLAIN, inner)
    kept = held._reinterpret(inner.dtype, [INNER_PAD // K, K], PLAIN)
    # Nothing is added up across lanes before the end.
    total = gl.zeros([R, K], gl.float32, L)
    turn = 0
    for nth in range(TOP):
        weight = gl.load(WEIGHTS + nth)
        made = gl.zeros([R, K], gl.float32, L)
        for _ in range(CHUNKS):
            slot = turn % STAGES
            mbarrier.wait(full.index(slot), turn // STAGES & 1)
            w = tiles.index(slot).load(L)
            # All have read the slot.
            gl.thread_barrier()
            _ask(W_MAP, EXPERTS, ring, turn + STAGES, slot, begin, D, TOP, CHUNKS)
            x = kept.index(turn).load(gl.SliceLayout(0, L))
            made += w.to(gl.float32) * x.to(gl.float32)[None, :]
            turn += 1
        total += made * weight
    out = gl.sum(total, 1)
    d = begin + gl.arange(0, R, gl.SliceLayout(1, L))
    gl.store(OUT + d, out.to(OUT.dtype.element_ty))
    # Nothing else may lie where a barrier still is, as it would once these are not used any more.
    full._keep_alive()


def down(
    inner: torch.Tensor,
    weight: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """`out` [1, D] = the sum over a token's choices `experts` [1, k] of what their `weight`
    [E * D, F] makes of `inner` [k * F], by `weights` [1, k]. bfloat16; see `fits`."""
    hidden, (top, width) = out.shape[1], (experts.shape[1], weight.shape[1])
    pdl = dependent_launch(out.device)
    _down_ring[(hidden // ROWS,)](
        tensor_map(weight, ROWS, INPUTS), inner, weights, experts, out,
        D=hidden, F=width, TOP=top, INNER_PAD=next_power_of_2(top * width),
        STAGES=STAGES, PDL=pdl, num_warps=WARPS, launch_pdl=pdl,
    )  # fmt: skip
