"""Rope and KV write on a CPU: float32 in, a float32 or bfloat16 cache. The code is
csrc/cpu/vector/rope.inc."""

from __future__ import annotations

from functools import partial

import torch

from tokenspeed_kernels import _cpu


def _rope_kv_write(
    isa: int,
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
) -> torch.Tensor:
    assert qkv.dtype is torch.float32 and cos_sin.dtype is torch.float32
    assert positions.dtype is torch.int32 and slots.dtype is torch.int64
    assert k_cache.dtype is v_cache.dtype
    assert qkv.is_contiguous() and cos_sin.is_contiguous()
    assert positions.is_contiguous() and slots.is_contiguous()
    assert k_cache.is_contiguous() and v_cache.is_contiguous()
    tokens, head_dim = qkv.shape[0], k_cache.shape[3]
    q = torch.empty(tokens, num_heads, head_dim)
    _cpu.rope_kv_write(
        isa,
        qkv.data_ptr(),
        q.data_ptr(),
        positions.data_ptr(),
        cos_sin.data_ptr(),
        slots.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        0 if q_norm is None else q_norm.data_ptr(),
        0 if k_norm is None else k_norm.data_ptr(),
        tokens,
        num_heads,
        num_kv_heads,
        head_dim,
        cos_sin.shape[1],
        eps,
        k_cache.dtype is torch.bfloat16,
    )
    return q


rope_kv_write_avx512 = partial(_rope_kv_write, _cpu.AVX512)
rope_kv_write_avx2 = partial(_rope_kv_write, _cpu.AVX2)
rope_kv_write_portable = partial(_rope_kv_write, _cpu.PORTABLE)
