"""Mixture of experts in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tokenspeed_kernels.dequantise import dequantise_part
from tokenspeed_kernels.moe.op import Routing, Shared
from tokenspeed_kernels.weight import RawWeight

# Slope of the sigmoid in the clamped activation.
ALPHA = 1.702


def route(
    logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `op.Route`."""
    if routing.scoring == "softmax":
        scores = logits.softmax(-1)
    elif routing.scoring == "sigmoid":
        scores = logits.sigmoid()
    else:
        scores = logits
    choice = scores if bias is None else scores + bias
    if routing.groups > 1:
        choice = _eligible(choice, routing, best=1 if bias is None else 2)
    experts = choice.topk(routing.top_k, dim=-1).indices
    weights = scores.gather(-1, experts)
    if routing.scoring == "topk_softmax":
        weights = weights.softmax(-1)
    elif routing.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * routing.scale, experts.int()


def _eligible(choice: torch.Tensor, routing: Routing, best: int) -> torch.Tensor:
    """`choice` with -inf for experts outside the best groups."""
    grouped = choice.view(len(choice), routing.groups, -1)
    worth = grouped.topk(best, dim=-1).values.sum(-1)
    chosen = worth.topk(routing.top_groups, dim=-1).indices
    closed = torch.ones_like(worth, dtype=torch.bool).scatter_(-1, chosen, False)
    return grouped.masked_fill(closed.unsqueeze(-1), float("-inf")).view(choice.shape)


def activate(gate: torch.Tensor, up: torch.Tensor, clamp: float | None) -> torch.Tensor:
    """The gated activation of `op.Experts`."""
    if clamp is None:
        return F.silu(gate) * up
    gate = gate.clamp(max=clamp)
    return (up.clamp(-clamp, clamp) + 1) * gate * torch.sigmoid(ALPHA * gate)


class ExpertsReference:
    """See `op.Experts`: expert by expert, in float32. Weights stay as they are kept; those of the
    chosen experts are dequantised exactly, each time."""

    def __init__(
        self,
        gate_up: RawWeight,
        down: RawWeight,
        num_experts: int,
        gate_up_bias: torch.Tensor | None,
        down_bias: torch.Tensor | None,
        clamp: float | None,
        shared: Shared | None = None,
    ) -> None:
        self._gate_up, self._down = gate_up, down
        self._rows = [weight.shape[0] // num_experts for weight in (gate_up, down)]
        self._gate_up_bias = None if gate_up_bias is None else gate_up_bias.view(num_experts, -1)
        self._down_bias = None if down_bias is None else down_bias.view(num_experts, -1)
        self._clamp, self._shared = clamp, shared

    def __call__(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Reads the choice on the host: not for graph capture."""
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        if self._shared is not None:
            out += self._shared.compute(x)
        for expert in sorted(set(experts.flatten().tolist())):
            tokens, places = (experts == expert).nonzero(as_tuple=True)
            gate_up = _product(x[tokens], self._gate_up, self._gate_up_bias, expert, self._rows[0])
            gate, up = gate_up.chunk(2, dim=-1)
            inner = activate(gate, up, self._clamp).to(x.dtype)
            made = _product(inner, self._down, self._down_bias, expert, self._rows[1])
            out.index_add_(0, tokens, made * weights[tokens, places].unsqueeze(-1))
        return out.to(x.dtype)


def _product(
    x: torch.Tensor, stack: RawWeight, bias: torch.Tensor | None, expert: int, rows: int
) -> torch.Tensor:
    """x W^T + bias of one expert, whose matrix has so many rows; float32."""
    added = None if bias is None else bias[expert].float()
    weight = dequantise_part(stack, expert * rows, (expert + 1) * rows)
    return F.linear(x.float(), weight, added)
