"""Attention on a CUDA device: decode against the read ceiling, extend against the matrix units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F

from tokenspeed_kernels.attention.paged_attention_hopper import (
    EXTEND_HOPPER,
    RING_FEW,
    RING_MANY,
    RingTiling,
    bind_hopper,
    launch_hopper,
    ring_tiling,
)
from tokenspeed_kernels.attention.paged_attention_triton import (
    DECODE_FEW,
    DECODE_FP8,
    DECODE_MANY,
    EXTEND,
    Launch,
    PagedAttentionTriton,
    Tiling,
    decode_tiling,
)
from tokenspeed_kernels.bench.gpu_measure import READ_GBS, microseconds, sets_for
from tokenspeed_kernels.bench.result import Result, arithmetic, memory
from tokenspeed_kernels.launch_triton import is_hopper

HEADS, HEAD_DIM, BLOCK = 32, 128, 64
# Sustained over seconds; short bursts reach 740 to 828.
BF16_TFLOPS = 663.0
# Rows, their thousands of tokens, and how many thousands all begin with.
SHARED = [(8, 50, 8), (16, 50, 8), (16, 50, 40)]
DECODES = [(1, 1), (1, 16), (1, 50), (8, 16), (16, 50), (32, 16), (64, 4), (128, 1)]
EXTENDS = [(8192, 0), (32768, 0), (500, 50000), (2048, 16384), (128, 50000)]


class Batch:
    """Rows of equal length over a cache of random blocks in random order, of which they have those
    of the first `shared` tokens in common."""

    def __init__(self, query_len, context, rows, kv_heads, kv_dtype, sets, shared=0):
        device = torch.device("cuda")
        blocks = -(-(query_len + context) // BLOCK)
        shape = (rows * blocks + 1, BLOCK, kv_heads, HEAD_DIM)
        self.caches = [tuple(_random(shape, kv_dtype) for _ in "kv") for _ in range(sets)]
        order = torch.randperm(rows * blocks, device=device) + 1
        self.tables = order.view(rows, blocks).to(torch.int32)
        self.tables[:, : shared // BLOCK] = self.tables[0, : shared // BLOCK]
        self.cu = torch.arange(rows + 1, device=device, dtype=torch.int32) * query_len
        self.context = torch.full((rows,), context, device=device, dtype=torch.int32)
        tokens = rows * query_len
        self.q = torch.randn(tokens, HEADS, HEAD_DIM, device=device).to(torch.bfloat16)
        self.out = torch.empty_like(self.q)
        self.rows, self.query_len, self.kv_heads = rows, query_len, kv_heads

    def us(self, tiling: Tiling, launch: Launch | None = None) -> float:
        decode = self.query_len == 1
        shape = (
            HEADS, self.kv_heads, HEAD_DIM, self.rows if decode else 0,
            0 if decode else self.rows, self.q.shape[0], self.caches[0][0].dtype, self.q.device,
        )  # fmt: skip
        if isinstance(tiling, RingTiling):
            bound = bind_hopper(*shape, decode=tiling)
        else:
            bound = PagedAttentionTriton(*shape, decode=tiling, extend=tiling, launch_extend=launch)
        bound.schedule(self.cu, self.context)
        torch.cuda.synchronize()
        return microseconds(
            [
                lambda k=k, v=v: bound(self.q, k, v, self.tables, HEAD_DIM**-0.5, out=self.out)
                for k, v in self.caches
            ]
        )


def _random(shape, dtype):
    values = torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_()
    return values.to(dtype)


def decode(
    batch: int, thousands: int, kv_heads: int, kv_dtype: torch.dtype, tilings: dict[str, Tiling],
    shared: int = 0,
) -> Iterator[Result]:  # fmt: skip
    """One query a row over `thousands` * 1000 (1k: 1024) cached tokens, the first `shared` * 1000
    of which are those of all rows."""
    context = {1: 1024, 4: 4096, 16: 16384, 50: 50000}[thousands] - 1
    tokens = batch * (context + 1) - (batch - 1) * shared * 1000
    size = tokens * kv_heads * HEAD_DIM * 2 * kv_dtype.itemsize
    made = Batch(1, context, batch, kv_heads, kv_dtype, sets_for(size), shared * 1000)
    case = f"{batch} x {thousands}k {HEADS}/{kv_heads} {_short(kv_dtype)}"
    if shared:
        case += f", {shared}k shared"
    for name, tiling in tilings.items():
        yield memory("decode", name, case, made.us(tiling), size, READ_GBS)


def extend(
    query_len: int, context: int, kv_heads: int, kv_dtype: torch.dtype, tilings: dict[str, Tiling],
    launch: Launch | None = None,
) -> Iterator[Result]:  # fmt: skip
    """One row of new tokens on a cached prefix."""
    seen = query_len * context + query_len * (query_len + 1) // 2
    flops = 4.0 * HEADS * HEAD_DIM * seen
    made = Batch(query_len, context, 1, kv_heads, kv_dtype, 2)
    case = f"{query_len} on {context} {_short(kv_dtype)}"
    for name, tiling in tilings.items():
        yield arithmetic("extend", name, case, made.us(tiling, launch), flops, BF16_TFLOPS)


def dense_peer(query_len: int) -> Iterator[Result]:
    """torch's attention (cuDNN) over contiguous keys, the heads of a group repeated."""
    q, k, v = (
        torch.randn(1, HEADS, query_len, HEAD_DIM, device="cuda").to(torch.bfloat16) for _ in "qkv"
    )
    flops = 4.0 * HEADS * HEAD_DIM * query_len * (query_len + 1) / 2
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        us = microseconds([lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)])
    yield arithmetic("extend", "torch cudnn, dense", f"{query_len} on 0", us, flops, BF16_TFLOPS)


def _short(dtype: torch.dtype) -> str:
    return "bf16" if dtype is torch.bfloat16 else "fp8"


def _decode_variants(kv_dtype: torch.dtype) -> dict[str, Tiling]:
    chosen = {"few": DECODE_FEW, "many": DECODE_MANY, "fp8": DECODE_FP8}
    if kv_dtype is torch.bfloat16:
        return chosen | {
            "many cost 0": replace(DECODE_MANY, cost=0),
            "many cost 3": replace(DECODE_MANY, cost=3),
            "few w4": replace(DECODE_FEW, warps=4),
            "few cost 1": replace(DECODE_FEW, cost=1),
            "ring few": RING_FEW,
            "ring many": RING_MANY,
            "ring many cost 0": replace(RING_MANY, cost=0),
        }
    return chosen | {
        "fp8 cost 1": replace(DECODE_FP8, cost=1),
        "fp8 w8 x1": replace(DECODE_FP8, warps=8, programs_per_multiprocessor=1),
        "fp8 w8 x2": replace(DECODE_FP8, warps=8),
        "fp8 s4": replace(DECODE_FP8, stages=4),
        "fp8 n256 w8 x1": replace(DECODE_FP8, keys=256, warps=8, programs_per_multiprocessor=1),
        "many x3": replace(DECODE_MANY, programs_per_multiprocessor=3),
        "many s4": replace(DECODE_MANY, stages=4),
    }


def _extend_variants() -> dict[str, Tiling]:
    return {
        "extend": EXTEND,
        "cost 2": replace(EXTEND, cost=2),
        "cost 8": replace(EXTEND, cost=8),
        "tma": replace(EXTEND, tensor_maps=True),
        "n128 s3": replace(EXTEND, keys=128),
        "tma lanes": replace(EXTEND, tensor_maps=True, lanes=True),
    }


def _hopper_variants() -> dict[str, Tiling]:
    return {
        "roles": EXTEND_HOPPER,
        "roles s3": replace(EXTEND_HOPPER, stages=3),
        "roles, shares": replace(EXTEND_HOPPER, draws=False),
        "roles in turn": replace(EXTEND_HOPPER, specialise=True),
        "roles cost 4": replace(EXTEND_HOPPER, cost=4),
    }


def tune() -> Iterator[Result]:
    """Every variant on the cases that decide."""
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        for batch, thousands in [(1, 16), (1, 50), (16, 50), (32, 16), (64, 4), (128, 1)]:
            yield from decode(batch, thousands, 8, dtype, _decode_variants(dtype))
    for query_len, context in [(8192, 0), (500, 50000)]:
        yield from extend(query_len, context, 8, torch.bfloat16, _extend_variants())
        yield from extend(query_len, context, 8, torch.bfloat16, _hopper_variants(), launch_hopper)


def _chosen(rows: int, kv_dtype: torch.dtype) -> dict[str, Tiling]:
    """As plans take them, on Hopper and elsewhere."""
    found = {"triton": decode_tiling(rows, kv_dtype)}
    if kv_dtype is torch.bfloat16 and is_hopper(torch.device("cuda")):
        found["rings"] = ring_tiling(rows)
    return found


def run() -> Iterator[Result]:
    """The kernels as they are chosen, on every case."""
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        for batch, thousands in DECODES:
            yield from decode(batch, thousands, 8, dtype, _chosen(batch, dtype))
        for batch, thousands in [(1, 50), (16, 50), (128, 1)]:
            yield from decode(batch, thousands, 4, dtype, _chosen(batch, dtype))
    for batch, thousands, shared in SHARED:
        tilings = _chosen(batch, torch.bfloat16)
        yield from decode(batch, thousands, 8, torch.bfloat16, tilings, shared)
    for query_len, context in EXTENDS:
        yield from extend(query_len, context, 8, torch.bfloat16, {"triton": EXTEND})
        roles = {"roles": EXTEND_HOPPER}
        yield from extend(query_len, context, 8, torch.bfloat16, roles, launch_hopper)
    yield from extend(500, 50000, 8, torch.float8_e4m3fn, {"triton": EXTEND})
    yield from dense_peer(8192)
