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

    A launch hint: the first `num_decode_rows` rows have at most one query each (0 is always right,
    and slower on a device that treats them apart). A float8 cache holds values over `k_scale` and
    `v_scale`.

    With a `window` w above 0 a query sees only the last w of those tokens, itself included; blocks
    before them are not read. `sinks` [H] are logits that join each head's softmax without a value.
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
        num_decode_rows: int = 0,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        window: int = 0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


class BoundPagedAttention(Protocol):
    """`PagedAttention` bound to one shape of batch: what a captured graph replays.

    Built with the head counts, with how many rows decode, how many others there may be and how
    many tokens those have at most, and the dtype of the cache; rows that a step does not use are
    empty. Owns the buffers that depend on these, so launching allocates nothing when `out` is
    given. `schedule` divides the work from the lengths, on the device, once per step; every layer
    of the step then launches.

    `window` and `sinks` as in `PagedAttention`; those of one window share a binding. An ordered
    kernel also takes `most_keys`, which no row of any step exceeds, and a `Scratch`.

    `early`: between `schedule` and this a kernel was launched that waits for what is before it ere
    the next may start, as an embedding does. Then the schedule, the block tables and all keys and
    values but those of `q` itself may be read before the kernel ahead is done.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_decode_rows: int,
        num_extend_rows: int,
        num_extend_tokens: int,
        kv_dtype: torch.dtype,
        device: torch.device,
        *,
        window: int = 0,
    ) -> None: ...

    def schedule(self, cu_query_lens: torch.Tensor, context_lens: torch.Tensor) -> None: ...

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        scale: float,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        sinks: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        early: bool = True,
    ) -> torch.Tensor: ...


class TurnsQueries(Protocol):
    """What a bound kernel may offer for steps of one query a row.

    `turns_queries`: whether it does in this binding. `from_qkv` then stands for `rope.op`,
    where all of a head rotates, and the attention after it: `qkv` [T, (H + 2 K) d], or float32
    [parts, T, ...] to be added up. Keys and values of tokens that no row has are not written."""

    turns_queries: bool

    def from_qkv(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        slots: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        scale: float,
        *,
        out: torch.Tensor | None = None,
        early: bool = True,
    ) -> torch.Tensor: ...
