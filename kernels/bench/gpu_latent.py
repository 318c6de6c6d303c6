"""Latent attention on a CUDA device: decode against the read ceiling, extend against the matrix
units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from gpu_measure import READ_GBS, Result, arithmetic, memory, microseconds, sets_for
from tokenspeed_kernels.attention.paged_attention_triton import Tiling
from tokenspeed_kernels.compile_triton import compile_all
from tokenspeed_kernels.latent.latent_attention_triton import DECODE, WIDE, LatentAttentionTriton
from tokenspeed_kernels.latent.op import LatentPool

RANK, ROPE, BLOCK = 512, 64, 64
BF16_TFLOPS = 663.0
CONTEXTS = {1: 1024, 4: 4096, 16: 16384, 50: 50000}
DECODES = [(1, 1), (1, 16), (1, 50), (8, 16), (16, 50), (32, 16), (64, 4), (128, 1)]
TOKEN_BYTES = {"bf16": 1152, "fp8": 576, "scaled": 644}


def _pool(kind: str, blocks: int) -> LatentPool:
    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_()

    if kind == "scaled":
        return LatentPool(
            random(blocks, BLOCK, RANK).to(torch.float8_e4m3fn),
            random(blocks, BLOCK, ROPE),
            torch.rand(blocks, BLOCK, device="cuda") + 0.5,
        )
    whole = random(blocks, BLOCK, RANK + ROPE)
    whole = whole if kind == "bf16" else whole.to(torch.float8_e4m3fn)
    return LatentPool(whole[..., :RANK], whole[..., RANK:])


class Batch:
    """Rows of equal length over a cache of random blocks in random order."""

    def __init__(self, query_len: int, context: int, rows: int, heads: int, kind: str, sets: int):
        blocks = -(-(query_len + context) // BLOCK)
        self.pools = [_pool(kind, rows * blocks + 1) for _ in range(sets)]
        order = torch.randperm(rows * blocks, device="cuda") + 1
        self.tables = order.view(rows, blocks).to(torch.int32)
        self.cu = torch.arange(rows + 1, device="cuda", dtype=torch.int32) * query_len
        self.context = torch.full((rows,), context, device="cuda", dtype=torch.int32)
        shape = (rows * query_len, heads, RANK + ROPE)
        self.query = torch.randn(shape, device="cuda").to(torch.bfloat16)
        self.rows, self.query_len, self.heads = rows, query_len, heads

    def call(self, tiling: Tiling | None) -> None:
        bound = self._bound(tiling)
        bound.schedule(self.cu, self.context)
        bound.latents(self.query, self.pools[0], self.tables, 0.07)

    def _bound(self, tiling: Tiling | None) -> LatentAttentionTriton:
        one = self.query_len == 1
        return LatentAttentionTriton(
            self.heads, RANK, ROPE, self.rows if one else 0, 0 if one else self.rows,
            len(self.query), self.pools[0].latent.dtype, self.query.device, tiling, tiling,
        )  # fmt: skip

    def us(self, tiling: Tiling | None) -> float:
        bound = self._bound(tiling)
        bound.schedule(self.cu, self.context)
        torch.cuda.synchronize()
        return microseconds(
            [lambda p=p: bound.latents(self.query, p, self.tables, 0.07) for p in self.pools]
        )


def decode(
    batch: int, thousands: int, kind: str, tilings: dict[str, Tiling | None], queries: int = 1
) -> Iterator[Result]:
    """16 heads, `queries` tokens a row, over `thousands` * 1000 (1k: 1024) cached ones."""
    length = CONTEXTS[thousands]
    size = batch * length * TOKEN_BYTES[kind]
    made = Batch(queries, length - queries, batch, 16, kind, sets_for(size))
    case = f"{batch} x {thousands}k q{queries} {kind}"
    for name, tiling in tilings.items():
        yield memory("latent", name, case, made.us(tiling), size, READ_GBS)


def extend(query_len: int, context: int, kind: str) -> Iterator[Result]:
    """One prompt's part; products of queries with latents and of weights with latents."""
    made = Batch(query_len, context, 1, 16, kind, 1)
    pairs = query_len * context + query_len * query_len / 2
    flops = 2 * 16 * (2 * RANK + ROPE) * pairs
    case = f"{query_len} on {context} {kind}"
    yield arithmetic("latent", "triton", case, made.us(None), flops, BF16_TFLOPS)


def run() -> Iterator[Result]:
    for kind in ("bf16", "scaled", "fp8"):
        for batch, thousands in DECODES:
            yield from decode(batch, thousands, kind, {"triton": None})
    yield from decode(16, 50, "bf16", {"triton": None}, queries=4)
    for query_len, context in ((2048, 0), (500, 50000)):
        yield from extend(query_len, context, "bf16")


def _tilings(kind: str) -> dict[str, Tiling]:
    variants = [(64, 4, 3, 1, 1), (64, 4, 2, 2, 1), (64, 8, 2, 2, 1)]
    if kind != "bf16":
        variants = [(64, 4, 3, 2, 1), (64, 8, 3, 1, 1), (128, 8, 2, 1, 1)]
    return {
        f"k{keys}w{warps}s{stages}p{programs}": replace(
            DECODE,
            keys=keys,
            warps=warps,
            stages=stages,
            programs_per_multiprocessor=programs,
            cost=cost,
        )
        for keys, warps, stages, programs, cost in variants
    }


_WIDES = {
    f"k{keys}s{stages}": replace(WIDE, keys=keys, stages=stages)
    for keys, stages in ((32, 3), (64, 2))
}


def tune() -> Iterator[Result]:
    kinds = {kind: _tilings(kind) for kind in ("scaled", "bf16")}
    compile_all(
        [partial(Batch(1, 128, 1, 16, kind, 1).call, tiling)
         for kind, tilings in kinds.items() for tiling in tilings.values()]
        + [partial(Batch(4, 128, 1, 16, "bf16", 1).call, tiling) for tiling in _WIDES.values()]
    )  # fmt: skip
    for batch, thousands in [(16, 50), (1, 50), (1, 1), (8, 16), (128, 1)]:
        for kind, tilings in kinds.items():
            yield from decode(batch, thousands, kind, dict(tilings))
    yield from decode(16, 50, "bf16", dict(_WIDES), queries=4)
