"""Quantised blocks to float32, exactly (both formats are exact in float32)."""

from __future__ import annotations

import torch

from tokenspeed_kernels.weight import BLOCK, BLOCK_BYTES, RawWeight


def dequantise(weight: RawWeight) -> torch.Tensor:
    """The matrix [out, in] in float32, on the device of the data."""
    if weight.format in ("float32", "bfloat16"):
        return weight.data.float()
    return dequantise_rows(weight.format, weight.data)


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
