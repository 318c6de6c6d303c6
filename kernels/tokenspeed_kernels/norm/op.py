"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, statistics in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from tokenspeed_kernels.gemm.op import Quantised


class RmsNorm(Protocol):
    """`x` [T, D] and `weight` [D] of one dtype to a new [T, D]; `x` is left alone."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...


class AddRmsNorm(Protocol):
    """residual += x in place, then the norm of the residual to a new [T, D].

    All of one dtype. The norm reads the sum as it was rounded into `residual`.
    """

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor: ...


class AddRmsNormFloat8(Protocol):
    """`AddRmsNorm`, whose result comes in float8 as well, each row over a scale of its own."""

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> Quantised: ...
