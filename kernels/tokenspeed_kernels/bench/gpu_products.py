"""Products of an 8B model's layer on a CUDA device, each alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol

import torch
import triton

from tokenspeed_kernels.bench.gpu_measure import READ_GBS, microseconds, sets_for
from tokenspeed_kernels.bench.result import Result, memory
from tokenspeed_kernels.gemm.op import Quantised
from tokenspeed_kernels.gemm.quantise_triton import quantise_rows
from tokenspeed_kernels.gemm.small_triton import multiply
from tokenspeed_kernels.gemm.streamed_gluon import stream
from tokenspeed_kernels.gemm.tiles import Ring, Tile, cuts

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}


@dataclass(frozen=True)
class Variant:
    """A product of the layer with a tile; picklable, so that other processes can compile it."""

    name: str
    rows: int
    dtype: str
    tile: Tile | Ring

    def given(self) -> Quantised:
        """Random rows as the product reads them."""
        rows = torch.randn(self.rows, SHAPES[self.name][1], device="cuda").to(BF16)
        return quantised(rows) if reads_float8(self.tile, self.dtype) else Quantised(rows)

    def operands(self, sets: int) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        return [weight(self.name, self.dtype) for _ in range(sets)]

    def call(
        self, x: Quantised, weight: torch.Tensor, scales: torch.Tensor | None
    ) -> Callable[[], torch.Tensor]:
        gated = self.name == "gate_up"
        outputs = SHAPES[self.name][0] // (2 if gated else 1)
        split = self.tile.splits > 1
        dtype = torch.float32 if split or self.name == "head" else BF16
        out = torch.empty(self.tile.splits, self.rows, outputs, device="cuda", dtype=dtype)

        def call() -> torch.Tensor:
            product(x, weight, scales, out, self.tile, gated)
            return out

        return call

    def compile(self) -> str:
        x = self.given()
        operands = self.operands(1)[0]
        try:
            _check(self, x, *operands)
        except Exception as error:
            return f"{self}: {type(error).__name__} {str(error)[:200]}"
        return ""


def quantised(rows: torch.Tensor) -> Quantised:
    return Quantised(rows, *quantise_rows(rows))


def reads_float8(tile: Tile | Ring | None, dtype: str) -> bool:
    """Whether the product meets rows in float8."""
    return dtype == "fp8" and not isinstance(tile, Tile)


def product(
    x: Quantised,
    weight: torch.Tensor,
    scales: torch.Tensor | None,
    out: torch.Tensor,
    tile: Tile | Ring,
    gated: bool,
) -> None:
    """`out` = the product of `x` and `weight` in such a cut, as the engine's kernels make it."""
    if isinstance(tile, Tile):
        multiply(x.rows, weight, None, out, tile, scales=scales, gated=gated)
    elif scales is None:
        stream(x.rows, weight, None, out, tile, gated=gated)
    else:
        x = x if x.float8 is not None else quantised(x.rows)
        stream(x.float8, weight, None, out, tile, gated=gated, x_scales=x.scales, scales=scales)


def weight(name: str, dtype: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Random [out, in], and a scale per row for float8."""
    shape = SHAPES[name]
    values = torch.empty(shape, device="cuda", dtype=BF16).normal_(0, shape[1] ** -0.5)
    if dtype == "bfloat16":
        return values, None
    return (values * 64).to(FP8), torch.full((shape[0],), 1 / 64, device="cuda")


def measure(variants: Sequence[Variant], torch_too: bool) -> Iterator[Result]:
    """Variants of one product at one number of rows, torch's own beside them."""
    one = variants[0]
    out_features, in_features = SHAPES[one.name]
    size = out_features * in_features * (2 if one.dtype == "bfloat16" else 1)
    operands = one.operands(sets_for(size))
    case = f"{one.name} M={one.rows} {one.dtype}"
    if torch_too:
        out, rows = torch.empty(one.rows, out_features, device="cuda", dtype=BF16), one.given().rows
        us = microseconds([lambda w=w: torch.mm(rows, w.T, out=out) for w, _ in operands])
        yield memory("product", "torch", case, us, size, READ_GBS)
    for variant in variants:
        x = variant.given()
        try:
            _check(variant, x, *operands[0])
            us = microseconds([variant.call(x, *pair) for pair in operands])
        except triton.runtime.errors.OutOfResources as error:
            print(f"{variant}: {error}")
            continue
        yield memory("product", label(variant.tile), case, us, size, READ_GBS)


def _check(one: Variant, x: Quantised, weight: torch.Tensor, scales: torch.Tensor | None) -> None:
    """Raises AssertionError where the product is not that of what it reads."""
    exact = weight.float() if scales is None else weight.float() * scales[:, None]
    rows = x.rows.float() if x.float8 is None else x.float8.float() * x.scales
    expected = rows @ exact.T
    if one.name == "gate_up":
        gate, up = expected.chunk(2, -1)
        expected = torch.nn.functional.silu(gate) * up
    out = one.call(x, weight, scales)().float().sum(0)
    error = ((out - expected).norm() / expected.norm()).item()
    assert error < 8e-3, f"{one}: relative error {error}"


def label(tile: Tile | Ring) -> str:
    if isinstance(tile, Ring):
        return f"ring k{tile.inputs} s{tile.stages} x{tile.splits}"
    maps = " maps" if tile.maps else ""
    return (
        f"n{tile.outputs} k{tile.inputs} w{tile.warps} s{tile.stages} x{tile.splits}"
        f"{maps}{' matrix' if tile.matrix else ''}"
    )


class Compilable(Protocol):
    """Something that a process can compile by running it once; "" or what went wrong."""

    def compile(self) -> str: ...


def compile_variants(variants: Sequence[Compilable]) -> None:
    """Fills the cache of compiled kernels from several processes."""
    count = min(14, os.cpu_count() or 1)
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for failure in pool.map(_compile, variants, chunksize=2):
            if failure:
                print(failure)


def _compile(variant: Compilable) -> str:
    return variant.compile()


def tune() -> Iterator[Result]:
    """Cuts are chosen in chains: see gpu_chain."""
    yield from ()


def run() -> Iterator[Result]:
    """The chosen cuts, each product in a chain of itself."""
    cases = [("bfloat16", rows) for rows in (1, 8, 32, 64, 128)] + [("fp8", 1), ("fp8", 16)]
    variants = [
        Variant(name, rows, dtype, cut)
        for dtype, rows in cases
        for name in SHAPES
        if (cut := chosen(name, rows, dtype)) is not None
    ]
    compile_variants(variants)
    for variant in variants:
        yield from measure([variant], variant.dtype == "bfloat16")
        torch.cuda.empty_cache()


def chosen(name: str, rows: int, dtype: str) -> Tile | Ring | None:
    """The cut that the engine takes, for float8 where its rows become float8 too; None: torch's
    product."""
    found = cuts(dtype, (*SHAPES[name], name == "gate_up"), hopper=True, float8_rows=True)
    return next(cut for most, cut in found if rows <= most)
