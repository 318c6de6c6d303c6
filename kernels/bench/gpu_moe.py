"""Experts on a CUDA device, router included, against the bytes of the experts that are chosen or
the products of all pairs. The choice is uniform: each token takes experts at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from gpu_measure import READ_GBS, Result, arithmetic, memory, microseconds
from tokenspeed_kernels.compile_triton import compile_all
from tokenspeed_kernels.gemm.linear_triton import LinearSiluMulTriton, LinearTriton
from tokenspeed_kernels.moe import experts_triton as moe
from tokenspeed_kernels.moe.experts_packed_triton import ExpertsPackedTriton
from tokenspeed_kernels.moe.experts_triton import ExpertsTriton, OneTile, Tile, Tiles
from tokenspeed_kernels.moe.op import Routing, Shared
from tokenspeed_kernels.moe.route_triton import route
from tokenspeed_kernels.weight import RawWeight

BF16 = torch.bfloat16
BF16_TFLOPS = 663.0
BATCHES = (1, 8, 32, 128, 512, 4096)


@dataclass(frozen=True)
class Shape:
    name: str
    experts: int
    top: int
    hidden: int
    inner: int
    shared: int = 0  # width of what every token passes
    clamped: bool = False  # the clamped activation, and biases


QWEN3_30B = Shape("Qwen3-30B", 128, 8, 2048, 768)
V2_LITE = Shape("V2-Lite", 64, 6, 2048, 1408, 2816)
GPT_OSS = Shape("gpt-oss", 32, 4, 2880, 2880, clamped=True)
# Bytes of a weight with its part of a scale.
BYTES = {"bfloat16": 2.0, "mxfp4": 17 / 32, "int4_g32": 18 / 32}


def _weight(rows: int, columns: int, kept: str = "bfloat16") -> RawWeight:
    """Random; of e2m1 with scales of 2^-5 to 2^-9."""
    if kept != "bfloat16":
        data = torch.randint(0, 256, (rows, columns // 2), device="cuda", dtype=torch.uint8)
        scales = torch.randint(118, 123, (rows, columns // 32), device="cuda", dtype=torch.uint8)
        if kept == "int4_g32":
            scales = torch.rand(rows, columns // 32, device="cuda").mul_(0.01).to(BF16)
        return RawWeight(kept, (rows, columns), data, scales)
    data = torch.empty(rows, columns, device="cuda", dtype=BF16).normal_(0, columns**-0.5)
    return RawWeight("bfloat16", (rows, columns), data)


def _bias(size: int, shape: Shape) -> torch.Tensor | None:
    return torch.randn(size, device="cuda").to(BF16) if shape.clamped else None


def _shared(shape: Shape) -> Shared | None:
    if not shape.shared:
        return None
    gate_up = _weight(2 * shape.shared, shape.hidden)
    down = _weight(shape.hidden, shape.shared)
    first, second = LinearSiluMulTriton(gate_up, None), LinearTriton(down, None)
    return Shared(gate_up, down, lambda x: second(first(x)))


class Layers:
    """Some layers of one shape, so that weights are cold, and a uniform choice for a batch."""

    def __init__(self, shape: Shape, count: int, kept: str = "bfloat16") -> None:
        self.shape, self.kept = shape, kept
        kernel = ExpertsTriton if kept == "bfloat16" else ExpertsPackedTriton
        rows = (shape.experts * 2 * shape.inner, shape.experts * shape.hidden)
        clamp = 7.0 if shape.clamped else None
        self.layers = [
            kernel(
                _weight(rows[0], shape.hidden, kept), _weight(rows[1], shape.inner, kept),
                shape.experts, *(_bias(count, shape) for count in rows), clamp, _shared(shape),
            )
            for _ in range(count)
        ]  # fmt: skip
        self.routers = [
            LinearTriton(_weight(shape.experts, shape.hidden), None) for _ in range(count)
        ]
        self.routing = Routing(top_k=shape.top, scoring="softmax", renormalise=True)

    def calls(
        self, tokens: int, tiles: Tiles | OneTile | None
    ) -> tuple[list[Callable[[], None]], float]:
        """Each layer for as many tokens, and the distinct experts that one reads."""
        shape = self.shape
        x = torch.randn(tokens, shape.hidden, device="cuda").to(BF16)
        sets = [torch.rand(tokens, shape.experts, device="cuda") for _ in self.layers]
        chosen = [s.topk(shape.top, dim=-1).indices.int() for s in sets]
        distinct = sum(len(c.unique()) for c in chosen) / len(chosen)

        def layer(index: int) -> None:
            logits = self.routers[index].parts(x, torch.float32)
            weights, _ = route(logits, None, self.routing)
            self.layers[index](x, weights, chosen[index], tiles=tiles)

        return [partial(layer, index) for index in range(len(self.layers))], distinct


def measure(
    layers: Layers, tokens: int, tiles: dict[str, Tiles | OneTile | None]
) -> Iterator[Result]:
    shape = layers.shape
    for name, one in tiles.items():
        calls, distinct = layers.calls(tokens, one)
        us = microseconds(calls)
        elements = 3 * shape.hidden * shape.inner
        case = f"{shape.name} {layers.kept} B={tokens} {distinct:.0f} read"
        always = 3 * shape.hidden * shape.shared
        chosen = distinct * elements * BYTES[layers.kept]
        size = int(chosen) + 2 * (always + shape.experts * shape.hidden)
        flops = 2.0 * tokens * (shape.top * elements + always)
        if size / READ_GBS / 1e3 > flops / BF16_TFLOPS / 1e6:
            yield memory("experts", name, case, us, size, READ_GBS)
        else:
            yield arithmetic("experts", name, case, us, flops, BF16_TFLOPS)


def run() -> Iterator[Result]:
    for shape, kept in (
        (QWEN3_30B, "bfloat16"), (V2_LITE, "bfloat16"), (GPT_OSS, "mxfp4"), (GPT_OSS, "int4_g32"),
    ):  # fmt: skip
        layers = Layers(shape, 3, kept)
        for tokens in BATCHES:
            yield from measure(layers, tokens, {"triton": None})


def tune() -> Iterator[Result]:
    ones = {
        f"n{up}w{warps}/w{down}": OneTile(up, warps, down)
        for up, warps, down in ((1, 2, 4), (1, 2, 2), (1, 4, 4), (1, 2, 8), (2, 4, 4), (2, 2, 4))
    }
    few = {
        f"n{n}k{k}s{s}w{w}/n{dn}k{dk}s{ds}w{dw}": Tiles(
            Tile(16, n, k, w, s), Tile(16, dn, dk, dw, ds)
        )
        for n, k, s, w, dn, dk, ds, dw in (
            (32, 128, 4, 4, 64, 128, 4, 4), (32, 64, 5, 4, 64, 64, 5, 4),
            (64, 64, 4, 4, 128, 64, 4, 4), (64, 128, 3, 4, 128, 128, 3, 4),
            (32, 128, 3, 4, 32, 128, 4, 4), (16, 256, 3, 4, 32, 128, 4, 4),
        )
    }  # fmt: skip
    some = {"few": moe.FEW, "some": moe.SOME, "many": moe.MANY}
    for shape in (V2_LITE, QWEN3_30B):
        layers = Layers(shape, 3)
        compile_all(
            [layers.calls(1, tile)[0][0] for tile in ones.values()]
            + [layers.calls(8, tiles)[0][0] for tiles in few.values()]
        )
        yield from measure(layers, 1, dict(ones))
        for tokens in (8, 32):
            yield from measure(layers, tokens, dict(few))
    for tokens in (128, 512, 4096):
        yield from measure(layers, tokens, dict(some))
