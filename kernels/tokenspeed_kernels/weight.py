"""Weight matrices as they reach kernels. Importing this does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BLOCK = 32  # weights per quantised block, along the input axis

# Bytes per block, GGUF layout, little-endian:
#   q4_1: d fp16, m fp16, 16 bytes; weight i is the low nibble of byte i, weight 16 + i its high
#         nibble; w = d * q + m.
#   q8_0: d fp16, 32 int8; w = d * q.
BLOCK_BYTES = {"q4_1": 20, "q8_0": 34}
FLOAT_FORMATS = ("float32", "bfloat16")
# e4m3 with float32 scales: fp8 one per row, fp8_block one per SQUARE x SQUARE.
SQUARE = 128
# The largest e4m3, and what stands for the largest of some values that are all 0 where these get a
# scale: no scale is 0, nor its inverse infinite.
E4M3_LARGEST, LEAST_SCALED = 448.0, 1e-20
FP8_FORMATS = ("fp8", "fp8_block")
# Two values a byte, the even one in the low half, with a scale for so many inputs in turn:
#   mxfp4: e2m1, the scale the power of two of an e8m0 (uint8).
#   nvfp4: e2m1, the scale an e4m3 (uint8), times a float32 of the row.
#   int4, int4_g32: the value less 8, the scale a bfloat16.
NIBBLE_GROUPS = {"mxfp4": 32, "nvfp4": 16, "int4": 128, "int4_g32": 32}


@dataclass(frozen=True, slots=True)
class RawWeight:
    """A matrix [out, in] in one of the formats above.

    Float formats: `data` is [out, in] of that dtype. fp8 formats: `data` is float8_e4m3fn
    [out, in], and a weight is its element times its scale in `scales`, float32 [out] or
    [ceil(out / 128), ceil(in / 128)]. Two values a byte: `data` is uint8 [out, in / 2], `scales`
    [out, in / group], and of nvfp4 `row_scales` float32 [out]. Quantised in blocks: `data` is uint8
    [out, in / 32 * block bytes]. But for fp8_block a row is self-contained, so rows may be joined
    or permuted.
    Raises ValueError where `data` or scales do not fit `format` and `shape`.
    """

    format: str
    shape: tuple[int, int]
    data: torch.Tensor
    scales: torch.Tensor | None = None
    row_scales: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of data and scales."""
        kept = (self.data, self.scales, self.row_scales)
        return sum(one.nbytes for one in kept if one is not None)

    def __post_init__(self) -> None:
        rows, columns = self.shape
        self._check_scales()
        if self.format in FLOAT_FORMATS or self.format in FP8_FORMATS:
            expected = (rows, columns)
        elif self.format in NIBBLE_GROUPS:
            expected = (rows, columns // 2)
        elif self.format in BLOCK_BYTES:
            self._check_width(BLOCK)
            expected = (rows, columns // BLOCK * BLOCK_BYTES[self.format])
        else:
            raise ValueError(f"unknown weight format {self.format}")
        if tuple(self.data.shape) != expected:
            raise ValueError(
                f"{self.format} {rows} x {columns} takes data of shape {expected}, "
                f"not {tuple(self.data.shape)}"
            )

    def _check_width(self, group: int) -> None:
        if self.shape[1] % group:
            raise ValueError(f"{self.format} packs {group} inputs, {self.shape[1]} do not divide")

    def _check_scales(self) -> None:
        rows, columns = self.shape
        expected: tuple[int, ...] | None = None
        if self.format == "fp8":
            expected = (rows,)
        elif self.format == "fp8_block":
            expected = (-(-rows // SQUARE), -(-columns // SQUARE))
        elif self.format in NIBBLE_GROUPS:
            self._check_width(NIBBLE_GROUPS[self.format])
            expected = (rows, columns // NIBBLE_GROUPS[self.format])
        found = None if self.scales is None else tuple(self.scales.shape)
        if found != expected:
            raise ValueError(
                f"{self.format} {rows} x {columns} takes scales of {expected}, not {found}"
            )
        expected = (rows,) if self.format == "nvfp4" else None
        found = None if self.row_scales is None else tuple(self.row_scales.shape)
        if found != expected:
            raise ValueError(
                f"{self.format} {rows} x {columns} takes row scales of {expected}, not {found}"
            )
