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


@dataclass(frozen=True, slots=True)
class RawWeight:
    """A matrix [out, in] in one of the formats above.

    Float formats: `data` is [out, in] of that dtype. Quantised: `data` is uint8
    [out, in / 32 * block bytes]; a row is self-contained, so rows may be joined or permuted.
    Raises ValueError where `data` does not fit `format` and `shape`.
    """

    format: str
    shape: tuple[int, int]
    data: torch.Tensor

    def __post_init__(self) -> None:
        rows, columns = self.shape
        if self.format in FLOAT_FORMATS:
            expected = (rows, columns)
        elif self.format in BLOCK_BYTES:
            if columns % BLOCK:
                raise ValueError(f"{self.format} packs {BLOCK} inputs, {columns} do not divide")
            expected = (rows, columns // BLOCK * BLOCK_BYTES[self.format])
        else:
            raise ValueError(f"unknown weight format {self.format}")
        if tuple(self.data.shape) != expected:
            raise ValueError(
                f"{self.format} {rows} x {columns} takes data of shape {expected}, "
                f"not {tuple(self.data.shape)}"
            )
