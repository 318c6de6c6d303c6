"""Matrices of 4-bit values, two a byte, with a scale for each group of inputs of a row.

A row is self-contained, so rows can be joined and reordered as bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from tokenspeed_kernels.dequantise import E2M1, dequantise_nibbles
from tokenspeed_kernels.weight import NIBBLE_GROUPS

from tokenspeed.plan import WeightFormat
from tokenspeed.weights.formats.floats import divided

KEPT = frozenset(WeightFormat(name) for name in NIBBLE_GROUPS)
# The e8m0 that stands for no number.
_NO_NUMBER = 255
# From here on an e4m3 is no number, or negative.
_NO_E4M3 = 127
_LARGEST_E2M1, _LARGEST_E4M3 = 6.0, 448.0
# Numbers from which on the next e2m1 is nearer.
_BETWEEN = tuple((low + high) / 2 for low, high in pairwise(E2M1[:8]))
# A row of zeros has a scale that divides.
_LEAST = 1e-20


@dataclass(frozen=True, slots=True)
class Nibbles:
    """`data` uint8 [out, in / 2] and `scales` [out, in / group] in the format's own type; of NVFP4
    `row_scales` float32 [out]."""

    format: WeightFormat
    data: torch.Tensor
    scales: torch.Tensor
    row_scales: torch.Tensor | None = None

    def floats(self) -> torch.Tensor:
        """float32 [out, in], exact, of NVFP4 rounded once."""
        return dequantise_nibbles(self.format, self.data, self.scales, self.row_scales)

    def reordered(self, reorder: Callable[[torch.Tensor], torch.Tensor]) -> Nibbles:
        """With another order of rows."""
        rows = None if self.row_scales is None else reorder(self.row_scales)
        return Nibbles(self.format, reorder(self.data), reorder(self.scales), rows)


def nibbles(
    stored_format: str,
    shape: tuple[int, ...],
    data: torch.Tensor,
    scales: torch.Tensor,
    global_scale: float | None = None,
) -> Nibbles:
    """A stored matrix [out, in] or stack [n, in, out], whose rows come one after the other; both
    tensors are bytes as they lie in the file. `global_scale`: what all its numbers are multiplied
    with.

    Raises ValueError for a scale that is no number.
    """
    kept = WeightFormat(stored_format)
    columns = shape[1]
    groups = columns // NIBBLE_GROUPS[kept]
    if kept == WeightFormat.MXFP4:
        sound = not bool((scales == _NO_NUMBER).any())
    elif kept == WeightFormat.NVFP4:
        # The lower seven bits of what is no number are all set; the eighth is the sign, also of 0.
        sound = not bool((scales >= _NO_E4M3).any())
    else:
        scales = scales.view(torch.bfloat16)
        sound = bool((scales.isfinite() & (scales >= 0)).all())
    if not sound:
        raise ValueError("a scale that is negative or no number")
    rows = None
    if global_scale is not None:
        if not (math.isfinite(global_scale) and global_scale >= 0):
            raise ValueError("a global scale that is negative or no number")
        rows = torch.full((data.numel() // (columns // 2),), global_scale, device=data.device)
    return Nibbles(kept, data.view(-1, columns // 2), scales.view(-1, groups), rows)


def nvfp4(floats: torch.Tensor) -> Nibbles:
    """A matrix of floats [out, in] as NVFP4: the largest group of each row gets the largest scale,
    the largest number of each group comes to about 6; numbers go to the nearest."""
    groups = floats.float().view(len(floats), -1, NIBBLE_GROUPS[WeightFormat.NVFP4])
    most = divided(groups.abs().amax(-1), _LARGEST_E2M1)
    rows = divided(most.amax(-1), _LARGEST_E4M3).clamp(min=_LEAST)
    scales = (most / rows.unsqueeze(1)).to(torch.float8_e4m3fn)
    wide = (scales.float() * rows.unsqueeze(1)).unsqueeze(-1)
    over = torch.where(wide > 0, groups / wide, 0.0).flatten(-2)
    between = torch.tensor(_BETWEEN, device=floats.device)
    codes = torch.bucketize(over.abs(), between).byte() | (over < 0).byte() << 3
    data = codes[:, ::2] | codes[:, 1::2] << 4
    return Nibbles(WeightFormat.NVFP4, data, scales.view(torch.uint8), rows)


def joined(pieces: Sequence[Nibbles]) -> Nibbles:
    """Matrices of one format under one another."""
    if len(pieces) == 1:
        return pieces[0]
    rows = [piece.row_scales for piece in pieces if piece.row_scales is not None]
    return Nibbles(
        pieces[0].format,
        torch.cat([piece.data for piece in pieces]),
        torch.cat([piece.scales for piece in pieces]),
        torch.cat(rows) if rows else None,
    )
