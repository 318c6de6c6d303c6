"""Attention over the paged cache: project, rotate and write, attend, project back."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenspeed import plan
from tokenspeed.layers.kernels import Kernels
from tokenspeed.layers.linear import linear
from tokenspeed.weights.parameter import Weights


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Where the tokens of one step stand; T tokens in R rows, all on the device.

    `positions` int32 [T], `slots` int64 [T] (block * block_size + offset), `block_tables` int32
    [R, blocks], `cu_query_lens` int32 [R + 1], `context_lens` int32 [R].
    """

    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    cu_query_lens: torch.Tensor
    context_lens: torch.Tensor


class Attention:
    """Grouped-query attention of one layer, bound to its weights and its part of the cache."""

    def __init__(
        self,
        facts: plan.Attention,
        eps: float,
        weights: Weights,
        prefix: str,
        kernels: Kernels,
        cache: tuple[torch.Tensor, torch.Tensor],
        cos_sin: torch.Tensor,
    ) -> None:
        self._qkv = linear(weights, f"{prefix}qkv", kernels)
        self._out = linear(weights, f"{prefix}o", kernels)
        self._q_norm = weights.vectors.get(f"{prefix}q_norm")
        self._k_norm = weights.vectors.get(f"{prefix}k_norm")
        assert (self._q_norm is not None) == (facts.qk_norm == "head")
        self._rope_kv_write = kernels.rope_kv_write()
        self._attend = kernels.paged_attention()
        self._keys, self._values = cache
        self._cos_sin = cos_sin
        self._heads, self._kv_heads = facts.num_heads, facts.num_kv_heads
        self._width = facts.num_heads * facts.head_dim
        self._scale = facts.head_dim**-0.5
        self._eps = eps

    def __call__(self, x: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        """[T, hidden] to [T, hidden]; writes the keys and values of the T tokens first."""
        q = self._rope_kv_write(
            self._qkv(x),
            self._heads,
            self._kv_heads,
            inputs.positions,
            self._cos_sin,
            inputs.slots,
            self._keys,
            self._values,
            self._q_norm,
            self._k_norm,
            self._eps,
        )
        attended = self._attend(
            q,
            self._keys,
            self._values,
            inputs.block_tables,
            inputs.cu_query_lens,
            inputs.context_lens,
            self._scale,
        )
        return self._out(attended.view(-1, self._width))
