"""The gated feed-forward: down(silu(gate(x)) * up(x)), gate and up in one product."""

from __future__ import annotations

import torch

from tokenspeed.layers.kernels import Kernels
from tokenspeed.layers.linear import linear
from tokenspeed.weights.parameter import Weights


class Mlp:
    """The feed-forward of one layer."""

    def __init__(self, weights: Weights, prefix: str, kernels: Kernels) -> None:
        self._gate_up = linear(weights, f"{prefix}gate_up", kernels)
        self._silu_mul = kernels.silu_mul()
        self._down = linear(weights, f"{prefix}down", kernels)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] to [T, hidden]."""
        return self._down(self._silu_mul(self._gate_up(x)))
