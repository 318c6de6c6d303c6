"""Plain floating-point tensors, and their quotients."""

from __future__ import annotations

import torch

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def read_floats(data: torch.Tensor, stored_format: str, shape: tuple[int, ...]) -> torch.Tensor:
    """uint8 [bytes] seen as `shape` in the dtype that the file states; no copy."""
    return data.view(DTYPES[stored_format]).view(shape)


def divided(values: torch.Tensor, by: float) -> torch.Tensor:
    """`values / by`, rounded once, whatever the device. With a Python number as it stands CUDA
    multiplies by its reciprocal instead: of every second quotient the last bit is another."""
    return values / values.new_full((), by)
