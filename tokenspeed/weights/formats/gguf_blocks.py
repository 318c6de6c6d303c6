"""Block-quantised tensors of GGUF files.

A block spans the input axis of one row, so rows can be joined and reordered as bytes.
"""

from __future__ import annotations

import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from tokenspeed_kernels.dequantise import dequantise_rows
from tokenspeed_kernels.weight import BLOCK_BYTES

from tokenspeed.plan import WeightFormat

# Formats that kernels read as they are.
RAW_FORMATS = frozenset({WeightFormat.Q4_1, WeightFormat.Q8_0})


def read_rows(data: torch.Tensor, rows: int) -> torch.Tensor:
    """uint8 [bytes] as uint8 [rows, bytes per row]; no copy."""
    return data.view(rows, -1)


def dequantise(data: torch.Tensor, stored_format: str) -> torch.Tensor:
    """uint8 [rows, bytes per row] to float32 [rows, in], exactly as the format defines it.

    Raises KeyError for a format that the `gguf` package does not know, NotImplementedError for
    one that it cannot dequantise.
    """
    if stored_format in BLOCK_BYTES:
        return dequantise_rows(stored_format, data)
    kind = GGMLQuantizationType[stored_format.upper()]
    return torch.from_numpy(dequantize(data.numpy(), kind))
