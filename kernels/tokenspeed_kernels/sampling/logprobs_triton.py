"""Log-probability of the chosen token and the k largest, in Triton, without a sort."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch
from tokenspeed_kernels.sampling import reference
from tokenspeed_kernels.sampling.gather_triton import (
    gather_few,
    gather_groups,
    kth_key,
    kth_of_runs,
)
from tokenspeed_kernels.sampling.op import Logprobs
from tokenspeed_kernels.sampling.scan_triton import (
    GROUP,
    OWN_STATS,
    TURN,
    Scan,
    launch_scan,
    order_key,
)

# Beyond this many the ranking loses to a sort.
_MOST = 32
_CAPACITY = _MOST * GROUP
# Groups, and tokens, whose ranks are found in registers.
_FEW = 64


@triton.jit
def _list(
    VALUES, IDS, VALUES_OUT, IDS_OUT, norm, found, k, vocab_size,
    BLOCK: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Writes the k largest of `found` gathered tokens, the lowest id first among equals."""
    for begin in range(0, found, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        mine = index < found
        x = tl.load(VALUES + index, mask=mine, other=float("-inf"))
        token = tl.load(IDS + index, mask=mine, other=vocab_size)
        above = tl.zeros([TURN, BLOCK], tl.int32)
        for start in range(0, found, TURN):
            other = start + tl.arange(0, TURN)[:, None]
            y = tl.load(VALUES + other, mask=other < found, other=float("-inf"))
            t = tl.load(IDS + other, mask=other < found, other=vocab_size)
            first = (y > x[None, :]) | ((y == x[None, :]) & (t < token[None, :]))
            above += (first & (other < found)).to(tl.int32)
        rank = tl.sum(above, 0)
        ranked = mine & (rank < k)
        tl.store(VALUES_OUT + rank, x - norm, mask=ranked)
        tl.store(IDS_OUT + rank, token, mask=ranked)


@triton.jit
def _list_few(x, token, VALUES_OUT, IDS_OUT, norm, k):
    """As `_list`, of tokens in their order, -inf behind the last."""
    slot = tl.arange(0, x.shape[0])
    y, before = x[:, None], slot[:, None] < slot[None, :]
    rank = tl.sum(((y > x[None, :]) | ((y == x[None, :]) & before)).to(tl.int32), 0)
    tl.store(VALUES_OUT + rank, x - norm, mask=rank < k)
    tl.store(IDS_OUT + rank, token, mask=rank < k)


@triton.jit
def list_logprobs(
    LOGITS, ROWS, CHOSEN, GROUPS, CHUNKS, GROUP_IDS, VALUES, IDS,
    CHOSEN_OUT, VALUES_OUT, IDS_OUT, vocab_size, row_stride, chunks, groups, k,
    CHUNKS_PAD: tl.constexpr, GROUPS_PAD: tl.constexpr, GROUP: tl.constexpr, STATS: tl.constexpr,
    FEW: tl.constexpr, CAPACITY: tl.constexpr, RUNS: tl.constexpr, TURN: tl.constexpr,
    BESIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BESIDE: the kernel before this one is the draw, of which only CHOSEN is needed, at the end.
    It waits for the scan before it starts this one, which therefore may go on at once."""
    place = tl.program_id(0)
    if not BESIDE:
        after_producer(PDL)
    row = tl.load(ROWS + place)
    c, g = tl.arange(0, CHUNKS_PAD), tl.arange(0, GROUPS_PAD)
    stats = CHUNKS + (row * chunks + c) * STATS
    peaks = tl.load(stats, mask=c < chunks, other=float("-inf"))
    sums = tl.load(stats + 1, mask=c < chunks, other=0.0)
    live = g < groups
    maxima = tl.load(GROUPS + row * groups + g, mask=live, other=float("-inf"))
    largest = tl.max(peaks, 0)
    # Not a number where a logit is none, so that no log-probability is one.
    mass = tl.sum(sums * tl.exp(peaks - largest), 0)
    norm = largest + tl.log(mass)
    logits = LOGITS + row.to(tl.int64) * row_stride
    if k > 0:
        keys = tl.where(live, order_key(maxima), -2147483648)
        list_ids = GROUP_IDS + place * groups
        values, ids = VALUES + place * CAPACITY, IDS + place * CAPACITY
        values_out, ids_out = VALUES_OUT + place * k, IDS_OUT + place * k
        listed = False
        if k * 2 <= RUNS:
            bound = kth_of_runs(keys, k, RUNS)
            chosen = live & (keys >= bound)
            x, token, over = gather_few((logits,), chosen, bound, vocab_size, GROUP, FEW)
            listed = tl.max(over.to(tl.int32), 0) == 0
            if listed:
                _list_few(x, token, values_out, ids_out, norm, k)
        if not listed:
            wanted = tl.minimum(k, groups)
            bound = kth_key(keys, wanted, 32)
            # Groups above the k-th maximum, then of those equal to it the lowest, k in all.
            above, equal = live & (keys > bound), live & (keys == bound)
            room = wanted - tl.sum(above.to(tl.int32), 0)
            chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= room))
            tl.store(list_ids + tl.cumsum(chosen.to(tl.int32), 0) - 1, g, mask=chosen)
            tl.debug_barrier()
            # With every group listed there is no bound.
            bound = tl.where(k < groups, bound, -2147483648)
            found, _ = gather_groups(
                (logits,), list_ids, values, ids, wanted, bound, vocab_size, largest, 1.0,
                GROUP, CAPACITY, TURN,
            )  # fmt: skip
            tl.debug_barrier()
            _list(values, ids, values_out, ids_out, norm, found, k, vocab_size, FEW, TURN)
    if BESIDE:
        after_producer(PDL)
    tl.store(CHOSEN_OUT + place, tl.load(logits + tl.load(CHOSEN + row)) - norm)


def list_scanned(
    logits: torch.Tensor, scan: Scan, rows: torch.Tensor, chosen: torch.Tensor, k: int, beside: bool
) -> Logprobs:
    """Of int64 `rows` [N] of logits [B, V] that were scanned, with int32 `chosen` [B]. `beside`:
    what was launched last is the draw of `chosen`."""
    device, count = logits.device, len(rows)
    if k > _MOST:
        return reference.log_softmax_topk(logits[rows], chosen[rows], k)
    out = Logprobs(
        torch.empty(count, device=device), torch.empty((count, k), device=device),
        torch.empty((count, k), dtype=torch.int32, device=device),
    )  # fmt: skip
    if count:
        pdl = dependent_launch(device)
        list_logprobs[(count,)](
            logits, rows, chosen, scan.maxima, scan.stats, *scan.room(count, _CAPACITY), *out,
            scan.vocab_size, logits.stride(0), scan.chunks, scan.groups, k,
            **scan.constants | {"FEW": _FEW}, STATS=OWN_STATS, CAPACITY=_CAPACITY, TURN=TURN,
            BESIDE=beside, PDL=pdl, num_warps=8, launch_pdl=pdl,
        )  # fmt: skip
    return out


def log_softmax_topk(logits: torch.Tensor, chosen: torch.Tensor, k: int) -> Logprobs:
    """See `op.LogSoftmaxTopk`."""
    if k > _MOST or not len(logits):
        return reference.log_softmax_topk(logits, chosen, k)
    scan = Scan(logits, OWN_STATS)
    launch_scan(logits, None, None, None, scan)
    rows = torch.arange(len(logits), device=logits.device)
    return list_scanned(logits, scan, rows, chosen, k, False)
