"""Linear in torch: the product in float32 over exactly dequantised weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tokenspeed_kernels.dequantise import dequantise
from tokenspeed_kernels.weight import RawWeight


class LinearReference:
    """See `op.Linear`."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        self._weight = dequantise(weight)
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        return F.linear(x.float(), self._weight, self._bias).to(out_dtype or x.dtype)


class LinearSiluMulReference:
    """See `op.LinearSiluMul`."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        self._linear = LinearReference(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._linear(x, torch.float32).chunk(2, dim=-1)
        return (F.silu(gate) * up).to(x.dtype)
