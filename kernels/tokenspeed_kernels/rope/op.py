"""Rotary position embedding, optional per-head norm, and the write of K and V to the cache.

Half-split order: with r = rotary_dim and c, s the cosine and sine of the position,
out[i] = x[i] c[i] - x[i + r/2] s[i] and out[i + r/2] = x[i + r/2] c[i] + x[i] s[i] for i < r/2;
dimensions from r on pass through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class RopeKvWrite(Protocol):
    """Splits `qkv` [T, (H + 2 K) d], norms q and k per head where `q_norm`, `k_norm` [d] are
    given (both or neither), rotates both, writes k and v, and gives q [T, H, d].

    `positions` [T] int32 index `cos_sin` [L, rotary_dim] float32 (cosines, then sines).
    `slots` [T] int64 are block * block_size + offset in `k_cache`, `v_cache`
    [num_blocks, block_size, K, d], which may be narrower than `qkv`. Tokens that share a slot
    (padding, in block 0) leave one of them there. `qkv` is left alone. A float8 cache holds
    values over `k_scale` and `v_scale`, saturated at its largest.
    """

    def __call__(
        self,
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
    ) -> torch.Tensor: ...
