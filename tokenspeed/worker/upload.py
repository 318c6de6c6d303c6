"""What a step brings to the device: named arrays, packed into one and copied once.

On a CPU a step's memory is its own and is used where it lies. On a GPU the arrays go through
pinned memory into one buffer that never moves: equal layouts lie at equal addresses, which is what
a captured graph needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

Parts = Mapping[str, np.ndarray]
DeviceParts = dict[str, torch.Tensor]

_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}
_WORD = 4
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Packed:
    """`data` int32 words; `layout` says at which word each array begins, its shape and dtype."""

    data: np.ndarray
    layout: dict[str, tuple[int, tuple[int, ...], torch.dtype]]


def placed(data: torch.Tensor, packed: Packed) -> DeviceParts:
    """The named arrays as views of `data`, int32 words."""
    parts = {}
    for name, (begin, shape, dtype) in packed.layout.items():
        words = int(np.prod(shape)) * dtype.itemsize // _WORD
        parts[name] = data[begin : begin + words].view(dtype).view(shape)
    return parts


# Copies int32 `source` [N] to the first N places of `out`, one of them in pinned host memory,
# without waiting.
Copy = Callable[[torch.Tensor, torch.Tensor], None]


def plain_copy(source: torch.Tensor, out: torch.Tensor) -> None:
    """See `Copy`; by a copy engine."""
    out[: source.numel()].copy_(source, non_blocking=True)


class Upload:
    """Takes steps up and their tokens down. At most `steps` of them may be packed and not yet
    done, each of `words` int32 words at most (both matter on a GPU only)."""

    def __init__(
        self, words: int, steps: int, device: torch.device, copy: Copy = plain_copy
    ) -> None:
        self._copy = copy
        self._staging: torch.Tensor | None = None
        self._ring: list[torch.Tensor] = []
        self._turn = 0
        if device.type == "cuda":
            self._staging = torch.zeros(words, dtype=torch.int32, device=device)
            self._ring = [
                torch.empty(words, dtype=torch.int32, pin_memory=True) for _ in range(steps)
            ]

    def pack(self, parts: Parts) -> Packed:
        """On the loop's thread. int32, int64 or float32 arrays; each begins at a multiple
        of 16 bytes: a kernel is compiled for what it may assume of addresses."""
        layout, end = {}, 0
        for name, part in parts.items():
            layout[name] = (end, part.shape, _DTYPES[part.dtype])
            end += -(-part.nbytes // _ALIGNMENT) * (_ALIGNMENT // _WORD)
        data = self._room(end)
        for (begin, _, _), part in zip(layout.values(), parts.values(), strict=True):
            words = np.ascontiguousarray(part).reshape(-1).view(np.int32)
            data[begin : begin + len(words)] = words
        return Packed(data, layout)

    def _room(self, words: int) -> np.ndarray:
        if not self._ring:
            return np.empty(words, dtype=np.int32)
        self._turn = (self._turn + 1) % len(self._ring)
        pinned = self._ring[self._turn]
        assert words <= len(pinned), "a step is larger than the upload buffer"
        return pinned.numpy()[:words]

    def place(self, packed: Packed) -> DeviceParts:
        """On the stream. On a GPU the views are overwritten by the next step's."""
        host = torch.from_numpy(packed.data)
        if self._staging is None:
            return placed(host, packed)
        self._copy(host, self._staging)
        return placed(self._staging, packed)

    def down(self, tokens: torch.Tensor) -> torch.Tensor:
        """`tokens` int32 [N] in host memory once the stream's work is done."""
        if tokens.is_cpu:
            return tokens
        host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        self._copy(tokens, host)
        return host


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A tensor of its own on the device, without waiting for the stream."""
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory. On a GPU the copy is complete once the stream's work is."""
    if tensor.is_cpu:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
