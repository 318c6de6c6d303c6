"""Attention over the paged cache: project, rotate and write, attend, project back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from tokenspeed_kernels.gemm.op import Quantised
from tokenspeed_kernels.latent.op import LatentPool, Lengths

from tokenspeed import plan
from tokenspeed.cache.kv import KvCache, KvPool
from tokenspeed.layers.kernels import Kernels
from tokenspeed.layers.linear import float8_from, linear_before
from tokenspeed.weights.parameter import Weights

if TYPE_CHECKING:
    from tokenspeed_kernels.attention.op import BoundPagedAttention, TurnsQueries
    from tokenspeed_kernels.latent.op import BoundLatentAttention, BoundLatentExtend


class Heads(NamedTuple):
    """What layers agree in that share a bound kernel: query heads, the width of what each gives,
    and kv heads, or where those share one latent its rank and the widths of a key's rotated part
    and of its other; and the window behind which nothing is seen, 0 for none."""

    num_heads: int
    width: int
    num_kv_heads: int
    rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    window: int = 0


class Expanded(NamedTuple):
    """Rows of a step whose keys and values are made from their latents: those from `first_row` on,
    `first_token` their first token. `lengths` are those of rows that have any."""

    first_row: int
    first_token: int
    lengths: Lengths


class LatentQuery(NamedTuple):
    """Queries of T tokens, absorbed [T, H, rank + rope_dim] and as they are, without what rotates
    [T, H, nope]; and what takes a key's and a value's place [H, nope, rank], [H, rank, value]."""

    absorbed: torch.Tensor
    plain: torch.Tensor
    key_up: torch.Tensor
    value_up: torch.Tensor

    @property
    def rotated(self) -> torch.Tensor:
        return self.absorbed[..., self.key_up.shape[2] :]


class BoundAttention:
    """Attention kernels bound to one shape of batch, one for each kind of heads of the model.

    `outs`: where they write, [T, H, d] of the largest step, None for fresh memory. Padding keeps
    what is there. With `extends` the kernels know of rows of one token alone, and those take the
    others, in steps that were scheduled as expanded.
    """

    def __init__(
        self,
        kernels: Mapping[Heads, BoundPagedAttention | BoundLatentAttention],
        outs: Mapping[Heads, torch.Tensor] | None,
        extends: Mapping[Heads, BoundLatentExtend] | None = None,
    ) -> None:
        self._kernels = kernels
        self._outs = outs
        self._extends = extends or {}

    def schedule(
        self,
        cu_query_lens: torch.Tensor,
        context_lens: torch.Tensor,
        expanded: Expanded | None = None,
    ) -> None:
        """Once per step, before the first layer."""
        for kernel in self._kernels.values():
            kernel.schedule(cu_query_lens, context_lens)
        if expanded is not None:
            for extend in self._extends.values():
                extend.schedule(cu_query_lens, context_lens, expanded.first_row, expanded.lengths)

    def __call__(self, heads: Heads, q: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        """The kernel's arguments, after its queries `q`."""
        out = None if self._outs is None else self._outs[heads][: len(q)]
        return self._kernels[heads](q, *rest, **more, out=out)

    def turns_queries(self, heads: Heads) -> bool:
        """Whether `from_qkv` does what rope and attention do."""
        return getattr(self._kernels[heads], "turns_queries", False)

    def from_qkv(self, heads: Heads, qkv: torch.Tensor, *rest: Any) -> torch.Tensor:
        """See `attention.op.TurnsQueries`."""
        kernel = cast("TurnsQueries", self._kernels[heads])
        out = None if self._outs is None else self._outs[heads][: qkv.shape[-2]]
        return kernel.from_qkv(qkv, *rest, out=out)

    def expanded(
        self,
        heads: Heads,
        query: LatentQuery,
        pool: LatentPool,
        block_tables: torch.Tensor,
        scale: float,
        first_token: int,
    ) -> torch.Tensor:
        """Absorbs the queries before `first_token`; [T, H, value]."""
        assert self._outs is not None
        out = self._outs[heads][: len(query.plain)]
        if first_token:
            absorb = cast("BoundLatentAttention", self._kernels[heads])
            absorb(
                query.absorbed[:first_token], pool, block_tables, scale, query.value_up,
                out=out[:first_token],
            )  # fmt: skip
        self._extends[heads](
            query.plain, query.rotated, pool, block_tables, scale, query.key_up, query.value_up,
            out=out,
        )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Where the tokens of one step stand; T tokens in R rows, all on the device.

    `positions` int32 [T], `cu_query_lens` int32 [R + 1], `context_lens` int32 [R]. For each cache
    group of the model: `slots` int64 [T] (block * block_size + offset) and `block_tables` int32
    [R, blocks]. `bound`: attention that was scheduled for these lengths, None where the kernel
    takes them with each call. `expanded`: rows whose keys and values are made, None for none.
    """

    positions: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    block_tables: tuple[torch.Tensor, ...]
    cu_query_lens: torch.Tensor
    context_lens: torch.Tensor
    bound: BoundAttention | None = None
    expanded: Expanded | None = None


def rows_of(x: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
    """The rows that int32 `wanted` names, all for None."""
    return x if wanted is None else x.index_select(0, wanted)


class Attention:
    """Grouped-query attention of one layer, bound to its weights and its part of the cache."""

    norms_itself = False

    def __init__(
        self,
        facts: plan.Attention,
        eps: float,
        weights: Weights,
        index: int,
        kernels: Kernels,
        cache: KvCache,
        cos_sin: torch.Tensor,
    ) -> None:
        prefix, pool = f"layers.{index}.", cache.layers[index]
        assert isinstance(pool, KvPool)
        self._qkv = linear_before("rope_kv_write", weights, f"{prefix}qkv", kernels)
        self.float8_from = float8_from(self._qkv)
        self._out = linear_before("add_rms_norm", weights, f"{prefix}o", kernels)
        self._q_norm = weights.vectors.get(f"{prefix}q_norm")
        self._k_norm = weights.vectors.get(f"{prefix}k_norm")
        assert (self._q_norm is not None) == (facts.qk_norm == "head")
        self._rope_kv_write = kernels.rope_kv_write()
        self._attend = kernels.paged_attention()
        self._keys, self._values, self._group = pool.keys, pool.values, cache.group[index]
        # What kernels need not know of whose cache is not float8.
        scaled = (pool.k_scale, pool.v_scale) != (1.0, 1.0)
        self._scales: dict[str, Any] = {}
        if scaled:
            self._scales = {"k_scale": pool.k_scale, "v_scale": pool.v_scale}
        # What kernels need not know of that see everything.
        self._sinks: dict[str, Any] = {}
        if facts.sinks:
            self._sinks = {"sinks": weights.vectors[f"{prefix}sinks"]}
        self._sight = self._sinks | ({"window": facts.window} if facts.window else {})
        self._cos_sin = cos_sin
        # Whether attention may turn queries and keys itself: all of a head turns, and that is all.
        self._plain = not (scaled or facts.sinks) and cos_sin.shape[1] == facts.head_dim
        self._heads, self._kv_heads = facts.num_heads, facts.num_kv_heads
        self._kind = kind_of_heads(facts)
        self._width = facts.num_heads * facts.head_dim
        self._scale = facts.head_dim**-0.5
        self._eps = eps

    def __call__(
        self,
        x: torch.Tensor | Quantised,
        inputs: AttentionInputs,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[T, hidden] to [T, hidden], or to parts of it that `add_rms_norm` adds up; writes the
        keys and values of the T tokens first. `wanted` int32 [S]: only these of the T rows."""
        qkv, bound = self._qkv(x), inputs.bound
        if self._plain and bound is not None and bound.turns_queries(self._kind):
            slots, tables = inputs.slots[self._group], inputs.block_tables[self._group]
            attended = bound.from_qkv(
                self._kind, qkv, inputs.positions, self._cos_sin, slots, self._q_norm, self._k_norm,
                self._eps, self._keys, self._values, tables, self._scale,
            )  # fmt: skip
            return self._out(rows_of(attended.view(-1, self._width), wanted))
        q = self._rope_kv_write(
            qkv,
            self._heads,
            self._kv_heads,
            inputs.positions,
            self._cos_sin,
            inputs.slots[self._group],
            self._keys,
            self._values,
            self._q_norm,
            self._k_norm,
            self._eps,
            **self._scales,
        )
        return self._out(rows_of(self._attended(q, inputs).view(-1, self._width), wanted))

    def _attended(self, q: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        keys, values, tables = self._keys, self._values, inputs.block_tables[self._group]
        if inputs.bound is not None:
            more = {**self._scales, **self._sinks}
            return inputs.bound(self._kind, q, keys, values, tables, self._scale, **more)
        lengths = (inputs.cu_query_lens, inputs.context_lens)
        more = {**self._scales, **self._sight}
        return self._attend(q, keys, values, tables, *lengths, self._scale, **more)


def kind_of_heads(facts: plan.Attention | plan.LatentAttention) -> Heads:
    if isinstance(facts, plan.LatentAttention):
        rank, widths = facts.kv_rank, (facts.rope_dim, facts.nope_dim)
        return Heads(facts.num_heads, facts.value_dim, 1, rank, *widths)
    return Heads(facts.num_heads, facts.head_dim, facts.num_kv_heads, window=facts.window or 0)
