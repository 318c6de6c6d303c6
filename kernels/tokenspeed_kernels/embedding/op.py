"""Embedding: one row of a table per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from tokenspeed_kernels.weight import RawWeight


class Embedding(Protocol):
    """Built with the table [V, D] and the dtype of the activations (float32
    where left out). Called with `tokens` [T]
    int32, each in [0, V), gives a new [T, D] of that dtype. The table is kept as it is: it may
    share memory with an output projection."""

    def __init__(self, weight: RawWeight, out_dtype: torch.dtype = ...) -> None: ...

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor: ...
