"""Attention of rows of one query behind a window that one tile holds, in Triton.

A program takes a row and a kv head, and all keys of the window as one tile, wherever in a block it
begins: nothing is looped over, split or joined. All keys and values but the newest were there
before this step, so a program has them on their way before it waits for the kernel that writes the
newest: what is left after that is one row of each, two products and a softmax.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.attention.around_triton import facts, places
from tokenspeed_kernels.attention.schedule_triton import HEADER
from tokenspeed_kernels.launch_triton import start_next, wait_for_producer

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _with_newest(old, CACHE, newest, is_newest, D: tl.constexpr, COMPUTE: tl.constexpr):
    row = tl.load(CACHE + newest + tl.arange(0, D)).to(COMPUTE)
    return tl.where(is_newest[:, None], row[None, :], old.to(COMPUTE))


@triton.jit(do_not_specialize=["table_stride", "max_tiles"])
def _attend_window(
    Q, K_CACHE, V_CACHE, TABLES, SCHEDULE, SINKS, OUT,
    table_stride, max_tiles, scale, v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr, COMPUTE: tl.constexpr,
    EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """EARLY: the schedule, which is of one program, the tables and all keys of earlier steps are
    complete once this starts. `scale` is over log 2."""
    G: tl.constexpr = H // K
    tile, head = tl.program_id(0) // K, tl.program_id(0) % K
    start_next(PDL)
    if not EARLY:
        wait_for_producer(PDL)
    columns = SCHEDULE + HEADER + 2
    tiles = tl.load(SCHEDULE)
    _, _, row, first_query, queries, visible = facts(
        columns, max_tiles + 1, tl.minimum(tile, tl.maximum(tiles - 1, 0))
    )
    here = tile < tiles
    visible = tl.where(here, visible, 0)
    if HAS_SINKS:
        sink = tl.load(SINKS + head * G + tl.arange(0, M) % G).to(tl.float32) * (_LOG2_E / scale)
    key = tl.maximum(visible - WINDOW, 0) + tl.arange(0, N)
    block = tl.load(TABLES + row * table_stride + key // BLOCK, mask=key < visible, other=0)
    token = block.to(tl.int64) * BLOCK + key % BLOCK
    element = (token * (K * D) + head * D)[:, None] + tl.arange(0, D)[None, :]
    newest = visible - 1
    # Past the row's end may be anything, and 0 times nan is nan.
    k = tl.load(K_CACHE + element, mask=(key < newest)[:, None], other=0.0)
    v = tl.load(V_CACHE + element, mask=(key < newest)[:, None], other=0.0)
    last = tl.sum(tl.where(key == newest, token, 0), 0) * (K * D) + head * D
    if EARLY:
        wait_for_producer(PDL)
    if here:
        live, place = places(first_query, queries, head, H, G, D, M)
        q = tl.load(Q + place, mask=live[:, None], other=0.0).to(COMPUTE)
        keys = _with_newest(k, K_CACHE, last, key == newest, D, COMPUTE)
        values = _with_newest(v, V_CACHE, last, key == newest, D, COMPUTE)
        s = tl.where((key < visible)[None, :], tl.dot(q, tl.trans(keys)), float("-inf"))
        top = tl.max(s, 1)
        if HAS_SINKS:
            top = tl.maximum(top, sink)
        weight = tl.exp2(tl.fma(s, scale, -(top * scale)[:, None]))
        total = tl.sum(weight, 1)
        if HAS_SINKS:
            total += tl.exp2((sink - top) * scale)
        out = tl.dot(weight.to(COMPUTE), values) * (v_scale / total)[:, None]
        tl.store(OUT + place, out.to(OUT.dtype.element_ty), mask=live[:, None])
