"""Linear layers on a CUDA device: few rows by kernels of our own at the rate of memory, many by
torch's product. How few rows are cut is bound at load, by `tiles`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tokenspeed_kernels.activation.silu_mul_triton import silu_mul
from tokenspeed_kernels.dequantise import spread
from tokenspeed_kernels.gemm.quantise_triton import quantise_rows
from tokenspeed_kernels.gemm.small_triton import multiply
from tokenspeed_kernels.gemm.streamed_gluon import stream
from tokenspeed_kernels.gemm.tiles import Cut, Ring, cuts, whole
from tokenspeed_kernels.launch_triton import is_hopper
from tokenspeed_kernels.weight import RawWeight


class _Product:
    """A weight with its cuts; `gated`: its rows are those of a gate and of an up projection."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None, gated: bool) -> None:
        assert weight.data.is_contiguous()
        self._format, self._weight, self._scales = weight.format, weight.data, weight.scales
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        self._gated = gated
        hopper = is_hopper(weight.data.device)
        self._cuts = cuts(weight.format, (*weight.shape, gated), hopper)

    def cut(self, rows: int) -> Cut | None:
        """For so many rows; None where torch's product is faster, or there is nothing to do."""
        if rows:
            for most, cut in self._cuts:
                if rows <= most:
                    return cut
        return None

    def run(self, x: torch.Tensor, cut: Cut, out: torch.Tensor) -> torch.Tensor:
        if isinstance(cut, Ring):
            stream(x, self._weight, self._bias, out, cut, gated=self._gated)
        else:
            multiply(x, self._weight, self._bias, out, cut, scales=self._scales,
                     gated=self._gated)  # fmt: skip
        return out

    def by_torch(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The plain product [T, out] in `dtype`, however many rows."""
        sizes = self._weight.shape
        if self._format == "fp8" and len(x) and sizes[0] % 16 == sizes[1] % 16 == 0:
            return self._by_row(x, dtype)
        weight = self._weight
        if self._scales is not None:
            weight = (weight.float() * spread(self._scales, (weight.shape[0], weight.shape[1]))).to(
                x.dtype
            )
        return F.linear(x, weight, self._bias).to(dtype)

    def _by_row(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """float8 times float8, rows and weights each with their scale."""
        assert self._scales is not None
        rows, scales = quantise_rows(x)
        by_row = F.ScalingType.RowWise
        product = F.scaled_mm(
            rows, self._weight.T, scales, by_row, self._scales.unsqueeze(0), by_row,
            bias=self._bias, output_dtype=torch.bfloat16, use_fast_accum=True,
        )  # fmt: skip
        return product.to(dtype)


class LinearTriton:
    """See `op.Linear` and `op.LinearInParts`; bfloat16, fp8 and fp8_block weights."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        self._product = _Product(weight, bias, gated=False)
        self._out_features = weight.shape[0]
        self._splits = bias is None

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        dtype, cut = out_dtype or x.dtype, self._product.cut(x.shape[0])
        if cut is None:
            return self._product.by_torch(x, dtype)
        out = torch.empty((x.shape[0], self._out_features), dtype=dtype, device=x.device)
        return self._product.run(x, whole(cut), out)

    def parts(self, x: torch.Tensor) -> torch.Tensor:
        """See `op.LinearInParts`."""
        cut = self._product.cut(x.shape[0])
        if cut is None or cut.splits == 1 or not self._splits:
            return self(x)
        shape = (cut.splits, x.shape[0], self._out_features)
        return self._product.run(x, cut, torch.empty(shape, dtype=torch.float32, device=x.device))


class LinearSiluMulTriton:
    """See `op.LinearSiluMul`; weights as `LinearTriton`."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        self._product = _Product(weight, bias, gated=True)
        self._width = weight.shape[0] // 2
        self._fuses = bias is None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        cut = self._product.cut(x.shape[0])
        if cut is None or not self._fuses:
            return silu_mul(self._product.by_torch(x, x.dtype))
        out = torch.empty((x.shape[0], self._width), dtype=x.dtype, device=x.device)
        return self._product.run(x, cut, out)
