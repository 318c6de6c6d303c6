"""Layers of a dense 8B model as a decode step runs them, in one chain of dependent launches.

Kernels that overlap cannot be chosen alone: here each choice is measured in the whole chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import triton

from tokenspeed_kernels.activation.silu_mul_triton import silu_mul
from tokenspeed_kernels.attention.paged_attention_hopper import (
    RING_FEW,
    RING_MANY,
    bind_hopper,
    ring_tiling,
)
from tokenspeed_kernels.attention.paged_attention_triton import (
    DECODE_FEW,
    DECODE_FP8,
    DECODE_MANY,
    PagedAttentionTriton,
    Tiling,
    decode_tiling,
)
from tokenspeed_kernels.bench.gpu_measure import READ_GBS, microseconds
from tokenspeed_kernels.bench.gpu_products import (
    BF16,
    FP8,
    SHAPES,
    Variant,
    chosen,
    compile_variants,
    label,
    product,
    quantised,
    weight,
)
from tokenspeed_kernels.bench.result import Result, memory
from tokenspeed_kernels.gemm.op import Quantised
from tokenspeed_kernels.gemm.tiles import Ring, Tile
from tokenspeed_kernels.launch_triton import is_hopper
from tokenspeed_kernels.norm.norm_triton import add_rms_norm, add_rms_norm_float8
from tokenspeed_kernels.rope.rope_kv_write_triton import rope_kv_write

LAYERS = 8
HEADS, KV_HEADS, HEAD_DIM, BLOCK, HIDDEN, INNER = 32, 8, 128, 64, 4096, 14336
CASES = [*(("bfloat16", rows) for rows in (1, 8, 32, 64, 128)), ("fp8", 1), ("fp8", 16)]
# None: torch's own.
Product = Tile | Ring | None
PRODUCTS = ("qkv", "o", "gate_up", "down")


@dataclass(frozen=True)
class AttentionVariant:
    """A tiling that another process may compile."""

    dtype: str
    tiling: Tiling

    def compile(self) -> str:
        kv = FP8 if self.dtype == "fp8" else BF16
        caches = [
            torch.zeros(8, BLOCK, KV_HEADS, HEAD_DIM, device="cuda", dtype=BF16).to(kv)
            for _ in "kv"
        ]
        q, out = (torch.zeros(2, HEADS, HEAD_DIM, device="cuda", dtype=BF16) for _ in "qo")
        cu = torch.arange(3, device="cuda", dtype=torch.int32)
        lens = torch.full((2,), 100, device="cuda", dtype=torch.int32)
        tables = torch.ones(2, 17, device="cuda", dtype=torch.int32)
        try:
            bound = _bound(2, kv, self.tiling)
            bound.schedule(cu, lens)
            bound(q, *caches, tables, HEAD_DIM**-0.5, out=out)
            torch.cuda.synchronize()
        except Exception as error:
            return f"{self}: {type(error).__name__} {str(error)[:90]}"
        return ""


@dataclass(frozen=True)
class Choice:
    """A tile for each product, None for torch's own; and the tiling of attention."""

    qkv: Product
    o: Product
    gate_up: Product
    down: Product
    attention: Tiling

    def __str__(self) -> str:
        parts = [f"{name} {_name(getattr(self, name))}" for name in PRODUCTS]
        return ", ".join([*parts, f"attention {_tiling(self.attention)}"])


def _name(tile: Product) -> str:
    return "torch" if tile is None else label(tile)


def _tiling(t: Tiling) -> str:
    return f"n{t.keys} w{t.warps} s{t.stages} x{t.programs_per_multiprocessor} c{t.cost}"


def _bound(rows: int, kv: torch.dtype, tiling: Tiling) -> PagedAttentionTriton:
    """Attention of so many rows, by rings or in Triton."""
    shape = (HEADS, KV_HEADS, HEAD_DIM, rows, 0, 0, kv, torch.device("cuda"))
    if kv is BF16 and is_hopper(shape[-1]):
        return bind_hopper(*shape, decode=tiling)
    return PagedAttentionTriton(*shape, decode=tiling)


class Chain:
    """`rows` requests of `context` tokens each."""

    def __init__(self, rows: int, context: int, dtype: str) -> None:
        device = torch.device("cuda")
        self.rows, self.dtype = rows, dtype
        self.kv = FP8 if dtype == "fp8" else BF16
        self.weights = [{name: weight(name, dtype) for name in PRODUCTS} for _ in range(LAYERS)]
        self.head = weight("head", dtype)
        blocks = context // BLOCK + 2
        shape = (rows * blocks + 1, BLOCK, KV_HEADS, HEAD_DIM)
        self.caches = [
            tuple(torch.empty(shape, device=device, dtype=BF16).normal_().to(self.kv) for _ in "kv")
            for _ in range(LAYERS)
        ]
        order = torch.randperm(rows * blocks, device=device) + 1
        self.tables = order.view(rows, blocks).to(torch.int32)
        self.cu = torch.arange(rows + 1, device=device, dtype=torch.int32)
        self.lens = torch.full((rows,), context, device=device, dtype=torch.int32)
        self.slots = self.tables[:, context // BLOCK].long() * BLOCK + context % BLOCK
        self.cos_sin = torch.rand(context + 8, HEAD_DIM, device=device)
        self.norm = torch.ones(HIDDEN, device=device, dtype=BF16)
        self.x = torch.randn(rows, HIDDEN, device=device).to(BF16)
        self.wide = torch.randn(rows, INNER, device=device).to(BF16)
        self.residual = torch.randn(rows, HIDDEN, device=device).to(BF16)
        self.attended = torch.empty(rows, HEADS, HEAD_DIM, device=device, dtype=BF16)
        self.kv_bytes = rows * (context + 1) * KV_HEADS * HEAD_DIM * 2 * self.kv.itemsize
        element = 1 if dtype == "fp8" else 2
        self.product_bytes = element * sum(SHAPES[name][0] * SHAPES[name][1] for name in PRODUCTS)
        self.head_bytes = element * SHAPES["head"][0] * SHAPES["head"][1]

    def layer_us(self, choice: Choice) -> float:
        """Microseconds of one layer, in a chain of LAYERS."""
        bound = _bound(self.rows, self.kv, choice.attention)
        bound.schedule(self.cu, self.lens)
        torch.cuda.synchronize()
        return microseconds([lambda: self._layers(choice, bound)], 1.0) / LAYERS

    def products_us(self, choice: Choice, head: Product) -> float:
        """Microseconds of the products of a step of 32 layers, and nothing between them."""

        x, wide = Quantised(self.x), Quantised(self.wide)
        if self.dtype == "fp8":
            x, wide = quantised(self.x), quantised(self.wide)

        def layers() -> None:
            for weights in self.weights:
                self._product(x, weights["qkv"], choice.qkv)
                self._product(x, weights["o"], choice.o)
                self._feed(x, weights["gate_up"], choice.gate_up)
                self._product(wide, weights["down"], choice.down)

        once = microseconds([layers], 1.0)
        with_head = microseconds(
            [lambda: (layers(), self._product(x, self.head, head, torch.float32))], 1.0
        )
        return 32 / LAYERS * once + with_head - once

    def _layers(self, choice: Choice, bound: PagedAttentionTriton) -> None:
        x = Quantised(self.x)
        for weights, (keys, values) in zip(self.weights, self.caches, strict=True):
            qkv = self._product(x, weights["qkv"], choice.qkv)
            self._attend(qkv, keys, values, bound)
            o = self._product(Quantised(self.attended.view(self.rows, HIDDEN)), weights["o"],
                              choice.o)  # fmt: skip
            x = self._feed(self._norm(o), weights["gate_up"], choice.gate_up)
            x = self._norm(self._product(Quantised(x), weights["down"], choice.down))

    def _attend(self, qkv, keys, values, bound) -> None:
        """As the engine's, which turns queries and keys apart where attention does not."""
        rope, after = (self.lens, self.cos_sin, self.slots), (None, None, 1e-5)
        rest = (keys, values, self.tables, HEAD_DIM**-0.5)
        if getattr(bound, "turns_queries", False):
            bound.from_qkv(qkv, *rope, *after, *rest, out=self.attended)
            return
        q = rope_kv_write(qkv, HEADS, KV_HEADS, *rope, keys, values, *after)
        bound(q, *rest, out=self.attended)

    def _product(self, x: Quantised, weight, tile: Product, dtype=BF16) -> torch.Tensor:
        values, scales = weight
        if tile is None:
            return _by_torch(x, values, scales)
        shape = (self.rows, values.shape[0])
        if tile.splits > 1:
            shape, dtype = (tile.splits, *shape), torch.float32
        out = torch.empty(shape, device="cuda", dtype=dtype)
        product(x, values, scales, out, tile, False)
        return out

    def _norm(self, x: torch.Tensor) -> Quantised:
        """As the engine's where rows become float8."""
        if self.dtype == "fp8":
            return add_rms_norm_float8(x, self.residual, self.norm, 1e-5)
        return Quantised(add_rms_norm(x, self.residual, self.norm, 1e-5))

    def _feed(self, x: Quantised, weight, tile: Product) -> torch.Tensor:
        if tile is None:
            return silu_mul(_by_torch(x, *weight))
        out = torch.empty(self.rows, INNER, device="cuda", dtype=BF16)
        product(x, weight[0], weight[1], out, tile, True)
        return out


def _by_torch(x: Quantised, weight: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    if scales is None:
        return torch.mm(x.rows, weight.T)
    x, by_row = x if x.float8 is not None else quantised(x.rows), F.ScalingType.RowWise
    return F.scaled_mm(
        x.float8, weight.T, x.scales, by_row, scales.unsqueeze(0), by_row, output_dtype=BF16,
        use_fast_accum=True,
    )  # fmt: skip


def rings(rows: int, splits: Sequence[int], tiles: int = 1) -> list[Product]:
    """Rings of about 50, 100 and 200 KB, two of which or one fit beside each other."""
    found: list[Product] = []
    for inputs in (64, 128):
        size = inputs * 2 * (64 * tiles + max(rows, 8))
        for budget in (52, 104, 208):
            found += [Ring(inputs, min(budget * 1024 // size, 12), split) for split in splits]
    return [ring for ring in dict.fromkeys(found) if ring.stages >= 2]


def candidates(rows: int, dtype: str) -> dict[str, list[Product]]:
    """For each product what may win; the first that is not torch's begins."""
    if dtype == "fp8":
        few: list[Product] = [
            Tile(n, k, w, s, maps=maps)
            for n, k, w, s in [(32, 256, 2, 4), (16, 256, 1, 4), (32, 128, 2, 6), (32, 256, 4, 4)]
            for maps in (False, True)
        ]
        if rows == 1:
            few = [
                Tile(n, k, w, s)
                for n, k, w, s in [(16, 512, 8, 3), (16, 1024, 4, 3), (16, 256, 2, 4),
                                   (32, 256, 4, 4), (8, 2048, 4, 2), (16, 2048, 8, 2)]
            ]  # fmt: skip
        split = [replace(tile, splits=s) for s in (2, 4) for tile in few[:4]]
        return {"gate_up": few, "down": few + split, "o": few + split, "qkv": few + split}
    one: list[Product] = [Tile(16, 512, 8, 3), Tile(16, 256, 4, 4), Tile(16, 1024, 8, 2)]
    few = one if rows == 1 else [Tile(64, 128, 4, 4, 2), None]
    gated = one if rows == 1 else [Tile(128, 64, 4, 4, maps=True), None]
    both = few + rings(rows, (2, 4))
    return {"gate_up": gated + rings(rows, (1,), 2), "down": both, "o": both,
            "qkv": few + rings(rows, (1, 2))}  # fmt: skip


def attention_candidates(rows: int, dtype: str) -> list[Tiling]:
    plain = DECODE_FP8 if dtype == "fp8" else DECODE_MANY
    few = replace(DECODE_FEW, warps=4, cost=1)
    found = [DECODE_FEW, plain, few, replace(plain, cost=2), replace(plain, cost=4)]
    return found if dtype == "fp8" else [*found, RING_FEW, RING_MANY]


def tune(cases: Sequence[tuple[str, int]] = CASES) -> Iterator[Result]:
    """Descends from the first candidates, one choice at a time, in whole chains."""
    tables = {}
    for dtype, rows in cases:
        tables[dtype, rows] = candidates(rows, dtype)
    variants = [
        Variant(name, rows, dtype, tile)
        for (dtype, rows), found in tables.items()
        for name, tiles in found.items()
        for tile in tiles
        if tile is not None
    ]
    attentions = [
        AttentionVariant(dtype, tiling)
        for dtype in {dtype for dtype, _ in cases}
        for tiling in attention_candidates(8, dtype)
    ]
    compile_variants([*attentions, *variants])
    for (dtype, rows), found in tables.items():
        yield from _descend(dtype, rows, found)
        torch.cuda.empty_cache()


def _descend(dtype: str, rows: int, found: dict[str, list[Product]]) -> Iterator[Result]:
    chain = Chain(rows, 1000, dtype)
    attention = attention_candidates(rows, dtype)
    first = {name: next(t for t in tiles if t is not None) for name, tiles in found.items()}
    best = Choice(**first, attention=attention[0] if rows <= 8 else attention[1])
    best_us = float("inf")
    case = f"{rows} rows {dtype}"

    def attempt(choice: Choice, what: str) -> Iterator[Result]:
        nonlocal best, best_us
        try:
            us = chain.layer_us(choice)
        except (triton.runtime.errors.OutOfResources, AssertionError) as error:
            print(f"{case} {what}: {str(error)[:90]}")
            return
        yield memory("layer", what, case, us, chain.product_bytes + chain.kv_bytes, READ_GBS)
        if us < best_us:
            best, best_us = choice, us

    yield from attempt(best, "start")
    for turn in range(2):
        options: list[tuple[str, Sequence[object]]] = [(name, found[name]) for name in found]
        if not turn:
            options.append(("attention", attention))
        for name, values in options:
            for value in values:
                if value != getattr(best, name):
                    show = _tiling(value) if isinstance(value, Tiling) else _name(value)
                    yield from attempt(replace(best, **{name: value}), f"{name} {show}")
    size = chain.product_bytes + chain.kv_bytes
    yield memory("layer", f"BEST {best}", case, best_us, size, READ_GBS)


def run() -> Iterator[Result]:
    """Layers, and the products of a step, as the engine takes them."""
    for dtype, rows in CASES:
        chain = Chain(rows, 1000, dtype)
        cut = {name: chosen(name, rows, dtype) for name in PRODUCTS}
        rings = chain.kv is BF16 and is_hopper(chain.x.device)
        attention = ring_tiling(rows) if rings else decode_tiling(rows, chain.kv)
        choice = Choice(**cut, attention=attention)
        case = f"{rows} rows {dtype}"
        size = chain.product_bytes + chain.kv_bytes
        name = "rows in float8" if dtype == "fp8" else "engine's"
        yield memory("layer", name, case, chain.layer_us(choice), size, READ_GBS)
        size = 32 * chain.product_bytes + chain.head_bytes
        us = chain.products_us(choice, chosen("head", rows, dtype))
        yield memory("step's products", name, case, us, size, READ_GBS)
        del chain
        torch.cuda.empty_cache()
