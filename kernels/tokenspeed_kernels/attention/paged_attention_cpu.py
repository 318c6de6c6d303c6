"""Paged attention on a CPU: float32 queries, a float32 or bfloat16 cache, one pass with a running
softmax in float32. The code is csrc/cpu/vector/attention_*.inc: a decode form whose lanes are
dimensions, an extend form whose lanes are queries."""

from __future__ import annotations

from functools import partial

import torch

from tokenspeed_kernels import _cpu


def _paged_attention(
    isa: int,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    assert q.dtype is torch.float32 and k_cache.dtype is v_cache.dtype
    assert block_tables.dtype is torch.int32 and cu_query_lens.dtype is torch.int32
    assert context_lens.dtype is torch.int32
    assert q.is_contiguous() and k_cache.is_contiguous() and v_cache.is_contiguous()
    assert block_tables.is_contiguous() and cu_query_lens.is_contiguous()
    assert context_lens.is_contiguous()
    _, heads, head_dim = q.shape
    _, block_size, kv_heads, _ = k_cache.shape
    rows, max_blocks = block_tables.shape
    out = torch.empty_like(q)
    _cpu.paged_attention(
        isa,
        q.data_ptr(),
        out.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        block_tables.data_ptr(),
        cu_query_lens.data_ptr(),
        context_lens.data_ptr(),
        rows,
        max_blocks,
        block_size,
        heads,
        kv_heads,
        head_dim,
        scale,
        k_cache.dtype is torch.bfloat16,
    )
    return out


paged_attention_avx512 = partial(_paged_attention, _cpu.AVX512)
paged_attention_avx2 = partial(_paged_attention, _cpu.AVX2)
paged_attention_portable = partial(_paged_attention, _cpu.PORTABLE)
