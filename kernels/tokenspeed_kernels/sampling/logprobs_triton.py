"""Log-probability of the chosen token and the k largest, in Triton, without a sort."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch
from tokenspeed_kernels.sampling import reference
from tokenspeed_kernels.sampling.sample_triton import gather_groups, kth_key
from tokenspeed_kernels.sampling.scan_triton import CHUNK, GROUP, STATS, order_key, scan

# Beyond this many the ranking loses to a sort.
_MOST = 32
_CAPACITY = _MOST * GROUP


@triton.jit
def _log_softmax_topk(
    LOGITS, CHOSEN, GROUPS, CHUNKS, GROUP_IDS, VALUES, IDS, CHOSEN_OUT, VALUES_OUT, IDS_OUT,
    vocab_size, row_stride, chunks, groups, k,
    CHUNKS_PAD: tl.constexpr, GROUPS_PAD: tl.constexpr, GROUP: tl.constexpr,
    STATS: tl.constexpr, CAPACITY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    after_producer(PDL)
    c = tl.arange(0, CHUNKS_PAD)
    stats = CHUNKS + (row * chunks + c) * STATS
    peaks = tl.load(stats, mask=c < chunks, other=float("-inf"))
    sums = tl.load(stats + 1, mask=c < chunks, other=0.0)
    largest = tl.max(peaks, 0)
    mass = tl.sum(tl.where(peaks > float("-inf"), sums * tl.exp(peaks - largest), 0.0), 0)
    norm = largest + tl.log(mass)
    logits = LOGITS + row.to(tl.int64) * row_stride
    tl.store(CHOSEN_OUT + row, tl.load(logits + tl.load(CHOSEN + row)) - norm)
    if k > 0:
        g = tl.arange(0, GROUPS_PAD)
        live = g < groups
        keys = order_key(tl.load(GROUPS + row * groups + g, mask=live, other=float("-inf")))
        keys = tl.where(live, keys, -2147483648)
        wanted = tl.minimum(k, groups)
        bound = kth_key(keys, wanted, 32)
        # Groups above the k-th maximum, then of those equal to it the lowest, k in all.
        above = live & (keys > bound)
        equal = live & (keys == bound)
        room = wanted - tl.sum(above.to(tl.int32), 0)
        chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= room))
        place = tl.cumsum(chosen.to(tl.int32), 0) - 1
        list_ids = GROUP_IDS + row * groups
        tl.store(list_ids + place, g, mask=chosen)
        tl.debug_barrier()
        values, ids = VALUES + row * CAPACITY, IDS + row * CAPACITY
        # With every group listed there is no bound.
        bound = tl.where(k < groups, bound, -2147483648)
        found, _ = gather_groups(
            logits, list_ids, values, ids, wanted, bound, vocab_size, largest, 1.0,
            GROUP, CAPACITY, 32,
        )  # fmt: skip
        tl.debug_barrier()
        for begin in range(0, found, 256):
            index = begin + tl.arange(0, 256)
            mine = index < found
            x = tl.load(values + index, mask=mine, other=float("-inf"))
            token = tl.load(ids + index, mask=mine, other=vocab_size)
            rank = tl.zeros([256], tl.int32)
            for start in range(0, found, 32):
                other = start + tl.arange(0, 32)
                y = tl.load(values + other, mask=other < found, other=float("-inf"))[None, :]
                t = tl.load(ids + other, mask=other < found, other=vocab_size)[None, :]
                first = (y > x[:, None]) | ((y == x[:, None]) & (t < token[:, None]))
                rank += tl.sum((first & (other < found)[None, :]).to(tl.int32), 1)
            ranked = mine & (rank < k)
            tl.store(VALUES_OUT + row * k + rank, x - norm, mask=ranked)
            tl.store(IDS_OUT + row * k + rank, token, mask=ranked)


def log_softmax_topk(
    logits: torch.Tensor, chosen: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `op.LogSoftmaxTopk`."""
    if k > _MOST:
        return reference.log_softmax_topk(logits, chosen, k)
    rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and logits.dtype is torch.float32
    device = logits.device
    chosen_out = torch.empty(rows, dtype=torch.float32, device=device)
    values_out = torch.empty((rows, k), dtype=torch.float32, device=device)
    ids_out = torch.empty((rows, k), dtype=torch.int32, device=device)
    if rows == 0:
        return chosen_out, values_out, ids_out
    chunks = triton.cdiv(vocab_size, CHUNK)
    groups = chunks * (CHUNK // GROUP)
    sizes = [rows * groups, rows * chunks * STATS, rows * groups] + [rows * _CAPACITY] * 2
    workspace = torch.empty(sum(sizes), dtype=torch.int32, device=device)
    maxima, stats, group_ids, values, ids = workspace.split(sizes)
    maxima, stats, values = (t.view(torch.float32) for t in (maxima, stats, values))
    pdl = dependent_launch(device)
    scan[(rows, chunks)](
        logits, None, None, None, None, None, None, maxima, stats, vocab_size, logits.stride(0),
        CHUNK=CHUNK, GROUP=GROUP, STATS=STATS, DRAW=False, PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
    _log_softmax_topk[(rows,)](
        logits, chosen, maxima, stats, group_ids, values, ids, chosen_out, values_out, ids_out,
        vocab_size, logits.stride(0), chunks, groups, k,
        CHUNKS_PAD=triton.next_power_of_2(chunks), GROUPS_PAD=triton.next_power_of_2(groups),
        GROUP=GROUP, STATS=STATS, CAPACITY=_CAPACITY, PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
    return chosen_out, values_out, ids_out
