"""Bytes of a weight matrix in each format, its scales included."""

from __future__ import annotations

from math import ceil

from tokenspeed.plan import WeightFormat

# format -> elements and bytes of a block along the input axis, scales included.
BLOCKS = {
    WeightFormat.FLOAT32: (1, 4),
    WeightFormat.BFLOAT16: (1, 2),
    WeightFormat.Q4_1: (32, 20),
    WeightFormat.Q8_0: (32, 34),
    WeightFormat.FP8: (1, 1),
    WeightFormat.FP8_BLOCK: (1, 1),
    WeightFormat.NVFP4: (16, 9),
    WeightFormat.MXFP4: (32, 17),
    WeightFormat.INT4: (128, 66),
    WeightFormat.INT4_G32: (32, 18),
}
_SQUARE = 128

FLOATS = (WeightFormat.FLOAT32, WeightFormat.BFLOAT16)
# Multiples that a rank's share of a matrix's axes must have: (output, input).
ALIGNMENT = {fmt: (1, block) for fmt, (block, _) in BLOCKS.items()} | {
    WeightFormat.FP8_BLOCK: (_SQUARE, _SQUARE)
}


def matrix_bytes(weight_format: WeightFormat, out: int, width: int) -> int:
    """Exact bytes of a matrix [out, width]; a row never shares a block with the next one."""
    block, size = BLOCKS[weight_format]
    total = out * ceil(width / block) * size
    if weight_format is WeightFormat.FP8_BLOCK:
        return total + 4 * ceil(out / _SQUARE) * ceil(width / _SQUARE)
    if weight_format in (WeightFormat.FP8, WeightFormat.NVFP4):
        # One float32 scale per row.
        return total + 4 * out
    return total


def stored_bits(weight_format: WeightFormat) -> float:
    """Bits per element of large matrices."""
    block, size = BLOCKS[weight_format]
    return 8 * size / block
