"""Linear layers on a CUDA device: few rows by kernels of our own at the rate of memory, many by
torch's product. How few rows are cut is bound at load, by `tiles`."""

from __future__ import annotations

import itertools
from typing import ClassVar

import torch
import torch.nn.functional as F

from tokenspeed_kernels.activation.silu_mul_triton import silu_mul
from tokenspeed_kernels.dequantise import spread
from tokenspeed_kernels.gemm.normed_triton import multiply_normed
from tokenspeed_kernels.gemm.op import Quantised, Unnormed
from tokenspeed_kernels.gemm.quantise_triton import quantise_rows
from tokenspeed_kernels.gemm.small_triton import multiply
from tokenspeed_kernels.gemm.streamed_gluon import stream
from tokenspeed_kernels.gemm.tiles import Cut, Ring, Tile, cuts, normed, whole
from tokenspeed_kernels.launch_triton import is_hopper
from tokenspeed_kernels.weight import RawWeight


class _Product:
    """A weight with its cuts; `gated`: its rows are those of a gate and of an up projection."""

    def __init__(
        self, weight: RawWeight, bias: torch.Tensor | None, gated: bool, float8_rows: bool
    ) -> None:
        assert weight.data.is_contiguous()
        self._format, self._weight, self._scales = weight.format, weight.data, weight.scales
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        self._gated = gated
        hopper = is_hopper(weight.data.device)
        self._cuts = cuts(weight.format, (*weight.shape, gated), hopper, float8_rows)
        rings = any(isinstance(cut, Ring) for _, cut in self._cuts)
        widened = itertools.takewhile(lambda cut: isinstance(cut[1], Tile), self._cuts)
        reads = float8_rows and (self.in_float8 or rings)
        self.float8_from = 1 + max((rows for rows, _ in widened), default=0) if reads else None
        self.normed = normed(weight.format, (*weight.shape, gated), hopper)

    def cut(self, rows: int) -> Cut | None:
        """For so many rows; None where torch's product is faster, or there is nothing to do."""
        if rows:
            for most, cut in self._cuts:
                if rows <= most:
                    return cut
        return None

    @property
    def in_float8(self) -> bool:
        """Whether rows in float8 meet the weight in torch's product."""
        sizes = self._weight.shape
        return self._format == "fp8" and sizes[0] % 16 == sizes[1] % 16 == 0

    def run(self, x: Quantised, cut: Cut, out: torch.Tensor) -> torch.Tensor:
        if isinstance(cut, Tile):
            multiply(x.rows, self._weight, self._bias, out, cut, scales=self._scales,
                     gated=self._gated)  # fmt: skip
        elif self._scales is not None:
            rows, scales = _narrow(x)
            stream(rows, self._weight, self._bias, out, cut, gated=self._gated, x_scales=scales,
                   scales=self._scales)  # fmt: skip
        else:
            stream(x.rows, self._weight, self._bias, out, cut, gated=self._gated)
        return out

    def of_norm(self, x: Unnormed, out: torch.Tensor) -> torch.Tensor:
        assert self.normed is not None
        multiply_normed(x, self._weight, self._bias, out, self.normed)
        return out

    def by_torch(self, x: Quantised, dtype: torch.dtype) -> torch.Tensor:
        """The plain product [T, out] in `dtype`, however many rows."""
        rows, weight = x.rows, self._weight
        if self.in_float8 and len(rows):
            return self._by_row(x, dtype)
        if self._scales is not None:
            weight = (weight.float() * spread(self._scales, (weight.shape[0], weight.shape[1]))).to(
                rows.dtype
            )
        if rows.is_cuda and dtype is torch.float32 and self._bias is None:
            # As the product sums up, without a pass that widens what it rounded.
            return torch.mm(rows, weight.T, out_dtype=dtype)
        return F.linear(rows, weight, self._bias).to(dtype)

    def _by_row(self, x: Quantised, dtype: torch.dtype) -> torch.Tensor:
        """float8 times float8, rows and weights each with their scale."""
        assert self._scales is not None
        rows, scales = _narrow(x)
        by_row = F.ScalingType.RowWise
        product = F.scaled_mm(
            rows, self._weight.T, scales, by_row, self._scales.unsqueeze(0), by_row,
            bias=self._bias, output_dtype=torch.bfloat16, use_fast_accum=True,
        )  # fmt: skip
        return product.to(dtype)


def _narrow(x: Quantised) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows in float8 and their scales."""
    if x.float8 is None or x.scales is None:
        return quantise_rows(x.rows)
    return x.float8, x.scales


def _quantised(x: torch.Tensor | Quantised) -> Quantised:
    return x if isinstance(x, Quantised) else Quantised(x)


class LinearTriton:
    """See `op.Linear`, `op.LinearInParts`, `op.ReadsFloat8` and `op.NormsItself`; bfloat16, fp8
    and fp8_block weights."""

    _float8_rows: ClassVar[bool] = False

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        self._product = _Product(weight, bias, gated=False, float8_rows=self._float8_rows)
        self._out_features = weight.shape[0]
        self.float8_from = self._product.float8_from
        self.norms_itself = self._product.normed is not None

    def __call__(
        self, x: torch.Tensor | Quantised | Unnormed, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        if isinstance(x, Unnormed):
            dtype, device = out_dtype or x.rows.dtype, x.rows.device
            out = torch.empty((1, self._out_features), dtype=dtype, device=device)
            return self._product.of_norm(x, out)
        given = _quantised(x)
        rows = given.rows
        dtype, cut = out_dtype or rows.dtype, self._product.cut(len(rows))
        if cut is None:
            return self._product.by_torch(given, dtype)
        out = torch.empty((len(rows), self._out_features), dtype=dtype, device=rows.device)
        return self._product.run(given, whole(cut), out)

    def parts(
        self, x: torch.Tensor | Quantised | Unnormed, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """See `op.LinearInParts`."""
        if isinstance(x, Unnormed):
            return self(x, out_dtype)
        given = _quantised(x)
        rows = given.rows
        cut = self._product.cut(len(rows))
        if cut is None or cut.splits == 1:
            return self(given, out_dtype)
        shape = (cut.splits, len(rows), self._out_features)
        out = torch.empty(shape, dtype=torch.float32, device=rows.device)
        return self._product.run(given, cut, out)


class LinearFloat8Rows(LinearTriton):
    """The same, where few rows too become float8 before they meet float8 weights."""

    _float8_rows = True


class LinearSiluMulTriton:
    """See `op.LinearSiluMul` and `op.ReadsFloat8`; weights as `LinearTriton`."""

    _float8_rows: ClassVar[bool] = False

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        self._product = _Product(weight, bias, gated=True, float8_rows=self._float8_rows)
        self._width = weight.shape[0] // 2
        self._fuses = bias is None
        self.float8_from = self._product.float8_from

    def __call__(self, x: torch.Tensor | Quantised) -> torch.Tensor:
        given = _quantised(x)
        rows = given.rows
        cut = self._product.cut(len(rows))
        if cut is None or not self._fuses:
            return silu_mul(self._product.by_torch(given, rows.dtype))
        out = torch.empty((len(rows), self._width), dtype=rows.dtype, device=rows.device)
        return self._product.run(given, cut, out)


class LinearSiluMulFloat8Rows(LinearSiluMulTriton):
    """As `LinearFloat8Rows`."""

    _float8_rows = True
