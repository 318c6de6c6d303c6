"""The paged KV cache of one rank: two tensors per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tokenspeed.plan import Attention, CachePlan, ModelConfig

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class KvCache:
    """`keys[layer]`, `values[layer]`: [num_blocks, block_size, kv heads, head_dim].

    Block 0 belongs to nobody: padding writes go there.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))


def allocate(plan: CachePlan, config: ModelConfig, device: torch.device) -> KvCache:
    """Zeroed, so that whatever a kernel reads beyond a row's end is a number.

    On a CPU the pages stay unmapped until written. Raises torch.OutOfMemoryError on a GPU.
    """
    dtype = _DTYPES[plan.dtype]
    shapes = []
    for layer in config.sequence():
        assert isinstance(layer.mixer, Attention), "up refuses what this build cannot run"
        shapes.append((layer.mixer.num_kv_heads, layer.mixer.head_dim))

    def pool() -> tuple[torch.Tensor, ...]:
        return tuple(
            _zeros((plan.num_blocks, plan.block_size, *shape), dtype, device) for shape in shapes
        )

    return KvCache(keys=pool(), values=pool())


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch writes its zeros; numpy takes them from the system, page by page as they are touched,
    # and asks for huge pages.
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
