"""Quantised weights to float32. Blocks of 32 exactly, float8 rounded once."""

from __future__ import annotations

import torch

from tokenspeed_kernels.weight import BLOCK, BLOCK_BYTES, FLOAT_FORMATS, SQUARE, RawWeight


def dequantise(weight: RawWeight) -> torch.Tensor:
    """The matrix [out, in] in float32, on the device of the data."""
    if weight.format in FLOAT_FORMATS:
        return weight.data.float()
    if weight.scales is not None:
        return weight.data.float() * spread(weight.scales, weight.shape)
    return dequantise_rows(weight.format, weight.data)


def spread(scales: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """The scale of each element: of float8 `scales` by row, or by block."""
    if scales.dim() == 1:
        return scales.unsqueeze(1)
    wide = scales.repeat_interleave(SQUARE, 0).repeat_interleave(SQUARE, 1)
    return wide[: shape[0], : shape[1]]


def dequantise_rows(weight_format: str, data: torch.Tensor) -> torch.Tensor:
    """uint8 rows [N, in / 32 * block bytes] to float32 [N, in]."""
    rows, row_bytes = data.shape
    block_bytes = BLOCK_BYTES[weight_format]
    num_blocks = row_bytes // block_bytes
    blocks = data.reshape(rows, num_blocks, block_bytes)
    d = blocks[..., 0:2].contiguous().view(torch.float16).float()
    if weight_format == "q8_0":
        q = blocks[..., 2:].contiguous().view(torch.int8).float()
        return (d * q).reshape(rows, num_blocks * BLOCK)
    m = blocks[..., 2:4].contiguous().view(torch.float16).float()
    nibbles = blocks[..., 4:]
    q = torch.cat((nibbles & 0xF, nibbles >> 4), dim=-1).float()
    return (d * q + m).reshape(rows, num_blocks * BLOCK)
