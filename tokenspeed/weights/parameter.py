"""What the loader is asked for: parameters of the model, each joined from tensors of the files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from tokenspeed_kernels.weight import RawWeight

from tokenspeed.plan import WeightFormat

# Bytes read so far, and in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the files: a matrix [out, in], a stack of them [n, in, out], or a vector.

    `paired_heads` is the number of heads whose rows the file holds as adjacent pairs (of a rotary
    embedding, or of gate and up), 0 where rows are in halves already; `paired_rows` of each head,
    its last ones, are in that order, 0 for all.
    """

    tensor: str
    shape: tuple[int, ...]
    paired_heads: int = 0
    paired_rows: int = 0

    @property
    def rows(self) -> int:
        """Rows of the matrix that it is, stacks laid out one under the other."""
        return self.shape[0] * self.shape[2] if len(self.shape) == 3 else self.shape[0]

    def in_halves(self, rows: torch.Tensor) -> torch.Tensor:
        """Its rows [heads * d, ...] from the order of adjacent pairs (0, d/2, 1, d/2 + 1, ...) to
        that of halves, head by head. Works on raw rows, and on their scales, as on floats."""
        heads = self.paired_heads
        whole = rows.view(heads, rows.shape[0] // heads, *rows.shape[1:])
        last = self.paired_rows or whole.shape[1]
        kept, paired = whole[:, :-last], whole[:, -last:]
        halves = paired.reshape(heads, last // 2, 2, *rows.shape[1:]).transpose(1, 2).flatten(1, 2)
        return torch.cat((kept, halves), dim=1).reshape(rows.shape)


@dataclass(frozen=True, slots=True)
class Matrix:
    """[out, in], its parts joined along `out`, kept as `format`."""

    name: str
    parts: tuple[Part, ...]
    format: WeightFormat

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.rows for part in self.parts), self.parts[0].shape[1]


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm or bias [n], its parts joined, kept in the dtype of the activations, or in float32
    where it is `exact`."""

    name: str
    parts: tuple[Part, ...]
    exact: bool = False

    @property
    def size(self) -> int:
        return sum(math.prod(part.shape) for part in self.parts)


Parameter = Matrix | Vector


@dataclass(frozen=True, slots=True)
class Weights:
    """Every parameter of a model by name, on one device. `bytes` is what they take there."""

    matrices: dict[str, RawWeight]
    vectors: Mapping[str, torch.Tensor]

    def take(self, name: str) -> RawWeight:
        """The matrix, which only the caller has then: what a kernel repacks takes room once."""
        return self.matrices.pop(name)

    @property
    def bytes(self) -> int:
        matrices = sum(weight.nbytes for weight in self.matrices.values())
        return matrices + sum(vector.nbytes for vector in self.vectors.values())
