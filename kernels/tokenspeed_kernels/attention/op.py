"""Paged attention with grouped query heads: softmax(scale q k^T) v over each row's blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class PagedAttention(Protocol):
    """`q` [T, H, d] to a new [T, H, d].

    Row r owns queries cu_query_lens[r] to cu_query_lens[r + 1] of `q`; its query i sees the
    first context_lens[r] + i + 1 tokens of the row (causal, aligned at the end). A row may be
    empty. Token t of the row is at offset t % block_size of block block_tables[r, t // block_size]
    in `k_cache`, `v_cache` [num_blocks, block_size, K, d]; entries past the row's last token are
    not read. Query head h reads kv head h // (H / K).

    `block_tables` [R, max_blocks], `cu_query_lens` [R + 1], `context_lens` [R]: int32, on the
    device of `q`.
    """

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        cu_query_lens: torch.Tensor,
        context_lens: torch.Tensor,
        scale: float,
    ) -> torch.Tensor: ...
