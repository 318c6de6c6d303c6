"""The choice of experts in Triton: one warp per token, the scores in registers.

Scores become integers in their order: across a warp, the largest integer of 32 bits is found by one
instruction, and so is the first of the experts that have it. A chosen one's score is read back from
its integer.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch, next_power_of_2
from tokenspeed_kernels.moe.op import Routing

# Above so many tokens a program has more than one: the device is full anyway.
_FEW_TOKENS = 264
_MANY = 4

# Flips all bits of a negative float but its sign: then floats are in the order of integers.
_REST = tl.constexpr(0x7FFFFFFF)
# Below all floats: what was chosen already, and what is no expert.
_NONE = tl.constexpr(-(1 << 31))


@triton.jit
def _order(choice, there):
    """Integers in the order of `choice`; what is no number comes last."""
    choice = tl.where(choice == choice, choice, float("-inf"))
    bits = choice.to(tl.int32, bitcast=True)
    return tl.where(there, bits ^ ((bits >> 31) & _REST), _NONE)


@triton.jit
def _value(order):
    """The float behind an integer of `_order`."""
    return (order ^ ((order >> 31) & _REST)).to(tl.float32, bitcast=True)


@triton.jit
def _eligible(
    choice, T: tl.constexpr, GROUPS: tl.constexpr, GROUPS_PAD: tl.constexpr,
    SIZE_PAD: tl.constexpr, TOP_GROUPS: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """`choice` [T, GROUPS_PAD * SIZE_PAD] with -inf for experts outside the best groups."""
    grouped = tl.reshape(choice, [T, GROUPS_PAD, SIZE_PAD])
    group = tl.arange(0, GROUPS_PAD)[None, :]
    worth = tl.max(grouped, 2)
    if BIASED:
        place = tl.arange(0, SIZE_PAD)[None, None, :]
        first = tl.argmax(grouped, 2)[:, :, None]
        worth += tl.max(tl.where(place == first, float("-inf"), grouped), 2)
    worth = tl.where(group < GROUPS, worth, float("-inf"))
    eligible = tl.zeros([T, GROUPS_PAD], tl.int1)
    for _ in tl.static_range(TOP_GROUPS):
        best = group == tl.argmax(worth, 1)[:, None]
        eligible = eligible | best
        worth = tl.where(best, float("-inf"), worth)
    closed = tl.where(eligible[:, :, None], grouped, float("-inf"))
    return tl.reshape(closed, [T, GROUPS_PAD * SIZE_PAD])


@triton.jit(do_not_specialize=["tokens"])
def _route(
    LOGITS, BIAS, WEIGHTS, EXPERTS, scale, tokens,
    PARTS: tl.constexpr, E: tl.constexpr, TOP: tl.constexpr, TOP_PAD: tl.constexpr,
    GROUPS: tl.constexpr, GROUPS_PAD: tl.constexpr, SIZE: tl.constexpr, SIZE_PAD: tl.constexpr,
    TOP_GROUPS: tl.constexpr, SCORING: tl.constexpr, RENORMALISE: tl.constexpr,
    BIASED: tl.constexpr, T: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """T tokens of a program. LOGITS [PARTS, tokens, E] are to be added up. Experts lie as
    [GROUPS_PAD, SIZE_PAD], a group of SIZE in a row."""
    i = tl.arange(0, GROUPS_PAD * SIZE_PAD)
    expert = (i // SIZE_PAD * SIZE + i % SIZE_PAD)[None, :]
    there = ((i // SIZE_PAD < GROUPS) & (i % SIZE_PAD < SIZE))[None, :]
    token = tl.program_id(0) * T + tl.arange(0, T)
    live = (token < tokens)[:, None]
    if BIASED:
        bias = tl.load(BIAS + expert, mask=there, other=0.0)
    after_producer(PDL)
    at = LOGITS + token.to(tl.int64)[:, None] * E + expert
    logits = tl.load(at, mask=live & there, other=float("-inf"))
    for part in tl.static_range(1, PARTS):
        logits += tl.load(at + part * tokens * E, mask=live & there, other=0.0)
    # Softmax keeps the order of the logits, and its denominator falls out where the weights are
    # made to sum to 1.
    PLAIN: tl.constexpr = SCORING == "topk_softmax" or (SCORING == "softmax" and not BIASED)
    scores = logits
    if SCORING == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-logits))
    if SCORING == "softmax" and (BIASED or not RENORMALISE):
        highest = tl.max(logits, 1)
        total = tl.sum(tl.exp(logits - highest[:, None]), 1)
        if BIASED:
            scores = tl.exp(logits - highest[:, None]) / total[:, None]
    choice = scores
    if BIASED:
        choice = tl.where(there, scores + bias, float("-inf"))
    if GROUPS > 1:
        choice = _eligible(choice, T, GROUPS, GROUPS_PAD, SIZE_PAD, TOP_GROUPS, BIASED)
    order = _order(choice, there)
    place = tl.arange(0, TOP_PAD)[None, :]
    weights = tl.full([T, TOP_PAD], float("-inf") if PLAIN else 0.0, tl.float32)
    chosen = tl.zeros([T, TOP_PAD], tl.int32)
    for nth in tl.static_range(TOP):
        best = tl.max(order, 1)[:, None]
        first = tl.min(tl.where(order == best, expert, _REST), 1)[:, None]
        mine = expert == first
        order = tl.where(mine, _NONE, order)
        if BIASED:
            weight = tl.sum(tl.where(mine, scores, 0.0), 1)[:, None]
        else:
            weight = _value(best)
        weights = tl.where(place == nth, weight, weights)
        chosen = tl.where(place == nth, first, chosen)
    if SCORING == "softmax" and not BIASED and not RENORMALISE:
        weights = tl.exp(weights - highest[:, None]) / total[:, None]
    elif PLAIN:
        powers = tl.exp(weights - tl.max(weights, 1)[:, None])
        weights = powers / tl.sum(powers, 1)[:, None]
    elif RENORMALISE:
        weights = weights / (tl.sum(weights, 1)[:, None] + 1e-20)
    to = token[:, None] * TOP + place
    tl.store(WEIGHTS + to, weights * scale, mask=live & (place < TOP))
    tl.store(EXPERTS + to, chosen, mask=live & (place < TOP))


def route(
    logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `op.Route`; `logits` may also be [parts, T, E], to be added up in their order."""
    tokens, experts = logits.shape[-2:]
    assert logits.is_contiguous() and logits.dtype is torch.float32
    assert bias is None or bias.dtype is torch.float32
    shape, size = (tokens, routing.top_k), experts // routing.groups
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(shape, dtype=torch.int32, device=logits.device)
    if tokens == 0:
        return weights, chosen
    pdl = dependent_launch(logits.device)
    each = 1 if tokens <= _FEW_TOKENS else _MANY
    _route[(cdiv(tokens, each),)](
        logits, bias, weights, chosen, routing.scale, tokens,
        PARTS=1 if logits.dim() == 2 else logits.shape[0], E=experts, TOP=routing.top_k,
        TOP_PAD=next_power_of_2(routing.top_k), GROUPS=routing.groups,
        GROUPS_PAD=next_power_of_2(routing.groups), SIZE=size,
        SIZE_PAD=next_power_of_2(size), TOP_GROUPS=routing.top_groups,
        SCORING=routing.scoring, RENORMALISE=routing.renormalise, BIASED=bias is not None,
        T=each, PDL=pdl, num_warps=each, launch_pdl=pdl,
    )  # fmt: skip
    return weights, chosen
