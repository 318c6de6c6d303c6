"""Rope, per-head norm and KV write in Triton: one pass over qkv, some heads per program."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import (
    cdiv,
    dependent_launch,
    next_power_of_2,
    start_next,
    wait_for_producer,
)
from tokenspeed_kernels.weight import E4M3_LARGEST

_HEADS = 8
# Of a lone token, for which everything waits: where qkv is whole, and where it is in parts.
_HEADS_OF_ONE = (1, 2)
# What is larger saturates instead of becoming nan.
_LARGEST = tl.constexpr(E4M3_LARGEST)


@triton.jit
def _to_cache(x, inverse_scale, POINTER, FP8: tl.constexpr):
    if FP8:
        x = tl.minimum(tl.maximum(x.to(tl.float32) * inverse_scale, -_LARGEST), _LARGEST)
    return x.to(POINTER.dtype.element_ty)


@triton.jit
def _load(SOURCE, mask, part_stride, PARTS: tl.constexpr, OUT: tl.constexpr):
    """Values, or the sum of their float32 parts, as OUT."""
    x = tl.load(SOURCE, mask=mask, other=0.0)
    for part in tl.static_range(1, PARTS):
        x += tl.load(SOURCE + part * part_stride, mask=mask, other=0.0)
    return x.to(OUT)


@triton.jit
def _norm_weight(Q_NORM, K_NORM, is_q, index, inside):
    q = tl.load(Q_NORM + index, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(K_NORM + index, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_q[:, None], q[None, :], k[None, :])


@triton.jit
def _rope_kv_write(
    QKV, POSITIONS, COS_SIN, SLOTS, Q_NORM, K_NORM, Q, K_CACHE, V_CACHE,
    qkv_stride, part_stride, eps, inverse_k_scale, inverse_v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
    REST: tl.constexpr, REST_PAD: tl.constexpr, HEADS: tl.constexpr,
    PARTS: tl.constexpr, NORM: tl.constexpr, FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Head axis of QKV: H of q, K of k, K of v. A head is its first half, second half and, where
    rotary_dim < d, the rest that passes through."""
    TYPE: tl.constexpr = Q.dtype.element_ty
    start_next(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_q, is_v = head < H, head >= H + K
    is_k = (head >= H) & (head < H + K)
    live = (head < H + 2 * K)[:, None]
    i = tl.arange(0, HALF_PAD)
    first = (i < HALF)[None, :]
    position = tl.load(POSITIONS + token).to(tl.int64)
    slot = tl.load(SLOTS + token)
    cos = tl.load(COS_SIN + position * (2 * HALF) + i, mask=i < HALF, other=0.0)[None, :]
    sin = tl.load(COS_SIN + position * (2 * HALF) + HALF + i, mask=i < HALF, other=0.0)[None, :]
    wait_for_producer(PDL)

    source = QKV + token * qkv_stride + head[:, None] * D
    a = _load(source + i[None, :], live & first, part_stride, PARTS, TYPE)
    b = _load(source + HALF + i[None, :], live & first, part_stride, PARTS, TYPE)
    j = 2 * HALF + tl.arange(0, REST_PAD)
    last = (j < D)[None, :]
    if REST > 0:
        c = _load(source + j[None, :], live & last, part_stride, PARTS, TYPE)
    wa, wb = a.to(tl.float32), b.to(tl.float32)
    if NORM:
        square = tl.sum(wa * wa, 1) + tl.sum(wb * wb, 1)
        if REST > 0:
            wc = c.to(tl.float32)
            square += tl.sum(wc * wc, 1)
        scale = tl.rsqrt(square / D + eps)[:, None]
        ga = _norm_weight(Q_NORM, K_NORM, is_q, i, i < HALF)
        gb = _norm_weight(Q_NORM, K_NORM, is_q, HALF + i, i < HALF)
        # The norm rounds before and after its weight, and then the rotation starts.
        wa = (wa * scale).to(TYPE).to(tl.float32) * ga
        wb = (wb * scale).to(TYPE).to(tl.float32) * gb
        wa = wa.to(TYPE).to(tl.float32)
        wb = wb.to(TYPE).to(tl.float32)
        if REST > 0:
            gc = _norm_weight(Q_NORM, K_NORM, is_q, j, j < D)
            wc = (wc * scale).to(TYPE).to(tl.float32) * gc
            c = tl.where(is_v[:, None], c, wc.to(TYPE))
    ra = (wa * cos - wb * sin).to(TYPE)
    rb = (wb * cos + wa * sin).to(TYPE)

    to_q = Q + (token * H + head[:, None]) * D
    mask = is_q[:, None] & first
    tl.store(to_q + i[None, :], ra, mask=mask)
    tl.store(to_q + HALF + i[None, :], rb, mask=mask)
    to_k = K_CACHE + (slot * K + head[:, None] - H) * D
    mask = is_k[:, None] & first
    tl.store(to_k + i[None, :], _to_cache(ra, inverse_k_scale, K_CACHE, FP8), mask=mask)
    tl.store(to_k + HALF + i[None, :], _to_cache(rb, inverse_k_scale, K_CACHE, FP8), mask=mask)
    to_v = V_CACHE + (slot * K + head[:, None] - H - K) * D
    mask = is_v[:, None] & live & first
    tl.store(to_v + i[None, :], _to_cache(a, inverse_v_scale, V_CACHE, FP8), mask=mask)
    tl.store(to_v + HALF + i[None, :], _to_cache(b, inverse_v_scale, V_CACHE, FP8), mask=mask)
    if REST > 0:
        tl.store(to_q + j[None, :], c, mask=is_q[:, None] & last)
        tl.store(
            to_k + j[None, :], _to_cache(c, inverse_k_scale, K_CACHE, FP8),
            mask=is_k[:, None] & last,
        )  # fmt: skip
        tl.store(
            to_v + j[None, :], _to_cache(c, inverse_v_scale, V_CACHE, FP8),
            mask=is_v[:, None] & live & last,
        )  # fmt: skip


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
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `op.RopeKvWrite`. `qkv` may also be float32 [parts, T, ...], to be added up."""
    head_dim, rotary_dim = k_cache.shape[3], cos_sin.shape[1]
    parts, tokens = (1 if qkv.dim() == 2 else qkv.shape[0]), qkv.shape[-2]
    assert qkv.stride(-1) == 1 and qkv.shape[-1] == (num_heads + 2 * num_kv_heads) * head_dim
    assert parts == 1 or qkv.dtype is torch.float32
    dtype = qkv.dtype if qkv.dim() == 2 else torch.bfloat16
    assert k_cache.is_contiguous() and v_cache.is_contiguous() and k_cache.dtype is v_cache.dtype
    assert cos_sin.is_contiguous() and cos_sin.dtype is torch.float32
    assert (q_norm is None) == (k_norm is None)
    if out is None:
        out = torch.empty((tokens, num_heads, head_dim), dtype=dtype, device=qkv.device)
    assert out.is_contiguous() and out.dtype is dtype
    if tokens == 0:
        return out
    half, rest = rotary_dim // 2, head_dim - rotary_dim
    heads = _HEADS_OF_ONE[parts > 1] if tokens == 1 else _HEADS
    pdl = dependent_launch(qkv.device)
    _rope_kv_write[(tokens, cdiv(num_heads + 2 * num_kv_heads, heads))](
        qkv, positions, cos_sin, slots, q_norm, k_norm, out, k_cache, v_cache,
        qkv.stride(-2), qkv.stride(0), eps, 1.0 / k_scale, 1.0 / v_scale,
        H=num_heads, K=num_kv_heads, D=head_dim, HALF=half, HALF_PAD=next_power_of_2(half),
        REST=rest, REST_PAD=next_power_of_2(max(rest, 1)), HEADS=heads,
        PARTS=parts, NORM=q_norm is not None, FP8=k_cache.dtype is torch.float8_e4m3fn, PDL=pdl,
        num_warps=2, launch_pdl=pdl,
    )  # fmt: skip
    return out
