"""Latent attention in torch."""

from __future__ import annotations

import torch

from tokenspeed_kernels.latent.op import LatentPool
from tokenspeed_kernels.norm.reference import rms_norm
from tokenspeed_kernels.weight import E4M3_LARGEST

FP8 = torch.float8_e4m3fn
# A token of zeros has a scale all the same.
LEAST_SCALE = 1e-12


def head_product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """`x` [T, H, K] times the matrix of each head, `weight` [H, K, N], into `out` [T, H, N]. `x`
    and `out` may be views of wider rows."""
    torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))


def latent_kv_write(
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
) -> torch.Tensor:
    """See `op.LatentKvWrite`."""
    nope, rank = key_up.shape[1:]
    width = rank + cos_sin.shape[1]
    absorbed = torch.empty(*query.shape[:2], width, dtype=query.dtype, device=query.device)
    first = slice(absorbed_tokens)
    head_product(query[first, :, :nope], key_up, absorbed[first, :, :rank])
    angles = cos_sin.index_select(0, positions)
    latent = rms_norm(kv[:, :rank].contiguous(), weight, eps).float()
    rope = _rotate(kv[:, rank:].float(), angles)
    absorbed[..., rank:] = _rotate(query[..., nope:].float(), angles.unsqueeze(1)).to(query.dtype)
    if pool.scales is not None:
        scales = (latent.abs().amax(-1) / E4M3_LARGEST).clamp(min=LEAST_SCALE)
        _put(pool.scales.unsqueeze(-1), slots, scales.unsqueeze(-1))
        latent = latent / scales.unsqueeze(-1)
    elif pool.latent.dtype == FP8:
        latent, rope = latent / pool.scale, rope / pool.scale
    _put(pool.latent, slots, latent)
    _put(pool.rope, slots, rope)
    return absorbed


def _put(plane: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Rows [T, w] to their slots of [blocks, block_size, w]; float8 saturates."""
    block_size = plane.shape[1]
    if plane.dtype == FP8:
        rows = rows.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(FP8).view(torch.uint8)
        plane = plane.view(torch.uint8)
    plane[slots // block_size, slots % block_size] = rows.to(plane.dtype)


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    half = angles.shape[-1] // 2
    cos, sin, a, b = angles[..., :half], angles[..., half:], x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def latent_attention(
    query: torch.Tensor,
    pool: LatentPool,
    block_tables: torch.Tensor,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    value_up: torch.Tensor,
) -> torch.Tensor:
    """See `op.LatentAttention`. Reads the lengths on the host: not for graph capture."""
    rank = pool.latent.shape[-1]
    latents = torch.empty(*query.shape[:2], rank, dtype=query.dtype, device=query.device)
    out = torch.empty(*query.shape[:2], value_up.shape[2], dtype=query.dtype, device=query.device)
    begins, contexts = cu_query_lens.tolist(), context_lens.tolist()
    for row, context_len in enumerate(contexts):
        begin, end = begins[row], begins[row + 1]
        if begin == end:
            continue
        latent, rope = row_tokens(pool, block_tables[row], context_len + end - begin)
        keys = torch.cat((latent, rope), dim=-1)
        scores = torch.einsum("qhd,sd->hqs", query[begin:end].float(), keys) * scale
        last_seen = context_len + torch.arange(end - begin, device=query.device)
        hidden = torch.arange(len(keys), device=query.device) > last_seen.unsqueeze(1)
        weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
        latents[begin:end] = torch.einsum("hqs,sd->qhd", weights, latent).to(query.dtype)
    head_product(latents, value_up, out)
    return out


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
    """See `op.LatentExtend`; whole rows at once, in float32."""
    out = torch.empty(*query.shape[:2], value_up.shape[2], dtype=query.dtype, device=query.device)
    begins, contexts = cu_query_lens.tolist(), context_lens.tolist()
    for row, context_len in enumerate(contexts):
        begin, end = begins[row], begins[row + 1]
        if begin == end:
            continue
        latent, rope = row_tokens(pool, block_tables[row], context_len + end - begin)
        keys = torch.einsum("sr,hnr->hsn", latent, key_up.float())
        values = torch.einsum("sr,hrv->hsv", latent, value_up.float())
        scores = torch.einsum("qhn,hsn->hqs", query[begin:end].float(), keys)
        scores += torch.einsum("qhe,se->hqs", rotated[begin:end].float(), rope)
        last_seen = context_len + torch.arange(end - begin, device=query.device)
        hidden = torch.arange(len(latent), device=query.device) > last_seen.unsqueeze(1)
        weights = (scores * scale).masked_fill_(hidden, float("-inf")).softmax(-1)
        out[begin:end] = torch.einsum("hqs,hsv->qhv", weights, values).to(query.dtype)
    return out


def row_tokens(
    pool: LatentPool, block_table: torch.Tensor, seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `seq_len` tokens of one row, float32: latents [S, rank], rotated parts [S, r]."""
    block_size = pool.latent.shape[1]
    blocks = block_table[: (seq_len + block_size - 1) // block_size].long()
    latent, rope = (
        plane[blocks].flatten(0, 1)[:seq_len].float() for plane in (pool.latent, pool.rope)
    )
    if pool.scales is not None:
        return latent * pool.scales[blocks].flatten()[:seq_len].unsqueeze(-1), rope
    if pool.latent.dtype == FP8:
        return latent * pool.scale, rope * pool.scale
    return latent, rope
