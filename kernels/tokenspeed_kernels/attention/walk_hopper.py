"""The loop over kv tiles of attention by warpgroups with roles on sm_90, in Gluon.

Two warpgroups own 64 rows of a q tile each; a warp of a third asks the copy engine for kv tiles,
ahead by as many as shared memory holds, and never computes.

A kv tile of a warpgroup, j counted from the end of its part, where the masked ones are:

              o *= e^(m - m') of the tile before, and its weights to bfloat16
    start     s_j = q k_j^T                                 on the matrix units
    start     o += p_(j-1) v_(j-1)
    wait for s_j;  m' = max(m, max s_j),  p_j = e^(s_j - m'),  l' = l e^(m - m') + sum p_j
    wait for o

so the exponentials of one tile run beside the product of the one before it, and beside all products
of the other warpgroup. Weights pass from turn to turn in float32: as pairs of bfloat16 they are
taken apart and put together again at each.
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Rows of a warpgroup; tokens and dimensions of a box.
ROWS = gl.constexpr(64)
BOX = gl.constexpr(64)


@gluon.jit
def _softmax(
    s, top, total, scale, visible, first_key,
    N: gl.constexpr, MASKED: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    """The scores of a kv tile to weights; also by how much the sums before it fade."""
    if MASKED:
        key = first_key + gl.arange(0, N, layout=gl.SliceLayout(0, L))
        s = gl.where(key[None, :] < visible[:, None], s, float("-inf"))
    # A lane has two scores of each eight: over the eights first, which are chains of their own.
    highest = gl.max(gl.max(s.reshape([ROWS, N // 8, 8]), 1), 1)
    higher = gl.maximum(top, gl.convert_layout(highest, gl.SliceLayout(1, L)))
    shift = higher * scale
    if MASKED:
        # A row may see none of these keys; its maximum stays -inf.
        shift = gl.where(higher == float("-inf"), 0.0, shift)
    fade = gl.exp2(top * scale - shift)
    weight = gl.exp2(s * scale - shift[:, None])
    sums = gl.sum(weight.reshape([ROWS, N // 8, 8]), 1)
    total = total * gl.convert_layout(fade, gl.SliceLayout(1, sums.type.layout))[:, None] + sums
    return weight, fade, higher, total


@gluon.jit
def _eighths(total, N: gl.constexpr, L: gl.constexpr):
    """Sums of rows as `_softmax` adds them up: in eight parts, of which each lane has two."""
    parts = gl.sum(gl.zeros([ROWS, N], gl.float32, layout=L).reshape([ROWS, N // 8, 8]), 1)
    return parts + gl.convert_layout(total * 0.125, gl.SliceLayout(1, parts.type.layout))[:, None]


@gluon.jit
def _scores(
    q, q_turned, k_tiles, turned_tiles, stage, N: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Starts the product with a kv tile, and with the part of its keys that all heads share."""
    s = warpgroup_mma(
        q, k_tiles.index(stage).permute((1, 0)),
        gl.zeros([ROWS, N], gl.float32, layout=S), use_acc=False, is_async=True,
    )  # fmt: skip
    if turned_tiles is not None:
        s = warpgroup_mma(q_turned, turned_tiles.index(stage).permute((1, 0)), s, is_async=True)
    return s


@gluon.jit
def _fold(
    q, q_turned, weight, fade, acc, top, total, k_tiles, turned_tiles, v_tiles, k_full, v_full,
    k_empty, v_empty, turn, more, which: gl.constexpr, orders, fold, scale, visible, first_key,
    N: gl.constexpr, MASKED: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    L: gl.constexpr, W: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Starts the product of kv tile `turn`, whose keys are there, and that of the weights before
    it; folds both in. `turn` counts all kv tiles of the program, `fold` those that came here;
    `more`: another one follows."""
    stage = turn % STAGES
    previous = (turn - 1) % STAGES
    if TURNS:
        mbarrier.wait(orders.index(which), (fold ^ which ^ 1) & 1)
    # First what no product waits for: a warp issues its products only as fast as they run, and
    # whatever stands between them keeps the matrix units waiting.
    mbarrier.wait(v_full.index(previous), (turn - 1) // STAGES & 1)
    acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, L))[:, None]
    narrow = gl.convert_layout(weight.to(gl.bfloat16), W)
    s = _scores(q, q_turned, k_tiles, turned_tiles, stage, N, S)
    sums = warpgroup_mma(narrow, v_tiles.index(previous), acc, is_async=True)
    if TURNS:
        mbarrier.arrive(orders.index(1 - which), count=1)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(stage), count=1)
    weight, fade, top, total = _softmax(s, top, total, scale, visible, first_key, N, MASKED, S)
    # Between the exponentials and the end of the product: the assembler moves the end ahead of
    # them unless a branch stands in its way, and then they no longer run beside the product.
    mbarrier.wait(k_full.index((turn + 1) % STAGES), (turn + 1) // STAGES & 1, pred=more)
    acc = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(v_empty.index(previous), count=1)
    return weight, fade, acc, top, total


@gluon.jit
def walk(
    q, q_turned, acc, top, total, first, last, whole, turn, fold, which: gl.constexpr,
    k_tiles, turned_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders, scale, visible,
    N: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    L: gl.constexpr, W: gl.constexpr, S: gl.constexpr, q_empty=None,
):  # fmt: skip
    """Folds kv tiles last - 1 down to first, of which there is one at least: the last one alone,
    then those down to `whole` with a mask, then the others. `q_empty` hears when `q` has been
    read."""
    stage = turn % STAGES
    end_turn = turn + last - first
    mbarrier.wait(k_full.index(stage), turn // STAGES & 1)
    s = _scores(q, q_turned, k_tiles, turned_tiles, stage, N, S)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_empty.index(stage), count=1)
    total = _eighths(total, N, S)
    weight, fade, top, total = _softmax(s, top, total, scale, visible, (last - 1) * N, N, True, S)
    turn += 1
    mbarrier.wait(k_full.index(turn % STAGES), turn // STAGES & 1, pred=turn < end_turn)
    for back in range(last - 1 - whole):
        weight, fade, acc, top, total = _fold(
            q, q_turned, weight, fade, acc, top, total, k_tiles, turned_tiles, v_tiles,
            k_full, v_full, k_empty, v_empty, turn, turn + 1 < end_turn, which, orders, fold,
            scale, visible, (last - 2 - back) * N, N, True, STAGES, TURNS, L, W, S,
        )  # fmt: skip
        turn += 1
        fold += 1
    for _ in range(whole - first):
        weight, fade, acc, top, total = _fold(
            q, q_turned, weight, fade, acc, top, total, k_tiles, turned_tiles, v_tiles,
            k_full, v_full, k_empty, v_empty, turn, turn + 1 < end_turn, which, orders, fold,
            scale, visible, 0, N, False, STAGES, TURNS, L, W, S,
        )  # fmt: skip
        turn += 1
        fold += 1
    if q_empty is not None:
        mbarrier.arrive(q_empty, count=1)
    stage = (turn - 1) % STAGES
    mbarrier.wait(v_full.index(stage), (turn - 1) // STAGES & 1)
    acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, L))[:, None]
    narrow = gl.convert_layout(weight.to(gl.bfloat16), W)
    sums = warpgroup_mma(narrow, v_tiles.index(stage), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(v_empty.index(stage), count=1)
    total = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, S))
    return acc, top, total, turn, fold
