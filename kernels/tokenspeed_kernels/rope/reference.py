"""Rope and KV write in torch."""

from __future__ import annotations

import torch

from tokenspeed_kernels.norm.reference import rms_norm


def rope_kv_write(
    qkv: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> torch.Tensor:
    """See `op.RopeKvWrite`."""
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, k_cache.shape[3])
    q, k, v = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    angles = cos_sin.index_select(0, positions).unsqueeze(1)
    _write(k_cache, slots, _rotate(k, angles), k_scale)
    _write(v_cache, slots, v, v_scale)
    return _rotate(q, angles)


def _write(cache: torch.Tensor, slots: torch.Tensor, x: torch.Tensor, scale: float) -> None:
    if cache.dtype.itemsize == 1:
        largest = torch.finfo(cache.dtype).max
        x = (x.float() / scale).clamp(-largest, largest)
        # Bytes, since torch copies no float8 by index.
        cache.view(torch.uint8).flatten(0, 1).index_copy_(
            0, slots, x.to(cache.dtype).view(torch.uint8)
        )
    else:
        cache.flatten(0, 1).index_copy_(0, slots, x.to(cache.dtype))


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    half = angles.shape[-1] // 2
    cos, sin = angles[..., :half], angles[..., half:]
    wide = x.float()
    a, b, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1).to(x.dtype)
