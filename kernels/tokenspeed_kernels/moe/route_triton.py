"""The choice of experts in Triton: one program per token, the scores in registers.

An expert is chosen by its rank, the number of experts ahead of it: all are counted at once, where
finding the best, then the next one and so on would be a chain of reductions.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch
from tokenspeed_kernels.moe.op import Routing


@triton.jit
def _route(
    LOGITS, BIAS, WEIGHTS, EXPERTS, scale, part_stride,
    E: tl.constexpr, TOP: tl.constexpr, GROUPS: tl.constexpr,
    GROUPS_PAD: tl.constexpr, SIZE: tl.constexpr, SIZE_PAD: tl.constexpr,
    TOP_GROUPS: tl.constexpr, SCORING: tl.constexpr, RENORMALISE: tl.constexpr,
    BIASED: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Scores lie as [GROUPS_PAD, SIZE_PAD], a group of SIZE experts in a row."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_PAD)
    place = tl.arange(0, SIZE_PAD)
    expert = group[:, None] * SIZE + place[None, :]
    there = (group < GROUPS)[:, None] & (place < SIZE)[None, :]
    if BIASED:
        bias = tl.load(BIAS + expert, mask=there, other=0.0)
    after_producer(PDL)
    logits = tl.load(LOGITS + token * E + expert, mask=there, other=float("-inf"))
    for part in tl.static_range(1, PARTS):
        logits += tl.load(LOGITS + part * part_stride + token * E + expert, mask=there, other=0.0)
    if SCORING == "softmax":
        best = tl.max(tl.max(logits, 1), 0)
        powers = tl.exp(logits - best)
        scores = powers / tl.sum(tl.sum(powers, 1), 0)
    elif SCORING == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        scores = logits
    choice = scores
    if BIASED:
        choice = scores + bias
    choice = tl.where(there, choice, float("-inf"))
    if GROUPS > 1:
        worth = tl.max(choice, 1)
        if BIASED:
            first = tl.argmax(choice, 1)
            worth += tl.max(tl.where(place[None, :] == first[:, None], float("-inf"), choice), 1)
        eligible = tl.zeros([GROUPS_PAD], tl.int1)
        for _ in tl.static_range(TOP_GROUPS):
            best_group = tl.argmax(worth, 0)
            eligible = eligible | (group == best_group)
            worth = tl.where(group == best_group, float("-inf"), worth)
        choice = tl.where(eligible[:, None], choice, float("-inf"))

    EXPERTS_PAD: tl.constexpr = GROUPS_PAD * SIZE_PAD
    flat = tl.reshape(choice, [EXPERTS_PAD])
    flat_scores = tl.reshape(scores, [EXPERTS_PAD])
    flat_expert = tl.reshape(expert, [EXPERTS_PAD])
    # What is no number comes last of the experts, and padding after all of them.
    flat = tl.where(flat == flat, flat, float("-inf"))
    index = tl.arange(0, EXPERTS_PAD)
    order = tl.where(tl.reshape(there, [EXPERTS_PAD]), index, index + EXPERTS_PAD)
    CHUNK: tl.constexpr = min(64 if EXPERTS_PAD <= 128 else 32, EXPERTS_PAD)
    chunks = tl.arange(0, EXPERTS_PAD // CHUNK)[:, None]
    rank = tl.zeros([EXPERTS_PAD], tl.int32)
    for chunk in range(EXPERTS_PAD // CHUNK):
        there_of = chunks == chunk
        others = tl.max(
            tl.where(there_of, tl.reshape(flat, [EXPERTS_PAD // CHUNK, CHUNK]), float("-inf")), 0
        )
        places = tl.max(tl.where(there_of, tl.reshape(order, [EXPERTS_PAD // CHUNK, CHUNK]), 0), 0)
        ahead = (others[None, :] > flat[:, None]) | (
            (others[None, :] == flat[:, None]) & (places[None, :] < order[:, None])
        )
        rank += tl.sum(ahead.to(tl.int32), 1)
    chosen = rank < TOP
    weights = flat_scores
    if SCORING == "topk_softmax":
        powers = tl.exp(weights - tl.max(tl.where(chosen, weights, float("-inf")), 0))
        weights = powers / tl.sum(tl.where(chosen, powers, 0.0), 0)
    elif RENORMALISE:
        weights = weights / (tl.sum(tl.where(chosen, weights, 0.0), 0) + 1e-20)
    tl.store(WEIGHTS + token * TOP + rank, weights * scale, mask=chosen)
    tl.store(EXPERTS + token * TOP + rank, flat_expert, mask=chosen)


def route(
    logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `op.Route`. `logits` may also be [parts, T, E], to be added up in their order."""
    tokens, experts = logits.shape[-2:]
    assert logits.is_contiguous() and logits.dtype is torch.float32
    assert bias is None or bias.dtype is torch.float32
    shape, size = (tokens, routing.top_k), experts // routing.groups
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(shape, dtype=torch.int32, device=logits.device)
    if tokens == 0:
        return weights, chosen
    pdl = dependent_launch(logits.device)
    _route[(tokens,)](
        logits, bias, weights, chosen, routing.scale, tokens * experts, E=experts,
        TOP=routing.top_k, GROUPS=routing.groups,
        GROUPS_PAD=triton.next_power_of_2(routing.groups), SIZE=size,
        SIZE_PAD=triton.next_power_of_2(size), TOP_GROUPS=routing.top_groups,
        SCORING=routing.scoring, RENORMALISE=routing.renormalise, BIASED=bias is not None,
        PARTS=1 if logits.dim() == 2 else logits.shape[0], PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
    return weights, chosen
