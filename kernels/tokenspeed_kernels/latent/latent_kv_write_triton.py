"""Norm, rotation, quantisation and store of latents in Triton, one program per token; beside them
programs that bring the queries of few tokens into the latent space."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.latent.head_product_triton import (
    INPUTS,
    MOST_TOKENS,
    OUTPUTS,
    TOKENS,
    _multiply_head,
    _weights_of,
    head_product,
)
from tokenspeed_kernels.latent.op import LatentPool
from tokenspeed_kernels.latent.reference import LEAST_SCALE
from tokenspeed_kernels.launch_triton import (
    cdiv,
    dependent_launch,
    next_power_of_2,
    start_next,
    wait_for_producer,
)
from tokenspeed_kernels.weight import E4M3_LARGEST

# What is larger saturates instead of becoming nan.
_LARGEST = tl.constexpr(E4M3_LARGEST)
_LEAST_SCALE = tl.constexpr(LEAST_SCALE)


@triton.jit
def _latent_kv_write(
    QUERY, KV, WEIGHT, POSITIONS, COS_SIN, SLOTS, LATENT, ROPE, SCALES, KEY_UP, ABSORBED,
    tokens, query_stride, kv_stride, latent_stride, rope_stride, eps, inverse_scale,
    H: tl.constexpr, H_PAD: tl.constexpr, HEAD: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    FP8: tl.constexpr, SCALED: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """HEAD: values of a query head, its last E rotate. R: rank. Programs beyond those of the
    tokens multiply BT tokens of a head by BN columns of its matrix."""
    # Attention has roles to set up and its share to look up.
    start_next(PDL)
    NOPE: tl.constexpr = HEAD - E
    BLOCKS: tl.constexpr = (R + BN - 1) // BN
    product = tl.program_id(0) - tokens
    head = (product // BLOCKS % H).to(tl.int64)
    n = product % BLOCKS * BN + tl.arange(0, BN)
    w = tl.zeros([BK, BN], KEY_UP.dtype.element_ty)
    # Weights, angles and slots are on their way while the producer of QUERY still runs.
    if product >= 0:
        w = _weights_of(KEY_UP, head, n, tl.arange(0, BK), NOPE, R)
    token = tl.program_id(0).to(tl.int64)
    writes = product < 0
    position = tl.load(POSITIONS + token, mask=writes, other=0).to(tl.int64)
    slot = tl.load(SLOTS + token, mask=writes, other=0)
    i = tl.arange(0, E // 2)
    cos = tl.load(COS_SIN + position * E + i, mask=writes, other=0.0)
    sin = tl.load(COS_SIN + position * E + E // 2 + i, mask=writes, other=0.0)
    weight = tl.load(WEIGHT + tl.arange(0, R), mask=writes, other=0.0).to(tl.float32)
    wait_for_producer(PDL)
    if product >= 0:
        t = (product // (BLOCKS * H) * BT + tl.arange(0, BT)).to(tl.int64)
        _multiply_head(
            QUERY, KEY_UP, ABSORBED, w, head, n, t, tokens, query_stride, HEAD, H * (R + E), R + E,
            NOPE, R, BK,
        )  # fmt: skip
    else:
        _write_token(
            QUERY, KV, weight, cos, sin, token, slot, LATENT, ROPE, SCALES, ABSORBED,
            query_stride, kv_stride, latent_stride, rope_stride, eps, inverse_scale,
            H, H_PAD, HEAD, R, E, FP8, SCALED,
        )  # fmt: skip


@triton.jit
def _write_token(
    QUERY, KV, weight, cos, sin, token, slot, LATENT, ROPE, SCALES, ABSORBED,
    query_stride, kv_stride, latent_stride, rope_stride, eps, inverse_scale,
    H: tl.constexpr, H_PAD: tl.constexpr, HEAD: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    FP8: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = E // 2
    i = tl.arange(0, HALF)
    r = tl.arange(0, R)
    dtype = KV.dtype.element_ty
    # All is asked for before anything waits: loads do not pass the sum's barriers, or a store.
    x = tl.load(KV + token * kv_stride + r).to(tl.float32)
    a = tl.load(KV + token * kv_stride + R + i).to(tl.float32)
    b = tl.load(KV + token * kv_stride + R + HALF + i).to(tl.float32)
    head = tl.arange(0, H_PAD)
    live = (head < H)[:, None]
    source = QUERY + token * query_stride + (head * HEAD + HEAD - E)[:, None] + i[None, :]
    qa = tl.load(source, mask=live, other=0.0).to(tl.float32)
    qb = tl.load(source + HALF, mask=live, other=0.0).to(tl.float32)
    x = (x * tl.rsqrt(tl.sum(x * x, 0) / R + eps)).to(dtype).to(tl.float32)
    # The norm rounds before and after its weight.
    x = (x * weight).to(dtype).to(tl.float32)
    ra, rb = a * cos - b * sin, b * cos + a * sin
    if SCALED:
        scale = tl.maximum(tl.max(tl.abs(x), 0) / _LARGEST, _LEAST_SCALE)
        tl.store(SCALES + slot, scale)
        x = x / scale
    elif FP8:
        x, ra, rb = x * inverse_scale, ra * inverse_scale, rb * inverse_scale
        ra = tl.minimum(tl.maximum(ra, -_LARGEST), _LARGEST)
        rb = tl.minimum(tl.maximum(rb, -_LARGEST), _LARGEST)
    if FP8:
        x = tl.minimum(tl.maximum(x, -_LARGEST), _LARGEST)
    tl.store(LATENT + slot * latent_stride + r, x.to(LATENT.dtype.element_ty))
    tl.store(ROPE + slot * rope_stride + i, ra.to(ROPE.dtype.element_ty))
    tl.store(ROPE + slot * rope_stride + HALF + i, rb.to(ROPE.dtype.element_ty))

    target = ABSORBED + (token * H + head)[:, None] * (R + E) + R + i[None, :]
    out = ABSORBED.dtype.element_ty
    tl.store(target, (qa * cos[None, :] - qb * sin[None, :]).to(out), mask=live)
    tl.store(target + HALF, (qb * cos[None, :] + qa * sin[None, :]).to(out), mask=live)


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
    tokens, heads, head = query.shape
    rank, rope_dim = weight.shape[0], cos_sin.shape[1]
    shape = (tokens, heads, rank + rope_dim)
    absorbed = torch.empty(shape, dtype=query.dtype, device=query.device)
    assert key_up.is_contiguous() and key_up.shape == (heads, head - rope_dim, rank)
    assert kv.stride(1) == 1 and kv.shape[1] == rank + rope_dim
    assert query.stride(2) == 1 and query.stride(1) == head
    assert cos_sin.is_contiguous() and cos_sin.dtype is torch.float32
    fp8 = pool.latent.dtype is torch.float8_e4m3fn
    pdl = dependent_launch(query.device)
    if tokens == 0:
        return absorbed
    products, first = 0, tokens if absorbed_tokens is None else absorbed_tokens
    if first <= MOST_TOKENS:
        products = cdiv(first, TOKENS) * heads * cdiv(rank, OUTPUTS)
    else:
        head_product(query[:first, :, : head - rope_dim], key_up, absorbed[:first, :, :rank])
    inputs = min(INPUTS, max(16, next_power_of_2(head - rope_dim)))
    _latent_kv_write[(tokens + products,)](
        query, kv, weight, positions, cos_sin, slots, pool.latent, pool.rope, pool.scales,
        key_up, absorbed, tokens, query.stride(0), kv.stride(0), pool.latent.stride(1),
        pool.rope.stride(1), eps, 1.0 / pool.scale, H=heads, H_PAD=next_power_of_2(heads),
        HEAD=head, R=rank, E=rope_dim, FP8=fp8, SCALED=pool.scales is not None, BT=TOKENS,
        BN=OUTPUTS, BK=inputs, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return absorbed
