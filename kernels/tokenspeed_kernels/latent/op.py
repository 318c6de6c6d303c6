"""Multi-head latent attention over a paged cache of one vector per token.

With D the query [rank + rope] of a head in the latent space (absorbed: the head's key matrix is
already multiplied into it) and c_t, r_t the latent and the rotated part of token t,
    score_t = scale (D[:rank] . c_t + D[rank:] . r_t),  out = V sum_t softmax(score)_t c_t,
V being the value matrix of the head.

Rows of many new tokens may be attended to in another form: keys and values of every head are made
from the latents (expanded), of each cached token once for all queries that meet it. Of a head with
rank R, and N, E and V values of a key without positions, with them, and of a value, that takes
R (N + V) products a token and N + E + V for each query that meets it, where absorbing takes 2 R + E
for the latter: a cached token pays from

    R (N + V) / (2 R - N - V)

queries on, whatever the number of heads and however long the context is (171 for 512, 128, 128).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LatentPool:
    """The cache of one layer: `latent` [blocks, block_size, rank] and `rope` [blocks, block_size,
    rope_dim], views of one tensor or tensors of their own; their last axis is dense.

    A float8 latent holds values over a scale: that of its token in `scales` float32 [blocks,
    block_size], where `rope` is not quantised; without `scales` that of the whole layer, for both.
    """

    latent: torch.Tensor
    rope: torch.Tensor
    scales: torch.Tensor | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of latent attention: heads, and values of a latent, of a key without positions, of its
    rotated part, of a value."""

    num_heads: int
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


class Lengths(NamedTuple):
    """New and cached tokens of each row, as the host knows them."""

    query_lens: Sequence[int]
    context_lens: Sequence[int]


class LatentKvWrite(Protocol):
    """Norms the latents `kv` [T, rank + rope_dim] (RMS, over the first `rank`, with `weight`
    [rank]), rotates the rest and writes both to the pool at `slots`. Makes a new [T, H, rank +
    rope_dim] of `query` [T, H, nope + rope_dim]: each head's first `nope` values times its matrix
    of `key_up` [H, nope, rank], and the others rotated.

    `positions` int32 [T] index `cos_sin` [L, rope_dim] float32 (cosines, then sines), in
    half-split order. `slots` int64 [T] are block * block_size + offset. `kv` and `query` may be
    views of wider rows. Where `absorbed_tokens` is given, only the queries of so many first tokens
    are multiplied: of the others the first `rank` values are left as they happen to be.
    """

    def __call__(
        self,
        query: torch.Tensor,
        kv: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        slots: torch.Tensor,
        pool: LatentPool,
        key_up: torch.Tensor,
        absorbed_tokens: int | None = None,
    ) -> torch.Tensor: ...


class LatentAttention(Protocol):
    """`query` [T, H, rank + rope_dim] to a new [T, H, value] in its dtype; `value_up` [H, rank,
    value].

    Rows, lengths and tables are those of `attention.op.PagedAttention`.
    """

    def __call__(
        self,
        query: torch.Tensor,
        pool: LatentPool,
        block_tables: torch.Tensor,
        cu_query_lens: torch.Tensor,
        context_lens: torch.Tensor,
        scale: float,
        value_up: torch.Tensor,
    ) -> torch.Tensor: ...


class BoundLatentAttention(Protocol):
    """`LatentAttention` bound to one shape of batch, as `attention.op.BoundPagedAttention` is."""

    def __init__(
        self,
        num_heads: int,
        rank: int,
        rope_dim: int,
        num_decode_rows: int,
        num_extend_rows: int,
        num_extend_tokens: int,
        kv_dtype: torch.dtype,
        device: torch.device,
    ) -> None: ...

    def schedule(self, cu_query_lens: torch.Tensor, context_lens: torch.Tensor) -> None: ...

    def __call__(
        self,
        query: torch.Tensor,
        pool: LatentPool,
        block_tables: torch.Tensor,
        scale: float,
        value_up: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


class LatentExtend(Protocol):
    """Attention over keys and values that are made from the latents: `query` [T, H, nope] (without
    positions) and `rotated` [T, H, rope_dim] to a new [T, H, value]. Both may be views of wider
    rows. `key_up` [H, nope, rank] and `value_up` [H, rank, value] are the matrices of the heads.

    Rows, lengths and tables are those of `attention.op.PagedAttention`. Keys and values may be
    rounded to the dtype of `query`; there are never those of more than `chunk_tokens` tokens at
    once.
    """

    def __call__(
        self,
        query: torch.Tensor,
        rotated: torch.Tensor,
        pool: LatentPool,
        block_tables: torch.Tensor,
        cu_query_lens: torch.Tensor,
        context_lens: torch.Tensor,
        scale: float,
        key_up: torch.Tensor,
        value_up: torch.Tensor,
        chunk_tokens: int,
    ) -> torch.Tensor: ...


class BoundLatentExtend(Protocol):
    """`LatentExtend` for up to so many rows and so many tokens of them, with buffers of its own.

    `schedule`, once per step: `num_rows` rows from `first_row` of the batch on; `lengths` are those
    of the first of them, the others are empty. How many kernels are launched depends on them, so a
    captured graph cannot hold them. Then each layer writes the rows' part of `out` [T, H, value].
    """

    def __init__(
        self,
        shape: LatentShape,
        num_rows: int,
        num_tokens: int,
        chunk_tokens: int,
        device: torch.device,
    ) -> None: ...

    def schedule(
        self,
        cu_query_lens: torch.Tensor,
        context_lens: torch.Tensor,
        first_row: int,
        lengths: Lengths,
    ) -> None: ...

    def __call__(
        self,
        query: torch.Tensor,
        rotated: torch.Tensor,
        pool: LatentPool,
        block_tables: torch.Tensor,
        scale: float,
        key_up: torch.Tensor,
        value_up: torch.Tensor,
        *,
        out: torch.Tensor,
    ) -> None: ...
