"""Routing: the choice of experts and their weights, token by token in plain Python."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tokenspeed_kernels.moe.op import Routing
from tokenspeed_kernels.moe.reference import route

EXPERTS = 12


def by_hand(
    logits: list[float], bias: list[float] | None, routing: Routing
) -> tuple[dict[int, float], set[int]]:
    """Weights by expert, and the experts."""
    if routing.scoring == "softmax":
        total = sum(math.exp(logit) for logit in logits)
        scores = [math.exp(logit) / total for logit in logits]
    elif routing.scoring == "sigmoid":
        scores = [1 / (1 + math.exp(-logit)) for logit in logits]
    else:
        scores = logits
    choice = [s + b for s, b in zip(scores, bias or [0.0] * len(scores), strict=True)]
    size = len(choice) // routing.groups
    groups = [range(g * size, (g + 1) * size) for g in range(routing.groups)]
    best = 1 if bias is None else 2
    worth = [sum(sorted((choice[e] for e in group), reverse=True)[:best]) for group in groups]
    order = sorted(range(routing.groups), key=lambda g: -worth[g])[: routing.top_groups]
    open_to = [expert for g in order for expert in groups[g]]
    chosen = sorted(open_to, key=lambda e: -choice[e])[: routing.top_k]
    weights = {expert: scores[expert] for expert in chosen}
    if routing.scoring == "topk_softmax":
        total = sum(math.exp(w) for w in weights.values())
        weights = {e: math.exp(w) / total for e, w in weights.items()}
    elif routing.renormalise:
        total = sum(weights.values())
        weights = {e: w / total for e, w in weights.items()}
    return {e: w * routing.scale for e, w in weights.items()}, set(chosen)


CASES = [
    (Routing(top_k=k, scoring=s, renormalise=r, scale=c, groups=g, top_groups=t), biased)
    for (k, s), r, c, (g, t), biased in itertools.product(
        ((1, "softmax"), (3, "softmax"), (3, "sigmoid"), (4, "topk_softmax")),
        (False, True),
        (1.0, 2.5),
        ((1, 1), (3, 2)),
        (False, True),
    )
]


@pytest.mark.parametrize(("routing", "biased"), CASES)
def test_route_is_the_definition(routing: Routing, biased: bool) -> None:
    torch.manual_seed(0)
    logits = torch.randn(7, EXPERTS)
    bias = torch.randn(EXPERTS) if biased else None
    weights, experts = route(logits, bias, routing)
    assert weights.dtype == torch.float32
    assert experts.dtype == torch.int32
    for row in range(7):
        expected, chosen = by_hand(
            logits[row].tolist(), None if bias is None else bias.tolist(), routing
        )
        assert set(experts[row].tolist()) == chosen
        for weight, expert in zip(weights[row].tolist(), experts[row].tolist(), strict=True):
            assert weight == pytest.approx(expected[expert], rel=1e-5, abs=1e-6)
