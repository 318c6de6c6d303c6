"""Linear layers: y = x W^T + bias, the weight bound once at load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from tokenspeed_kernels.weight import RawWeight


class Linear(Protocol):
    """Built with the weight [out, in] and a bias [out] or None; may repack and then does not
    keep the raw data. Called with `x` [T, in] gives a new [T, out] in `out_dtype`, which is the
    dtype of `x` where left out (the output projection asks for float32)."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None: ...

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor: ...
