"""Paged attention in torch: row by row, gathering the blocks of that row alone."""

from __future__ import annotations

import torch


def paged_attention(
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
) -> torch.Tensor:
    """See `op.PagedAttention`. Reads the lengths on the host: not for graph capture."""
    out = torch.empty_like(q)
    begins, contexts = cu_query_lens.tolist(), context_lens.tolist()
    block_size = k_cache.shape[1]
    for row, context_len in enumerate(contexts):
        begin, end = begins[row], begins[row + 1]
        if begin == end:
            continue
        seq_len = context_len + end - begin
        # The first block that any of the queries sees.
        first = max(0, context_len + 1 - window) // block_size if window else 0
        past = first * block_size
        keys = _row_tokens(k_cache, block_tables[row, first:], seq_len - past)
        values = _row_tokens(v_cache, block_tables[row, first:], seq_len - past)
        attended = _attend(
            q[begin:end], keys, values, context_len - past, scale * k_scale, window, sinks
        )
        out[begin:end] = (attended * v_scale).to(q.dtype)
    return out


def _row_tokens(cache: torch.Tensor, block_table: torch.Tensor, seq_len: int) -> torch.Tensor:
    """The first `seq_len` tokens of one row, float32 [K, seq_len, d]."""
    block_size = cache.shape[1]
    blocks = block_table[: (seq_len + block_size - 1) // block_size]
    tokens = cache.index_select(0, blocks).flatten(0, 1)[:seq_len]
    return tokens.float().transpose(0, 1)


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    context_len: int,
    scale: float,
    window: int,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[Q, H, d] queries over [K, S, d] keys and values; query i sees context_len + i + 1.
    Gives float32."""
    query_len, num_heads, head_dim = q.shape
    num_kv_heads, seq_len, _ = keys.shape
    group = num_heads // num_kv_heads
    # [K, group * Q, d]: one product per kv head serves its whole group.
    grouped = q.float().view(query_len, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    scores = grouped.reshape(num_kv_heads, group * query_len, head_dim) @ keys.transpose(1, 2)
    scores = scores.mul_(scale).view(num_kv_heads, group, query_len, seq_len)
    if query_len > 1 or window:
        last_seen = (context_len + torch.arange(query_len, device=q.device)).unsqueeze(1)
        places = torch.arange(seq_len, device=q.device)
        hidden = places > last_seen
        if window:
            hidden |= places <= last_seen - window
        scores.masked_fill_(hidden, float("-inf"))
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        sink = sinks.float().view(num_kv_heads, group, 1, 1).expand(-1, -1, query_len, -1)
        weights = torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]
    out = weights.reshape(num_kv_heads, group * query_len, seq_len) @ values
    out = out.view(num_kv_heads, group, query_len, head_dim)
    return out.permute(2, 0, 1, 3).reshape(query_len, num_heads, head_dim)
