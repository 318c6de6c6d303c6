"""Matrices in float8 (e4m3) with float32 scales: one per row, or one per 128 x 128.

A checkpoint has one scale per matrix, per row or per block, in a tensor beside the weight; one for
a whole matrix is repeated for its rows, so that matrices can be joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tokenspeed_kernels.dequantise import spread
from tokenspeed_kernels.weight import E4M3_LARGEST, LEAST_SCALED, SQUARE

from tokenspeed.plan import WeightFormat
from tokenspeed.weights.formats.floats import divided

KEPT = frozenset({WeightFormat.FP8, WeightFormat.FP8_BLOCK})


@dataclass(frozen=True, slots=True)
class Scaled:
    """float8_e4m3fn [out, in] with scales, float32 [out] or [ceil(out / 128), ceil(in / 128)];
    they may still be in host memory."""

    data: torch.Tensor
    scales: torch.Tensor

    @property
    def kept(self) -> WeightFormat:
        return WeightFormat.FP8 if self.scales.dim() == 1 else WeightFormat.FP8_BLOCK

    def floats(self) -> torch.Tensor:
        """float32 [out, in]."""
        scales = self.scales.to(self.data.device)
        return self.data.float() * spread(scales, (self.data.shape[0], self.data.shape[1]))

    def reordered(self, reorder: Callable[[torch.Tensor], torch.Tensor]) -> Scaled | None:
        """With another order of rows; None where a row would come under another scale."""
        rows = len(self.data)
        scales = self.scales
        if scales.dim() == 1:
            scales = reorder(scales)
        else:
            block = torch.arange(rows) // SQUARE
            if not torch.equal(reorder(block), block):
                return None
        bits = reorder(self.data.view(torch.uint8))
        return Scaled(bits.view(torch.float8_e4m3fn), scales)


def scaled(data: torch.Tensor, shape: tuple[int, ...], scale: torch.Tensor) -> Scaled:
    """A stored matrix, `data` uint8 [bytes], and its `scale` in whatever shape it is stored.

    Raises ValueError for a scale that is neither of the matrix, nor of its rows, nor of blocks, or
    that is negative or no number.
    """
    rows, columns = shape
    values = data.view(torch.float8_e4m3fn).view(rows, columns)
    scale = scale.float()
    if not bool((scale.isfinite() & (scale >= 0)).all()):
        raise ValueError("a scale that is negative or no number")
    blocks = (-(-rows // SQUARE), -(-columns // SQUARE))
    if tuple(scale.shape) == blocks:
        return Scaled(values, scale)
    if scale.numel() == 1:
        return Scaled(values, scale.reshape(1).expand(rows).contiguous())
    if scale.numel() == rows and scale.shape[0] == rows:
        return Scaled(values, scale.reshape(rows))
    raise ValueError(f"a scale of shape {list(scale.shape)} for a matrix {rows} x {columns}")


def quantised(floats: torch.Tensor, kept: WeightFormat) -> Scaled:
    """A matrix of floats [out, in] in float8; the largest of each row or block becomes 448."""
    rows, columns = floats.shape
    if kept == WeightFormat.FP8:
        most = floats.abs().amax(1)
    else:
        padded = torch.nn.functional.pad(floats.abs(), (0, -columns % SQUARE, 0, -rows % SQUARE))
        high, wide = padded.shape
        blocks = padded.view(high // SQUARE, SQUARE, wide // SQUARE, SQUARE)
        most = blocks.amax((1, 3))
    scales = divided(most.float().clamp(min=LEAST_SCALED), E4M3_LARGEST)
    over = floats.float() / spread(scales, (rows, columns))
    return Scaled(over.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn), scales)


def joined(pieces: Sequence[Scaled], kept: WeightFormat) -> Scaled:
    """Matrices under one another, as `kept`: as they are where their scales allow it, through
    floats elsewhere."""
    whole = all(piece.data.shape[0] % SQUARE == 0 for piece in pieces[:-1])
    if all(piece.kept == kept for piece in pieces) and (kept == WeightFormat.FP8 or whole):
        bits = torch.cat([piece.data.view(torch.uint8) for piece in pieces])
        scales = torch.cat([piece.scales for piece in pieces])
        return Scaled(bits.view(torch.float8_e4m3fn), scales)
    return quantised(torch.cat([piece.floats() for piece in pieces]), kept)
