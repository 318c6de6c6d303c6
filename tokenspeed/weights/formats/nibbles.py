"""Matrices of 4-bit values, two a byte, with a scale for each group of inputs of a row.

A row is self-contained, so rows can be joined and reordered as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tokenspeed_kernels.dequantise import dequantise_nibbles
from tokenspeed_kernels.weight import NIBBLE_GROUPS

from tokenspeed.plan import WeightFormat

KEPT = frozenset(WeightFormat(name) for name in NIBBLE_GROUPS)
# The e8m0 that stands for no number.
_NO_NUMBER = 255


@dataclass(frozen=True, slots=True)
class Nibbles:
    """`data` uint8 [out, in / 2] and `scales` [out, in / group] in the format's own type."""

    format: WeightFormat
    data: torch.Tensor
    scales: torch.Tensor

    def floats(self) -> torch.Tensor:
        """float32 [out, in], exact."""
        return dequantise_nibbles(self.format, self.data, self.scales)

    def reordered(self, reorder: Callable[[torch.Tensor], torch.Tensor]) -> Nibbles:
        """With another order of rows."""
        return Nibbles(self.format, reorder(self.data), reorder(self.scales))


def nibbles(
    stored_format: str, shape: tuple[int, ...], data: torch.Tensor, scales: torch.Tensor
) -> Nibbles:
    """A stored matrix [out, in] or stack [n, in, out], whose rows come one after the other; both
    tensors are bytes as they lie in the file.

    Raises ValueError for a scale that is no number.
    """
    kept = WeightFormat(stored_format)
    columns = shape[1]
    groups = columns // NIBBLE_GROUPS[kept]
    if kept != WeightFormat.MXFP4:
        scales = scales.view(torch.bfloat16)
        sound = bool((scales.isfinite() & (scales >= 0)).all())
    else:
        sound = not bool((scales == _NO_NUMBER).any())
    if not sound:
        raise ValueError("a scale that is negative or no number")
    return Nibbles(kept, data.view(-1, columns // 2), scales.view(-1, groups))


def joined(pieces: Sequence[Nibbles]) -> Nibbles:
    """Matrices of one format under one another."""
    if len(pieces) == 1:
        return pieces[0]
    return Nibbles(
        pieces[0].format,
        torch.cat([piece.data for piece in pieces]),
        torch.cat([piece.scales for piece in pieces]),
    )
