"""Quantised weights to float32. Blocks of 32 and 4-bit values exactly, float8 and NVFP4 rounded
once."""

from __future__ import annotations

import torch

from tokenspeed_kernels.weight import (
    BLOCK,
    BLOCK_BYTES,
    FLOAT_FORMATS,
    NIBBLE_GROUPS,
    SQUARE,
    RawWeight,
)

# What the four bits of an e2m1 stand for: sign, two bits of exponent, one of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
# An e8m0 is the exponent of a power of two, counted from here; 255 is no number.
E8M0_BIAS = 127
_POWERS = (*(2.0 ** (code - E8M0_BIAS) for code in range(255)), float("nan"))


def dequantise(weight: RawWeight) -> torch.Tensor:
    """The matrix [out, in] in float32, on the device of the data."""
    return dequantise_part(weight, 0, weight.shape[0])


def dequantise_part(weight: RawWeight, begin: int, end: int) -> torch.Tensor:
    """Rows `begin` to `end` of the matrix in float32."""
    data, scales = weight.data[begin:end], weight.scales
    if weight.format in FLOAT_FORMATS:
        return data.float()
    if weight.format in NIBBLE_GROUPS:
        assert scales is not None
        rows = None if weight.row_scales is None else weight.row_scales[begin:end]
        return dequantise_nibbles(weight.format, data, scales[begin:end], rows)
    if scales is None:
        return dequantise_rows(weight.format, data)
    if scales.dim() == 1:
        return data.float() * scales[begin:end].unsqueeze(1)
    first = begin // SQUARE * SQUARE
    wide = spread(scales[begin // SQUARE : -(-end // SQUARE)], (end - first, weight.shape[1]))
    return data.float() * wide[begin - first :]


def spread(scales: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """The scale of each element: of float8 `scales` by row, or by block."""
    if scales.dim() == 1:
        return scales.unsqueeze(1)
    wide = scales.repeat_interleave(SQUARE, 0).repeat_interleave(SQUARE, 1)
    return wide[: shape[0], : shape[1]]


def dequantise_nibbles(
    weight_format: str,
    data: torch.Tensor,
    scales: torch.Tensor,
    row_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """uint8 rows [N, in / 2] with their scales [N, in / group], and where the format has them those
    of rows [N], to float32 [N, in]."""
    nibbles = torch.stack((data & 0xF, data >> 4), dim=-1).flatten(1)
    if weight_format in ("mxfp4", "nvfp4"):
        values = torch.tensor(E2M1, device=data.device)[nibbles.int()]
    else:
        values = nibbles.float() - 8.0
    if weight_format == "mxfp4":
        wide = torch.tensor(_POWERS, device=data.device)[scales.int()]
    elif weight_format == "nvfp4":
        wide = scales.view(torch.float8_e4m3fn).float()
    else:
        wide = scales.float()
    groups = values.view(len(data), scales.shape[1], -1)
    # Exact: 2 significant bits times 4 of an e4m3 or 8 of a bfloat16.
    made = (groups * wide.unsqueeze(-1)).flatten(1)
    return made if row_scales is None else made * row_scales.unsqueeze(1)


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
