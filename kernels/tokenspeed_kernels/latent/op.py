"""Multi-head latent attention over a paged cache of one vector per token.

With D the query [rank + rope] of a head in the latent space (absorbed: the head's key matrix is
already multiplied into it) and c_t, r_t the latent and the rotated part of token t,
    score_t = scale (D[:rank] . c_t + D[rank:] . r_t),  out = V sum_t softmax(score)_t c_t,
V being the value matrix of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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


class LatentKvWrite(Protocol):
    """Norms the latents `kv` [T, rank + rope_dim] (RMS, over the first `rank`, with `weight`
    [rank]), rotates the rest and writes both to the pool at `slots`. Makes a new [T, H, rank +
    rope_dim] of `query` [T, H, nope + rope_dim]: each head's first `nope` values times its matrix
    of `key_up` [H, nope, rank], and the others rotated.

    `positions` int32 [T] index `cos_sin` [L, rope_dim] float32 (cosines, then sines), in
    half-split order. `slots` int64 [T] are block * block_size + offset. `kv` and `query` may be
    views of wider rows.
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
