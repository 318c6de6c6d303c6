"""Latent attention: queries go into the latent space, attend there, and their values come back.

The key and value matrices of a head stand on the query's and the output's side (absorbed), so that
the cache is read as it is stored, once for all heads. Where many queries meet each token, its key
and value are made instead, once for all of them (expanded).
"""

from __future__ import annotations

from typing import cast

import torch
from tokenspeed_kernels.dequantise import dequantise
from tokenspeed_kernels.gemm.op import Unnormed
from tokenspeed_kernels.latent.op import LatentPool
from tokenspeed_kernels.weight import RawWeight

from tokenspeed import plan
from tokenspeed.cache.kv import KvCache
from tokenspeed.layers.attention import (
    AttentionInputs,
    Expanded,
    LatentQuery,
    kind_of_heads,
    rows_of,
)
from tokenspeed.layers.kernels import Kernels
from tokenspeed.layers.linear import Product, linear, linear_before, norms_itself
from tokenspeed.weights.parameter import Weights


class LatentAttention:
    """Latent attention of one layer, bound to its weights and its pool."""

    float8_from = None

    def __init__(
        self,
        facts: plan.LatentAttention,
        eps: float,
        weights: Weights,
        index: int,
        kernels: Kernels,
        cache: KvCache,
        cos_sin: torch.Tensor,
        chunk_tokens: int = 0,
    ) -> None:
        prefix, pool = f"layers.{index}.", cache.layers[index]
        assert isinstance(pool, LatentPool)
        self._down = cast("Product", linear(weights, f"{prefix}qkv_a", kernels))
        self.norms_itself = norms_itself(self._down)
        self._q_up = None
        if facts.q_rank is not None:
            self._q_norm = weights.vectors[f"{prefix}q_a_norm"]
            self._q_up = linear(weights, f"{prefix}q_b", kernels)
        self._kv_norm = weights.vectors[f"{prefix}kv_a_norm"]
        self._out = linear_before("add_rms_norm", weights, f"{prefix}o", kernels)
        kv_up = _floats(weights.matrices[f"{prefix}kv_b"], self._kv_norm.dtype)
        heads = kv_up.view(facts.num_heads, facts.nope_dim + facts.value_dim, facts.kv_rank)
        # [H, nope, rank] and [H, rank, value].
        self._key_up = heads[:, : facts.nope_dim].contiguous()
        self._value_up = heads[:, facts.nope_dim :].transpose(1, 2).contiguous()
        self._rms_norm = kernels.rms_norm()
        self._kv_write, self._attend, self._extend = kernels.latent()
        self._chunk_tokens = chunk_tokens
        self._pool, self._group, self._cos_sin = pool, cache.group[index], cos_sin
        self._facts, self._eps, self._kind = facts, eps, kind_of_heads(facts)
        self._scale = facts.score_factor * (facts.nope_dim + facts.rope_dim) ** -0.5

    def __call__(
        self,
        x: torch.Tensor | Unnormed,
        inputs: AttentionInputs,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[T, hidden] to [T, hidden], or to parts of it that `add_rms_norm` adds up; writes the
        latents of the T tokens first. `wanted` int32 [S]: only these of the T rows."""
        q, kv = self._queries(x)
        q = q.view(len(q), self._facts.num_heads, -1)
        absorbed = self._kv_write(
            q,
            kv,
            self._kv_norm,
            self._eps,
            inputs.positions,
            self._cos_sin,
            inputs.slots[self._group],
            self._pool,
            self._key_up,
            None if inputs.expanded is None else inputs.expanded.first_token,
        )
        if inputs.expanded is None:
            attended = self._attended(absorbed, inputs)
        else:
            plain = q[..., : self._facts.nope_dim]
            query = LatentQuery(absorbed, plain, self._key_up, self._value_up)
            attended = self._attended_expanded(query, inputs, inputs.expanded)
        return self._out(rows_of(attended.view(len(q), -1), wanted))

    def _queries(self, x: torch.Tensor | Unnormed) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [T, H * (nope + rope)] and unnormed latents [T, rank + rope]."""
        down = self._down(x)
        kv = self._facts.kv_rank + self._facts.rope_dim
        q, kv_a = torch.split(down, [down.shape[1] - kv, kv], dim=1)
        if self._q_up is None:
            return q, kv_a
        return self._q_up(self._rms_norm(q.contiguous(), self._q_norm, self._eps)), kv_a

    def _attended(self, query: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        tables = inputs.block_tables[self._group]
        if inputs.bound is not None:
            return inputs.bound(self._kind, query, self._pool, tables, self._scale, self._value_up)
        lengths = (inputs.cu_query_lens, inputs.context_lens)
        return self._attend(query, self._pool, tables, *lengths, self._scale, self._value_up)

    def _attended_expanded(
        self, query: LatentQuery, inputs: AttentionInputs, expanded: Expanded
    ) -> torch.Tensor:
        tables, pool = inputs.block_tables[self._group], self._pool
        row, token, _ = expanded
        if inputs.bound is not None:
            return inputs.bound.expanded(self._kind, query, pool, tables, self._scale, token)
        assert self._extend is not None
        cu, contexts = inputs.cu_query_lens, inputs.context_lens
        parts = [
            self._extend(
                query.plain[token:], query.rotated[token:], pool, tables[row:], cu[row:] - token,
                contexts[row:], self._scale, query.key_up, query.value_up, self._chunk_tokens,
            )
        ]  # fmt: skip
        if token:
            before = (query.absorbed[:token], pool, tables[:row], cu[: row + 1], contexts[:row])
            parts.insert(0, self._attend(*before, self._scale, query.value_up))
        return torch.cat(parts)


def _floats(weight: RawWeight, dtype: torch.dtype) -> torch.Tensor:
    floats = weight.data if weight.format in ("float32", "bfloat16") else dequantise(weight)
    return floats.to(dtype)
