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
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, BLOCK_BYTES[weight_format])
    d = blocks[..., 0:2].contiguous().view(torch.float16).float()
    if weight_format == "q8_0":
        q = blocks[..., 2:].contiguous().view(torch.int8).float()
        return (d * q).reshape(rows, -1)
    m = blocks[..., 2:4].contiguous().view(torch.float16).float()
    nibbles = blocks[..., 4:]
    q = torch.cat((nibbles & 0xF, nibbles >> 4), dim=-1).float()
    return (d * q + m).reshape(rows, blocks.shape[1] * BLOCK)
