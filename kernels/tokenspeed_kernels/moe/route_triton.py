"""The choice of experts in Triton: one program per token, the scores in registers."""

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
    LOGITS, BIAS, WEIGHTS, EXPERTS, scale,
    E: tl.constexpr, TOP: tl.constexpr, TOP_PAD: tl.constexpr, GROUPS: tl.constexpr,
    GROUPS_PAD: tl.constexpr, SIZE: tl.constexpr, SIZE_PAD: tl.constexpr,
    TOP_GROUPS: tl.constexpr, SCORING: tl.constexpr, RENORMALISE: tl.constexpr,
    BIASED: tl.constexpr, PDL: tl.constexpr,
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

    k = tl.arange(0, TOP_PAD)
    weights = tl.zeros([TOP_PAD], tl.float32)
    chosen = tl.zeros([TOP_PAD], tl.int32)
    flat = tl.reshape(choice, [GROUPS_PAD * SIZE_PAD])
    flat_scores = tl.reshape(scores, [GROUPS_PAD * SIZE_PAD])
    flat_expert = tl.reshape(expert, [GROUPS_PAD * SIZE_PAD])
    index = tl.arange(0, GROUPS_PAD * SIZE_PAD)
    for turn in tl.static_range(TOP):
        here = index == tl.argmax(flat, 0)
        weight = tl.sum(tl.where(here, flat_scores, 0.0), 0)
        weights = tl.where(k == turn, weight, weights)
        chosen = tl.where(k == turn, tl.sum(tl.where(here, flat_expert, 0), 0), chosen)
        flat = tl.where(here, float("-inf"), flat)
    if SCORING == "topk_softmax":
        powers = tl.exp(weights - tl.max(tl.where(k < TOP, weights, float("-inf")), 0))
        powers = tl.where(k < TOP, powers, 0.0)
        weights = powers / tl.sum(powers, 0)
    elif RENORMALISE:
        weights = weights / (tl.sum(weights, 0) + 1e-20)
    tl.store(WEIGHTS + token * TOP + k, weights * scale, mask=k < TOP)
    # Of logits that are no numbers any place may be the best: it stays an expert's.
    tl.store(EXPERTS + token * TOP + k, tl.minimum(chosen, E - 1), mask=k < TOP)


def route(
    logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `op.Route`."""
    tokens, experts = logits.shape
    assert logits.is_contiguous() and logits.dtype is torch.float32
    assert bias is None or bias.dtype is torch.float32
    shape, size = (tokens, routing.top_k), experts // routing.groups
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(shape, dtype=torch.int32, device=logits.device)
    if tokens == 0:
        return weights, chosen
    pdl = dependent_launch(logits.device)
    _route[(tokens,)](
        logits, bias, weights, chosen, routing.scale, E=experts, TOP=routing.top_k,
        TOP_PAD=triton.next_power_of_2(routing.top_k), GROUPS=routing.groups,
        GROUPS_PAD=triton.next_power_of_2(routing.groups), SIZE=size,
        SIZE_PAD=triton.next_power_of_2(size), TOP_GROUPS=routing.top_groups,
        SCORING=routing.scoring, RENORMALISE=routing.renormalise, BIASED=bias is not None,
        PDL=pdl, num_warps=1 if experts <= 128 else 4, launch_pdl=pdl,
    )  # fmt: skip
    return weights, chosen
