"""Linear by torch's own product, in the dtype of the weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tokenspeed_kernels.weight import RawWeight


class LinearTorch:
    """See `op.Linear`. Float weights; `x` is cast to their dtype where it differs, so float32
    activations meet bfloat16 weights in a bfloat16 product."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        self._weight = weight.data
        self._bias = None if bias is None else bias.to(weight.data.dtype)

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        return F.linear(x.to(self._weight.dtype), self._weight, self._bias).to(out_dtype or x.dtype)
