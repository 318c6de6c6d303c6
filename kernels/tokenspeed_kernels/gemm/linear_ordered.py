"""Linear layers on Hopper whose sums keep one order, however many rows there are.

Each output is the sum over the inputs in order, of one part of them or of two, by the same matrix
instructions for one row as for thousands: how a weight is split depends on its shape alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tokenspeed_kernels.activation.silu_mul_triton import silu_mul
from tokenspeed_kernels.gemm.streamed_gluon import stream
from tokenspeed_kernels.gemm.tiles import Ring, cuts
from tokenspeed_kernels.launch_triton import cdiv
from tokenspeed_kernels.weight import RawWeight

# Weights with fewer tiles of outputs are split over the inputs, to keep a device busy.
_BUSY = 128
_MANY = Ring(64, 6)


class _OrderedProduct:
    """A bfloat16 weight; `gated`: its rows are those of a gate and of an up projection."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None, gated: bool) -> None:
        assert weight.data.is_contiguous() and weight.data.dtype is torch.bfloat16
        self._weight, self._gated = weight.data, gated
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        out_features, in_features = weight.shape
        tiles = cdiv(out_features, Ring.outputs)
        few = not gated and bias is None and tiles < _BUSY and in_features % (2 * _MANY.inputs) == 0
        self.splits = 2 if few else 1
        # Stages and the inputs of a turn do not change the order, so they may be those measured.
        measured = cuts(weight.format, (out_features, in_features, gated), hopper=True)
        self._rings = [(rows, cut) for rows, cut in measured if isinstance(cut, Ring)]

    def run(self, x: torch.Tensor, out: torch.Tensor, splits: int) -> torch.Tensor:
        rows, in_features = x.shape
        if rows:
            ring = next((ring for most, ring in self._rings if rows <= most), _MANY)
            if in_features % (splits * ring.inputs):
                ring = _MANY
            ring = replace(ring, splits=splits)
            stream(x, self._weight, self._bias, out, ring, gated=self._gated)
        return out


class LinearOrdered:
    """See `op.Linear` and `op.LinearInParts`; bfloat16 weights."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        self._product = _OrderedProduct(weight, bias, gated=False)
        self._out_features = weight.shape[0]

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        dtype = out_dtype or x.dtype
        out = torch.empty((x.shape[0], self._out_features), dtype=dtype, device=x.device)
        return self._product.run(x, out, 1)

    def parts(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        """See `op.LinearInParts`."""
        splits = self._product.splits
        if splits == 1:
            return self(x, out_dtype)
        shape = (splits, x.shape[0], self._out_features)
        return self._product.run(
            x, torch.empty(shape, dtype=torch.float32, device=x.device), splits
        )


class LinearSiluMulOrdered:
    """See `op.LinearSiluMul`; weights as `LinearOrdered`."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        self._fuses = bias is None
        self._product = _OrderedProduct(weight, bias, gated=self._fuses)
        self._width = weight.shape[0] // (2 if self._fuses else 1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty((x.shape[0], self._width), dtype=x.dtype, device=x.device)
        made = self._product.run(x, out, 1)
        return made if self._fuses else silu_mul(made)
