"""The kernel of latent attention on sm_90, in Gluon: one warp asks for tiles, warpgroups use them.

The work (q tiles, their parts, where parts go) is that of attend_latent_triton. Heads are few and
latents long, so both products are turned round: with the rows of a q tile (queries and heads) as
columns, the latents of a kv tile, 64 keys, are the left operand of each and are read where the copy
engine put them, once along their values and once along the keys:

    s^T [64, M] = c q^T + r t^T,    o^T [R, M] = o^T e^(m - m') + c^T p^T

Latents in e4m3 meet queries in e4m3: q a = high + low with a scale a for each row, both rounded to
e4m3, so that a query keeps as many bits as bfloat16 has. For the second product two neighbouring
values of a latent are read as one element of 16 bits, as `attend_latent_triton` has it: the
transposing load brings neighbouring keys together, and one instruction widens two to float16. Even
and odd values are then sums of their own.

Who does what: one warp asks for kv tiles, ahead by as many as shared memory holds; a warpgroup
makes scores and weights; one or two others, which share the values, sum them up. So the scores of a
tile are made beside the sums of the one before it.
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tokenspeed_kernels.attention.attend_hopper import share_of
from tokenspeed_kernels.attention.schedule_triton import HEADER
from tokenspeed_kernels.weight import E4M3_LARGEST

# Tokens of a kv tile, which lie in one block.
KEYS = gl.constexpr(64)
_E4M3_MAX = gl.constexpr(E4M3_LARGEST)


@gluon.jit
def _widen(pairs, HIGH: gl.constexpr):
    """float16 of the low or the high byte, an e4m3, of each int16."""
    if HIGH:
        wide = gl.inline_asm_elementwise(
            "{ .reg .b32 b; .reg .b16 l, h; prmt.b32 b, $1, $1, 0x3131; mov.b32 {l, h}, b;"
            " cvt.rn.f16x2.e4m3x2 $0, l; }",
            "=r,r", [pairs], dtype=gl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        wide = gl.inline_asm_elementwise(
            "{ .reg .b32 b; .reg .b16 l, h; prmt.b32 b, $1, $1, 0x2020; mov.b32 {l, h}, b;"
            " cvt.rn.f16x2.e4m3x2 $0, l; }",
            "=r,r", [pairs], dtype=gl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    return wide


@gluon.jit
def _clean(tile, key, seq_len, N: gl.constexpr):
    """Zeroes the tokens of a kv tile from `seq_len` on: whatever they are, 0 times nan is nan."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    n = key + gl.arange(0, KEYS, layout=gl.SliceLayout(1, LOAD))
    for part in gl.static_range(N // 64):
        box = tile.slice(part * 64, 64, 1)
        held = box.load(LOAD)
        box.store(gl.where((n < seq_len)[:, None], held, gl.zeros_like(held)))
    fence_async_shared()


@gluon.jit
def _put_query(
    Q, tile, low, size, head, live, first: gl.constexpr, WIDTH: gl.constexpr, LOAD: gl.constexpr,
):  # fmt: skip
    """Puts WIDTH values of each row, from `first` on, into shared memory: as they are, or over
    `size` as e4m3 in `tile` and what that rounds away in `low`."""
    d = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LOAD))
    q = gl.load(Q + head[:, None] + (first + d)[None, :], mask=live[:, None], other=0.0)
    if tile.dtype.primitive_bitwidth == 8:
        wide = q.to(gl.float32) / size[:, None]
        high = wide.to(tile.dtype)
        tile.store(high)
        low.store((wide - high.to(gl.float32)).to(tile.dtype))
    else:
        tile.store(q)


@gluon.jit
def _load_query(
    Q, q_tile, low_tile, t_tile, t_low_tile, first_query, queries, lane,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, E: gl.constexpr, M: gl.constexpr,
    NARROW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """Puts a q tile into shared memory, and returns 1 / a of each row, 1 where nothing is narrow.
    Of many rows a part at a time: whole, they would need more registers than there are."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    m = gl.arange(0, M, layout=gl.SliceLayout(1, LOAD))
    live = m < queries * G
    head = ((first_query + m // G).to(gl.int64) * H + lane * G + m % G) * (R + E)
    size = gl.full([M], 1.0, gl.float32, layout=gl.SliceLayout(1, LOAD))
    if NARROW:
        d = gl.arange(0, 64, layout=gl.SliceLayout(0, LOAD))
        largest = gl.full([M], 1e-20, gl.float32, layout=gl.SliceLayout(1, LOAD))
        for part in gl.static_range(R // 64 + (0 if SCALED else E // 64)):
            at = Q + head[:, None] + (part * 64 + d)[None, :]
            wide = gl.load(at, mask=live[:, None], other=0.0).to(gl.float32)
            largest = gl.maximum(largest, gl.max(gl.abs(wide), 1))
        size = largest / _E4M3_MAX
    WIDTH: gl.constexpr = R * 16 // M
    for part in gl.static_range(R // WIDTH):
        _put_query(
            Q, q_tile.slice(part * WIDTH, WIDTH, 1), low_tile.slice(part * WIDTH, WIDTH, 1), size,
            head, live, part * WIDTH, WIDTH, LOAD,
        )  # fmt: skip
    _put_query(Q, t_tile, t_low_tile, size, head, live, R, E, LOAD)
    fence_async_shared()
    return size


@gluon.jit
def _scores(
    latent, rope, q_tile, low_tile, t_tile, t_low_tile, size, stored, scale,
    M: gl.constexpr, NARROW: gl.constexpr, SCALED: gl.constexpr, S: gl.constexpr,
    S8: gl.constexpr,
):  # fmt: skip
    """s^T of a kv tile, over log 2. `size`: 1 / a of each column; `stored`: scale of each key."""
    if NARROW:
        s = warpgroup_mma(
            latent, q_tile.permute((1, 0)), gl.zeros([KEYS, M], gl.float32, layout=S8),
            use_acc=False, is_async=True,
        )  # fmt: skip
        s = warpgroup_mma(latent, low_tile.permute((1, 0)), s, is_async=True)
        if SCALED:
            turned = warpgroup_mma(
                rope, t_tile.permute((1, 0)), gl.zeros([KEYS, M], gl.float32, layout=S),
                use_acc=False, is_async=True,
            )  # fmt: skip
            s, turned = warpgroup_mma_wait(0, deps=[s, turned])
            s = gl.convert_layout(s, S) * (stored * scale)[:, None] * size[None, :]
            s += turned * scale
        else:
            s = warpgroup_mma(rope, t_tile.permute((1, 0)), s, is_async=True)
            s = warpgroup_mma(rope, t_low_tile.permute((1, 0)), s, is_async=True)
            s = warpgroup_mma_wait(0, deps=[s])
            s = gl.convert_layout(s, S) * (size * scale)[None, :]
    else:
        s = warpgroup_mma(
            latent, q_tile.permute((1, 0)), gl.zeros([KEYS, M], gl.float32, layout=S),
            use_acc=False, is_async=True,
        )  # fmt: skip
        s = warpgroup_mma(rope, t_tile.permute((1, 0)), s, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s])
        s = s * scale
    return s


@gluon.jit
def _softmax(s, top, total, key, visible):
    """The scores of a kv tile to weights; by how much the sums before it fade; both sides of the
    columns' state."""
    s = gl.where(key[:, None] < visible[None, :], s, float("-inf"))
    higher = gl.maximum(top, gl.max(s, 0))
    # A row may see none of these keys; its maximum stays -inf.
    shift = gl.where(higher == float("-inf"), 0.0, higher)
    fade = gl.exp2(top - shift)
    weight = gl.exp2(s - shift[None, :])
    # The sum over keys, which threads share, is left for the end.
    return weight, fade, higher, total * fade[None, :] + weight


@gluon.jit
def _part_of(SCHEDULE, tile, unit, stop, max_tiles, P: gl.constexpr):
    """The part of the q tile that comes next: begin, end and count in units, first and last kv
    tile, row, first query, queries, keys that the first of them sees. The first units of a q tile,
    as many as there are more than kv tiles, stand for nothing.

    A program reads its first part before the kernel ahead is done; one that has none reads the
    first tile, for which there is always room."""
    columns = SCHEDULE + HEADER + P + 1
    stride = max_tiles + 1
    tile = gl.where(unit < stop, tile, 0)
    before = gl.load(columns + tile)
    count = gl.load(columns + tile + 1) - before
    row = gl.load(columns + stride + tile)
    first_query = gl.load(columns + 2 * stride + tile)
    queries = gl.load(columns + 3 * stride + tile)
    first_visible = gl.load(columns + 4 * stride + tile)
    begin = unit.to(gl.int32) - before
    end = gl.minimum(count, begin + (stop - unit).to(gl.int32))
    spare = count - (first_visible + queries - 1 + KEYS - 1) // KEYS
    first, last = gl.maximum(begin - spare, 0), gl.maximum(end - spare, 0)
    return begin, end, count, first, last, row, first_query, queries, first_visible


@gluon.jit
def _token_of(TABLE, tile, last, BLOCK: gl.constexpr):
    """The first token of a kv tile, or of the last there is."""
    key = gl.minimum(tile, last - 1) * KEYS
    return gl.load(TABLE + key // BLOCK).to(gl.int64) * BLOCK + key % BLOCK


@gluon.jit
def _score(
    Q, SCHEDULE, PART_SUMS, max_tiles, scale, value_scale,
    latents, ropes, scales, pairs, weights, fades, q_tile, low_tile, t_tile, t_low_tile, sizes,
    full, weighed, used,
    H: gl.constexpr, K: gl.constexpr, R: gl.constexpr, E: gl.constexpr, M: gl.constexpr,
    P: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
    NARROW: gl.constexpr, SCALED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The warpgroup of scores and weights. For each kv tile, and once more at the end of a part,
    it leaves a turn in `fades` (by what the sums before it fade) and `weights`."""
    G: gl.constexpr = H // K
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16])
    S8: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 32])
    ROW: gl.constexpr = gl.SliceLayout(0, S)
    KEY: gl.constexpr = gl.SliceLayout(1, S)
    lane = gl.program_id(0) % K
    slot = 2 * (gl.program_id(0) // K)
    tile, unit, stop, _line, _tiles, _whole = share_of(SCHEDULE, P, 1, K)
    begin, end, count, first, last, _row, first_query, queries, first_visible = _part_of(
        SCHEDULE, tile, unit, stop, max_tiles, P
    )
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    turn, left = 0, 0
    m = gl.arange(0, M, layout=ROW)
    n = gl.arange(0, KEYS, layout=KEY)
    while unit < stop:
        own = _load_query(
            Q, q_tile, low_tile, t_tile, t_low_tile, first_query, queries, lane,
            H, G, R, E, M, NARROW, SCALED,
        )  # fmt: skip
        size = gl.full([M], 1.0, gl.float32, layout=ROW)
        if NARROW:
            sizes.store(own)
            size = sizes.load(ROW)
        top = gl.full([M], float("-inf"), gl.float32, layout=ROW)
        total = gl.zeros([KEYS, M], gl.float32, layout=S)
        visible = first_visible + m // G
        seq_len = first_visible + queries - 1
        stored = gl.full([KEYS], 1.0, gl.float32, layout=KEY)
        for kv in range(first, last):
            stage = turn % STAGES
            mbarrier.wait(full.index(stage), turn // STAGES & 1)
            key = kv * KEYS + n
            if SCALED:
                stored = gl.where(key < seq_len, scales.index(stage).load(KEY), 0.0)
            s = _scores(
                latents.index(stage), ropes.index(stage), q_tile, low_tile, t_tile, t_low_tile,
                size, stored, scale, M, NARROW, SCALED, S, S8,
            )  # fmt: skip
            weight, fade, top, total = _softmax(s, top, total, key, visible)
            if SCALED:
                weight = weight * stored[:, None]
            buffer = left % BUFFERS
            mbarrier.wait(used.index(buffer), (left // BUFFERS & 1) ^ 1)
            weights.index(buffer).permute((1, 0)).store(weight.to(weights.dtype))
            fades.index(buffer).store(fade)
            fence_async_shared()
            mbarrier.arrive(weighed.index(buffer), count=1)
            left += 1
            turn += 1
        sums = gl.sum(total, 0)
        whole = (begin == 0) & (end == count)
        buffer = left % BUFFERS
        mbarrier.wait(used.index(buffer), (left // BUFFERS & 1) ^ 1)
        fades.index(buffer).store(gl.where(whole, value_scale / sums, 1.0))
        mbarrier.arrive(weighed.index(buffer), count=1)
        left += 1
        if not whole:
            part = (slot * K + lane).to(gl.int64) * M + m
            live = m < queries * G
            gl.store(PART_SUMS + part * 2, top, mask=live)
            gl.store(PART_SUMS + part * 2 + 1, sums, mask=live)
        unit += end - begin
        tile += (end == count).to(gl.int32)
        slot = 2 * (gl.program_id(0) // K) + 1
        begin, end, count, first, last, _row, first_query, queries, first_visible = _part_of(
            SCHEDULE, tile, unit, stop, max_tiles, P
        )


@gluon.jit
def _store(TO, acc, factor, live, first, R: gl.constexpr, NARROW: gl.constexpr, S: gl.constexpr):
    """Some values of o^T times `factor` [M], from `first` on, to where each row begins, TO [M].
    NARROW: every other one."""
    STEP: gl.constexpr = 2 if NARROW else 1
    half = first + STEP * gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, S))
    at = TO[None, :] + half[:, None]
    there = live[None, :] & (half >= 0)[:, None]
    gl.store(at, (acc * factor[None, :]).to(TO.dtype.element_ty), mask=there)


@gluon.jit
def _add_values(
    latents, pairs, weights, acc, other, OWN: gl.constexpr, HALF: gl.constexpr,
    NARROW: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Adds the weighted values of a kv tile to both halves of a warpgroup's sums."""
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    if NARROW:
        for step in gl.static_range(KEYS // 16):
            two = pairs.slice(step * 16, 16, 0).slice(OWN // 2, HALF, 1)
            two = two.permute((1, 0)).load(A)
            weight = weights.slice(step * 16, 16, 1).permute((1, 0))
            even, odd = _widen(two, False), _widen(two, True)
            if step > 0:
                # Of all steps at once the registers are too many, and the assembler
                # then waits for each product.
                acc, other = warpgroup_mma_wait(0, deps=[acc, other])
            acc = warpgroup_mma(even, weight, acc, is_async=True)
            other = warpgroup_mma(odd, weight, other, is_async=True)
    else:
        weight = weights.permute((1, 0))
        acc = warpgroup_mma(latents.slice(OWN, HALF, 1).permute((1, 0)), weight, acc, is_async=True)
        other = warpgroup_mma(
            latents.slice(OWN + HALF, HALF, 1).permute((1, 0)), weight, other, is_async=True
        )
    acc, other = warpgroup_mma_wait(0, deps=[acc, other])
    return acc, other


@gluon.jit
def _sum_up(
    which: gl.constexpr, SCHEDULE, OUT, PARTS, max_tiles, latents, pairs, weights,
    fades, full, empty, weighed, used,
    H: gl.constexpr, K: gl.constexpr, R: gl.constexpr, M: gl.constexpr, P: gl.constexpr,
    STAGES: gl.constexpr, BUFFERS: gl.constexpr, SHARERS: gl.constexpr,
    NARROW: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """A warpgroup of weighted values: of R / SHARERS of them, in two halves."""
    G: gl.constexpr = H // K
    HALF: gl.constexpr = R // (2 * SHARERS)
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16])
    ROW: gl.constexpr = gl.SliceLayout(0, S)
    OWN: gl.constexpr = which * 2 * HALF
    SHARE: gl.constexpr = pairs.shape[2] // SHARERS
    lane = gl.program_id(0) % K
    slot = 2 * (gl.program_id(0) // K)
    tile, unit, stop, _line, _tiles, _whole = share_of(SCHEDULE, P, 1, K)
    begin, end, count, first, last, _row, first_query, queries, first_visible = _part_of(
        SCHEDULE, tile, unit, stop, max_tiles, P
    )
    if PDL:
        tl.extra.cuda.gdc_wait()
    turn, left = 0, 0
    m = gl.arange(0, M, layout=ROW)
    while unit < stop:
        seq_len = first_visible + queries - 1
        acc = gl.zeros([HALF, M], gl.float32, layout=S)
        other = gl.zeros([HALF, M], gl.float32, layout=S)
        for kv in range(first, last):
            stage = turn % STAGES
            buffer = left % BUFFERS
            mbarrier.wait(full.index(stage), turn // STAGES & 1)
            if (kv + 1) * KEYS > seq_len:
                # Scores, which may be under way, leave these tokens out.
                _clean(
                    pairs.index(stage).slice(which * SHARE, SHARE, 1), kv * KEYS, seq_len, SHARE
                )  # fmt: skip
            mbarrier.wait(weighed.index(buffer), left // BUFFERS & 1)
            fade = fades.index(buffer).load(ROW)
            acc = acc * fade[None, :]
            other = other * fade[None, :]
            acc, other = _add_values(
                latents.index(stage), pairs.index(stage), weights.index(buffer), acc, other,
                OWN, HALF, NARROW, S,
            )  # fmt: skip
            mbarrier.arrive(empty.index(stage), count=1)
            mbarrier.arrive(used.index(buffer), count=1)
            turn += 1
            left += 1
        buffer = left % BUFFERS
        mbarrier.wait(weighed.index(buffer), left // BUFFERS & 1)
        factor = fades.index(buffer).load(ROW)
        mbarrier.arrive(used.index(buffer), count=1)
        left += 1
        live = m < queries * G
        SECOND: gl.constexpr = OWN + (1 if NARROW else HALF)
        if (begin == 0) & (end == count):
            row = OUT + ((first_query + m // G).to(gl.int64) * H + lane * G + m % G) * R
            _store(row, acc, factor, live, OWN, R, NARROW, S)
            _store(row, other, factor, live, SECOND, R, NARROW, S)
        else:
            part = PARTS + ((slot * K + lane).to(gl.int64) * M + m) * R
            _store(part, acc, factor, live, OWN, R, NARROW, S)
            _store(part, other, factor, live, SECOND, R, NARROW, S)
        unit += end - begin
        tile += (end == count).to(gl.int32)
        slot = 2 * (gl.program_id(0) // K) + 1
        begin, end, count, first, last, _row, first_query, queries, first_visible = _part_of(
            SCHEDULE, tile, unit, stop, max_tiles, P
        )


@gluon.jit
def _produce(
    LATENT_MAP, ROPE_MAP, SCALES_MAP, TABLES, SCHEDULE, table_stride, max_tiles, latents, ropes,
    scale_boxes, full, empty,
    K: gl.constexpr, BLOCK: gl.constexpr, P: gl.constexpr, STAGES: gl.constexpr,
    SCALED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The warp that asks for kv tiles, as far ahead as shared memory has room."""
    BYTES: gl.constexpr = (
        LATENT_MAP.block_type.nbytes + ROPE_MAP.block_type.nbytes + (KEYS * 4 if SCALED else 0)
    )
    tile, unit, stop, _line, _tiles, _whole = share_of(SCHEDULE, P, 1, K)
    begin, end, count, first, last, row, _queries, _count, _visible = _part_of(
        SCHEDULE, tile, unit, stop, max_tiles, P
    )
    table = TABLES + row.to(gl.int64) * table_stride
    token = 0
    if (unit < stop) & (first < last):
        token = _token_of(table, first, last, BLOCK).to(gl.int32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    turn = 0
    while unit < stop:
        for kv in range(first, last):
            stage = turn % STAGES
            there = full.index(stage)
            following = _token_of(table, kv + 1, last, BLOCK).to(gl.int32)
            # All were empty at the start: the phase before the first one counts as done.
            mbarrier.wait(empty.index(stage), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(there, BYTES)
            tma.async_copy_global_to_shared(LATENT_MAP, [token, 0], there, latents.index(stage))
            tma.async_copy_global_to_shared(ROPE_MAP, [token, 0], there, ropes.index(stage))
            if SCALED:
                tma.async_copy_global_to_shared(
                    SCALES_MAP, [token // KEYS, 0], there, scale_boxes.index(stage)
                )
            token = following
            turn += 1
        unit += end - begin
        tile += (end == count).to(gl.int32)
        begin, end, count, first, last, row, _queries, _count, _visible = _part_of(
            SCHEDULE, tile, unit, stop, max_tiles, P
        )
        table = TABLES + row.to(gl.int64) * table_stride
        if (unit < stop) & (first < last):
            token = _token_of(table, first, last, BLOCK).to(gl.int32)


@gluon.jit
def _query_tiles(KIND: gl.constexpr, M: gl.constexpr, N: gl.constexpr, TWO: gl.constexpr):
    """Room for N values of each query, and for what rounding takes from them where they are TWO."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, N], KIND)
    tile = gl.allocate_shared_memory(KIND, [M, N], layout)
    low = tile
    if TWO:
        low = gl.allocate_shared_memory(KIND, [M, N], layout)
    return tile, low


@gluon.jit
def _barriers(N: gl.constexpr, ARRIVALS: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for one in gl.static_range(N):
        mbarrier.init(barriers.index(one), count=ARRIVALS)
    return barriers


@gluon.jit(do_not_specialize=["max_tiles", "table_stride"])
def _attend_latent_hopper(
    Q, LATENT_MAP, ROPE_MAP, SCALES_MAP, TABLES, SCHEDULE, OUT, PARTS, PART_SUMS,
    table_stride, max_tiles, scale, value_scale,
    H: gl.constexpr, K: gl.constexpr, R: gl.constexpr, E: gl.constexpr, BLOCK: gl.constexpr,
    M: gl.constexpr, P: gl.constexpr, STAGES: gl.constexpr,
    BUFFERS: gl.constexpr, SHARERS: gl.constexpr, SCALED: gl.constexpr,
    REGISTERS: gl.constexpr, EARLY: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See `attend_latent_triton._attend_latent`. LATENT_MAP and ROPE_MAP are tensor maps over
    [tokens, R] and [tokens, E] with boxes of KEYS tokens, SCALES_MAP one over [tokens / KEYS, KEYS]
    with boxes of a line. BUFFERS: turns of weights; SHARERS: warpgroups that share the values, of
    so many REGISTERS."""
    if PDL and not EARLY:
        tl.extra.cuda.gdc_wait()
    KIND: gl.constexpr = LATENT_MAP.dtype
    NARROW: gl.constexpr = KIND.primitive_bitwidth == 8
    WEIGHT: gl.constexpr = gl.float16 if NARROW else gl.bfloat16
    p_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, KEYS], WEIGHT)
    pair_layout: gl.constexpr = gl.NVMMASharedLayout(
        swizzle_byte_width=LATENT_MAP.layout.swizzle_byte_width, element_bitwidth=16
    )
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    latents = gl.allocate_shared_memory(KIND, [STAGES, KEYS, R], LATENT_MAP.layout)
    pairs = latents._reinterpret(
        gl.int16, [STAGES, KEYS, R * KIND.primitive_bitwidth // 16], pair_layout
    )
    ropes = gl.allocate_shared_memory(ROPE_MAP.dtype, [STAGES, KEYS, E], ROPE_MAP.layout)
    scale_boxes, scales = ropes, ropes
    if SCALED:
        scale_boxes = gl.allocate_shared_memory(gl.float32, [STAGES, 1, KEYS], SCALES_MAP.layout)
        scales = scale_boxes._reinterpret(gl.float32, [STAGES, KEYS], flat)
    weights = gl.allocate_shared_memory(WEIGHT, [BUFFERS, M, KEYS], p_layout)
    fades = gl.allocate_shared_memory(gl.float32, [BUFFERS, M], flat)
    sizes = gl.allocate_shared_memory(gl.float32, [M], flat)
    q_tile, low_tile = _query_tiles(KIND, M, R, NARROW)
    t_tile, t_low_tile = _query_tiles(ROPE_MAP.dtype, M, E, NARROW and not SCALED)
    full, empty = _barriers(STAGES, 1), _barriers(STAGES, SHARERS)
    weighed, used = _barriers(BUFFERS, 1), _barriers(BUFFERS, SHARERS)
    # Constants stay such in lists of arguments only, so these are written out.
    if SHARERS == 1:
        gl.warp_specialize(
            [
                (_score, (Q, SCHEDULE, PART_SUMS, max_tiles, scale, value_scale, latents,
                          ropes, scales, pairs, weights, fades, q_tile, low_tile, t_tile,
                          t_low_tile, sizes, full, weighed, used, H, K, R, E, M, P, STAGES,
                          BUFFERS, NARROW, SCALED, PDL)),
                (_sum_up, (0, SCHEDULE, OUT, PARTS, max_tiles, latents, pairs, weights,
                           fades, full, empty, weighed, used, H, K, R, M, P, STAGES, BUFFERS,
                           SHARERS, NARROW, PDL)),
                (_produce, (LATENT_MAP, ROPE_MAP, SCALES_MAP, TABLES, SCHEDULE, table_stride,
                            max_tiles, latents, ropes, scale_boxes, full, empty, K, BLOCK, P,
                            STAGES, SCALED, PDL)),
            ],
            [4, 1], [REGISTERS, 40],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_score, (Q, SCHEDULE, PART_SUMS, max_tiles, scale, value_scale, latents,
                          ropes, scales, pairs, weights, fades, q_tile, low_tile, t_tile,
                          t_low_tile, sizes, full, weighed, used, H, K, R, E, M, P, STAGES,
                          BUFFERS, NARROW, SCALED, PDL)),
                (_sum_up, (0, SCHEDULE, OUT, PARTS, max_tiles, latents, pairs, weights,
                           fades, full, empty, weighed, used, H, K, R, M, P, STAGES, BUFFERS,
                           SHARERS, NARROW, PDL)),
                (_sum_up, (1, SCHEDULE, OUT, PARTS, max_tiles, latents, pairs, weights,
                           fades, full, empty, weighed, used, H, K, R, M, P, STAGES, BUFFERS,
                           SHARERS, NARROW, PDL)),
                (_produce, (LATENT_MAP, ROPE_MAP, SCALES_MAP, TABLES, SCHEDULE, table_stride,
                            max_tiles, latents, ropes, scale_boxes, full, empty, K, BLOCK, P,
                            STAGES, SCALED, PDL)),
            ],
            [4, 4, 1], [REGISTERS, REGISTERS, 40],
        )  # fmt: skip
