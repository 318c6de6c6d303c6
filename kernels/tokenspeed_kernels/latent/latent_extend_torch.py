"""Latent attention over keys and values made from the latents in torch, a chunk at a time."""

from __future__ import annotations

import torch

from tokenspeed_kernels.latent.op import LatentPool
from tokenspeed_kernels.latent.reference import row_tokens


def latent_extend(
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
) -> torch.Tensor:
    """See `op.LatentExtend`. In float32; reads the lengths on the host."""
    out = torch.empty(*query.shape[:2], value_up.shape[2], dtype=query.dtype)
    ups = key_up.float().transpose(1, 2), value_up.float()
    begins, contexts = cu_query_lens.tolist(), context_lens.tolist()
    for row, context_len in enumerate(contexts):
        begin, end = begins[row], begins[row + 1]
        if begin == end:
            continue
        # [H, Q, d]: one product per head.
        queries = query[begin:end].float().transpose(0, 1) * scale
        turned = rotated[begin:end].float().transpose(0, 1) * scale
        tokens = row_tokens(pool, block_tables[row], context_len + end - begin)
        made = _attend_row(queries, turned, tokens, ups, context_len, chunk_tokens)
        out[begin:end] = made.transpose(0, 1).to(query.dtype)
    return out


def _attend_row(
    queries: torch.Tensor,
    turned: torch.Tensor,
    tokens: tuple[torch.Tensor, torch.Tensor],
    ups: tuple[torch.Tensor, torch.Tensor],
    context_len: int,
    chunk_tokens: int,
) -> torch.Tensor:
    """[H, Q, value]. The sums before a chunk fade by how much its maxima are higher."""
    latents, ropes = tokens
    num_queries = queries.shape[1]
    sees = context_len + 1 + torch.arange(num_queries).unsqueeze(1)
    top = torch.full((*queries.shape[:2], 1), float("-inf"))
    total = torch.zeros_like(top)
    acc = torch.zeros(*queries.shape[:2], ups[1].shape[2])
    for first in range(0, len(latents), chunk_tokens):
        latent, rope = (part[first : first + chunk_tokens] for part in (latents, ropes))
        keys, values = latent @ ups[0], latent @ ups[1]
        scores = queries @ keys.transpose(1, 2) + turned @ rope.T
        if first + len(latent) > context_len + 1:
            hidden = first + torch.arange(len(latent)) >= sees
            scores.masked_fill_(hidden, float("-inf"))
        # Every query sees the row's first token, so after the first chunk no maximum is -inf.
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        fade = (top - higher).exp_()
        weights = scores.sub_(higher).exp_()
        total = total * fade + weights.sum(-1, keepdim=True)
        acc = acc * fade + weights @ values
        top = higher
    return acc / total
