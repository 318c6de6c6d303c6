"""Linear layers and the embedding: a weight bound to the kernel that the plan chose for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.layers.kernels import Kernels
from tokenspeed.weights.parameter import Weights

if TYPE_CHECKING:
    from tokenspeed_kernels.gemm.op import Linear


def linear(weights: Weights, name: str, kernels: Kernels) -> Linear:
    """The matrix `name` with its bias, if it has one, as a callable [T, in] -> [T, out]."""
    weight = weights.matrices[name]
    return kernels.linear(weight.format)(weight, weights.vectors.get(f"{name}.bias"))
