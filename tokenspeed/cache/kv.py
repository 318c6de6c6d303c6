"""The paged KV cache of one rank: for each layer the tensors of its kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tokenspeed_kernels.latent.op import LatentPool

from tokenspeed.cache.groups import layer_groups
from tokenspeed.plan import Attention, CachePlan, LatentAttention, Mixer, ModelConfig

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class KvPool:
    """`keys` and `values` of one layer: [num_blocks, block_size, kv heads, head_dim], in float8
    over `k_scale` and `v_scale`."""

    keys: torch.Tensor
    values: torch.Tensor
    k_scale: float = 1.0
    v_scale: float = 1.0


Pool = KvPool | LatentPool


@dataclass(frozen=True, slots=True)
class KvCache:
    """The pool of each layer, the cache group whose blocks the layer uses, and what all pools are
    made of. Layers of different groups share memory, but never a block.

    Block 0 belongs to nobody: padding writes go there.
    """

    layers: tuple[Pool, ...]
    group: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def copy(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """Whole blocks, of whatever group they are. int64 [C] each; no block is in both."""
        for tensor in self.tensors:
            raw = tensor.view(torch.uint8)  # not every kind of float can be indexed
            raw.index_copy_(0, destinations, raw.index_select(0, sources))


def allocate(
    plan: CachePlan,
    config: ModelConfig,
    device: torch.device,
    scales: Sequence[tuple[float, float]] = (),
) -> KvCache:
    """Zeroed, so that whatever a kernel reads beyond a row's end is a number. `scales` of each
    layer's keys and values, for a float8 cache; without them 1.

    On a CPU the pages stay unmapped until written. Raises torch.OutOfMemoryError on a GPU.
    """
    groups = layer_groups(config)
    mixers = [layer.mixer for layer in config.sequence()]
    at_place = dict(zip(groups.place, mixers, strict=True))
    made = [_pool(plan, at_place[place], device) for place in range(groups.places)]
    for place, mixer in zip(groups.place, mixers, strict=True):
        assert _token_shape(mixer) == _token_shape(at_place[place]), "groups of unequal layers"
    return KvCache(
        layers=tuple(
            _scaled(made[place][0], scales[layer] if scales else (1.0, 1.0))
            for layer, place in enumerate(groups.place)
        ),
        group=groups.group,
        tensors=tuple(tensor for _, tensors in made for tensor in tensors),
    )


def _scaled(pool: Pool, scales: tuple[float, float]) -> Pool:
    """The same memory as a layer with those scales has it."""
    if isinstance(pool, LatentPool):
        return replace(pool, scale=1.0 if pool.scales is not None else scales[0])
    return replace(pool, k_scale=scales[0], v_scale=scales[1])


def _token_shape(mixer: Mixer) -> tuple[int, int]:
    if isinstance(mixer, LatentAttention):
        return mixer.kv_rank, mixer.rope_dim
    assert isinstance(mixer, Attention), "up refuses what this build cannot run"
    return mixer.num_kv_heads, mixer.head_dim


def _pool(
    plan: CachePlan, mixer: Mixer, device: torch.device
) -> tuple[Pool, tuple[torch.Tensor, ...]]:
    """The pool of one layer, and the tensors that it is made of."""
    blocks, dtype = (plan.pool_blocks, plan.block_size), _DTYPES[plan.dtype]
    shape = _token_shape(mixer)
    if not isinstance(mixer, LatentAttention):
        keys, values = (_zeros((*blocks, *shape), dtype, device) for _ in range(2))
        return KvPool(keys, values), (keys, values)
    rank, rope_dim = shape
    if plan.layout == "latent_scaled":
        latent = _zeros((*blocks, rank), dtype, device)
        rope = _zeros((*blocks, rope_dim), torch.bfloat16, device)
        scales = _zeros(blocks, torch.float32, device)
        return LatentPool(latent, rope, scales), (latent, rope, scales)
    whole = _zeros((*blocks, rank + rope_dim), dtype, device)
    return LatentPool(whole[..., :rank], whole[..., rank:]), (whole,)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch writes its zeros; numpy takes them from the system, page by page as they are touched,
    # and asks for huge pages.
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
