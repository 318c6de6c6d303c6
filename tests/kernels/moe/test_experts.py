"""The experts compute what each of them would alone."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.moe.reference import ExpertsReference
from tokenspeed_kernels.weight import RawWeight

EXPERTS, HIDDEN, INNER, TOP = 5, 16, 12, 2


def raw(data: torch.Tensor) -> RawWeight:
    flat = data.flatten(0, 1)
    return RawWeight("float32", (flat.shape[0], flat.shape[1]), flat)


@pytest.mark.parametrize("clamp", [None, 0.5])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tokens", [1, 9])
def test_experts_are_the_definition(tokens: int, biased: bool, clamp: float | None) -> None:
    torch.manual_seed(0)
    gate_up, down = torch.randn(EXPERTS, 2 * INNER, HIDDEN), torch.randn(EXPERTS, HIDDEN, INNER)
    bias = torch.randn(EXPERTS, 2 * INNER) if biased else torch.zeros(EXPERTS, 2 * INNER)
    out_bias = torch.randn(EXPERTS, HIDDEN) if biased else torch.zeros(EXPERTS, HIDDEN)
    layer = ExpertsReference(
        raw(gate_up), raw(down), EXPERTS, bias if biased else None, out_bias if biased else None,
        clamp,
    )  # fmt: skip
    x, weights = torch.randn(tokens, HIDDEN), torch.rand(tokens, TOP)
    chosen = torch.stack([torch.randperm(EXPERTS)[:TOP] for _ in range(tokens)]).int()
    made = layer(x, weights, chosen)
    for token in range(tokens):
        total = torch.zeros(HIDDEN)
        for place in range(TOP):
            e = int(chosen[token, place])
            gate, up = (gate_up[e] @ x[token] + bias[e]).chunk(2)
            if clamp is None:
                inner = gate * torch.sigmoid(gate) * up
            else:
                gate = gate.clamp(max=clamp)
                inner = gate * torch.sigmoid(1.702 * gate) * (up.clamp(-clamp, clamp) + 1)
            total += weights[token, place] * (down[e] @ inner + out_bias[e])
        torch.testing.assert_close(made[token], total, atol=1e-4, rtol=1e-4)


def test_nobody_comes() -> None:
    layer = ExpertsReference(
        raw(torch.randn(EXPERTS, 2 * INNER, HIDDEN)), raw(torch.randn(EXPERTS, HIDDEN, INNER)),
        EXPERTS, None, None, None,
    )  # fmt: skip
    none = torch.zeros(0, TOP)
    assert layer(torch.zeros(0, HIDDEN), none, none.int()).shape == (0, HIDDEN)
