"""Gated activation of a feed-forward: silu(gate) * up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class SiluMul(Protocol):
    """`x` [T, 2 I], gate first, to a new [T, I]: gate / (1 + exp(-gate)) * up."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...
