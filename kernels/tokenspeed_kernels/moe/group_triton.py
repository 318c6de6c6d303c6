"""Pairs of token and expert, sorted by expert into blocks of equally many.

Pair t * k + j is the j-th choice of token t. A block holds up to `block` pairs of one expert; the
places that it does not fill hold -1. How many blocks there are is known on the device alone, so a
kernel over blocks is launched for the most there can be, and those past the end do nothing.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch

# Pairs times experts that one program holds at once.
_HELD = 1 << 14
# More pairs than this are sorted by torch, with many programs.
ONE_PROGRAM = 4096


@dataclass(frozen=True, slots=True)
class Groups:
    """`pairs` int32 [most * block], the pair at each place of each block; `experts` int32 [most],
    the expert of each block; `count` int32 [1], how many blocks there are."""

    block: int
    most: int
    pairs: torch.Tensor
    experts: torch.Tensor
    count: torch.Tensor


@triton.jit
def _group(
    CHOSEN, PAIRS, EXPERTS, COUNT, num_pairs, most,
    E: tl.constexpr, E_PAD: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    after_producer(PDL)
    e = tl.arange(0, E_PAD)
    i = tl.arange(0, CHUNK)
    counts = tl.zeros([E_PAD], tl.int32)
    for start in range(0, num_pairs, CHUNK):
        chosen = tl.load(CHOSEN + start + i, mask=start + i < num_pairs, other=E_PAD)
        counts += tl.sum((chosen[:, None] == e[None, :]).to(tl.int32), 0)
    blocks = (counts + BLOCK - 1) // BLOCK
    ends = tl.cumsum(blocks, 0)
    total = tl.sum(blocks, 0)
    tl.store(COUNT, total)
    for start in range(0, most, CHUNK):
        at = start + i
        expert = tl.sum((ends[None, :] <= at[:, None]).to(tl.int32), 1)
        tl.store(EXPERTS + at, tl.minimum(expert, E - 1), mask=at < most)
    for start in range(0, total * BLOCK, CHUNK):
        tl.store(PAIRS + start + i, -1, mask=start + i < total * BLOCK)
    tl.debug_barrier()
    base = (ends - blocks) * BLOCK
    for start in range(0, num_pairs, CHUNK):
        live = start + i < num_pairs
        chosen = tl.load(CHOSEN + start + i, mask=live, other=E_PAD)
        mine = (chosen[:, None] == e[None, :]).to(tl.int32)
        place = tl.sum(mine * (base[None, :] + tl.cumsum(mine, 0) - 1), 1)
        tl.store(PAIRS + place, start + i, mask=live)
        base += tl.sum(mine, 0)


def group(chosen: torch.Tensor, num_experts: int, block: int) -> Groups:
    """`chosen` int32 [T, k] to blocks."""
    num_pairs, device = chosen.numel(), chosen.device
    # Every expert that is chosen may leave one block partly empty.
    most = min(num_pairs, num_pairs // block + num_experts)
    pairs = torch.empty(most * block, dtype=torch.int32, device=device)
    experts = torch.empty(most, dtype=torch.int32, device=device)
    count = torch.empty(1, dtype=torch.int32, device=device)
    groups = Groups(block, most, pairs, experts, count)
    if num_pairs > ONE_PROGRAM:
        _sorted(chosen, num_experts, groups)
        return groups
    padded = triton.next_power_of_2(num_experts)
    pdl = dependent_launch(device)
    _group[(1,)](
        chosen, pairs, experts, count, num_pairs, most, E=num_experts, E_PAD=padded, BLOCK=block,
        CHUNK=min(max(16, triton.next_power_of_2(num_pairs)), _HELD // padded), PDL=pdl,
        num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
    return groups


def _sorted(chosen: torch.Tensor, num_experts: int, groups: Groups) -> None:
    """The same by torch's sort; reads nothing on the host."""
    device, block = chosen.device, groups.block
    # Clamped, since what a kernel that is only compiled left there is no expert.
    values, order = torch.sort(chosen.flatten().clamp(0, num_experts - 1), stable=True)
    edges = torch.arange(num_experts + 1, device=device, dtype=torch.int32)
    starts = torch.searchsorted(values, edges)
    blocks = (starts.diff() + block - 1) // block
    ends = blocks.cumsum(0)
    groups.count.copy_(ends[-1:])
    at = torch.arange(groups.most, device=device)
    groups.experts.copy_(torch.searchsorted(ends, at, right=True).clamp(max=num_experts - 1))
    groups.pairs.fill_(-1)
    expert = values.long()
    place = (ends - blocks)[expert] * block + torch.arange(len(values), device=device)
    groups.pairs[place - starts[expert]] = order.int()
