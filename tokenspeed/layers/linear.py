"""Linear layers and the embedding: a weight bound to the kernel that the plan chose for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from tokenspeed_kernels.gemm.op import LinearInParts, NormsItself, ReadsFloat8

from tokenspeed.layers.kernels import Kernels
from tokenspeed.weights.parameter import Weights

if TYPE_CHECKING:
    from tokenspeed_kernels.gemm.op import Linear


# From rows [T, in], also in float8 where it has a use for them, to [T, out] of an `out_dtype`.
Product = Callable[..., torch.Tensor]


def linear(weights: Weights, name: str, kernels: Kernels) -> Linear:
    """The matrix `name`, which is taken, with its bias, if it has one, as a callable [T, in] ->
    [T, out]."""
    weight = weights.take(name)
    return kernels.linear(weight.format)(weight, weights.vectors.get(f"{name}.bias"))


def linear_before(reader: str, weights: Weights, name: str, kernels: Kernels) -> Product:
    """As `linear`, for a result that only the op `reader` reads: where its kernel adds up float32
    parts [parts, T, out], the product may leave that to it."""
    made = linear(weights, name, kernels)
    if kernels.fusions.takes_parts(reader) and isinstance(made, LinearInParts):
        return made.parts
    return cast("Product", made)


def float8_from(product: object) -> int | None:
    """The fewest rows of which the product has a use for float8, None if it never has: see
    `Quantised`."""
    product = _itself(product)
    return product.float8_from if isinstance(product, ReadsFloat8) else None


def norms_itself(product: object) -> bool:
    """Whether the product takes one row whose norm was not made: see `Unnormed`."""
    product = _itself(product)
    return isinstance(product, NormsItself) and product.norms_itself


def _itself(product: object) -> object:
    """Of one in parts the product."""
    return getattr(product, "__self__", product)
