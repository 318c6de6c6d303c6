"""The gated feed-forward: down(silu(gate(x)) * up(x)), gate and up in one product."""

from __future__ import annotations

from typing import cast

import torch
from tokenspeed_kernels.gemm.op import Quantised

from tokenspeed.layers.kernels import Kernels
from tokenspeed.layers.linear import Product, float8_from, linear, linear_before
from tokenspeed.weights.parameter import Weights


class Mlp:
    """The feed-forward of one layer. `reader`: the op that reads its result and nobody else does;
    see `linear_before`."""

    norms_itself = False

    def __init__(self, weights: Weights, prefix: str, kernels: Kernels, reader: str = "") -> None:
        self._up, self.float8_from = _gated(weights, f"{prefix}gate_up", kernels)
        name = f"{prefix}down"
        self._down = (
            linear_before(reader, weights, name, kernels)
            if reader
            else linear(weights, name, kernels)
        )

    def __call__(self, x: torch.Tensor | Quantised) -> torch.Tensor:
        """[T, hidden] to [T, hidden], or to parts of it that the reader adds up."""
        return self._down(self._up(x))


def _gated(weights: Weights, name: str, kernels: Kernels) -> tuple[Product, int | None]:
    """silu(gate(x)) * up(x): one op where the plan has one for the weight's format. Also from how
    many rows on it reads float8."""
    fused = kernels.fusions.linear_silu_mul(weights.matrices[name].format)
    if fused is not None:
        made = fused(weights.take(name), weights.vectors.get(f"{name}.bias"))
        return cast("Product", made), float8_from(made)
    product, silu_mul = cast("Product", linear(weights, name, kernels)), kernels.silu_mul()
    return lambda x: silu_mul(product(x)), float8_from(product)
