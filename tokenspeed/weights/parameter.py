"""What the loader is asked for: parameters of the model, each joined from tensors of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from tokenspeed_kernels.weight import RawWeight

from tokenspeed.plan import WeightFormat

# Bytes read so far, and in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the files. `interleaved_heads` is the number of heads whose rows the file
    holds in the order of adjacent rotary pairs (0: rows are in half-split order already)."""

    tensor: str
    shape: tuple[int, ...]
    interleaved_heads: int = 0


@dataclass(frozen=True, slots=True)
class Matrix:
    """[out, in], its parts joined along `out`, kept as `format`."""

    name: str
    parts: tuple[Part, ...]
    format: WeightFormat

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm or bias [n], its parts joined, kept in the dtype of the activations."""

    name: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(part.shape[0] for part in self.parts)


Parameter = Matrix | Vector


@dataclass(frozen=True, slots=True)
class Weights:
    """Every parameter of a model by name, on one device. `bytes` is what they take there."""

    matrices: Mapping[str, RawWeight]
    vectors: Mapping[str, torch.Tensor]

    @property
    def bytes(self) -> int:
        held = [weight.data for weight in self.matrices.values()]
        return sum(tensor.nbytes for tensor in (*held, *self.vectors.values()))
