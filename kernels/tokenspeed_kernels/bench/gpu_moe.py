"""Experts on a CUDA device, router included, against the bytes of the experts that are chosen or
the products of all pairs. The choice is uniform: each token takes experts at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from tokenspeed_kernels.bench.gpu_measure import READ_GBS, microseconds
from tokenspeed_kernels.bench.result import Result, arithmetic, memory
from tokenspeed_kernels.compile_triton import compile_all
from tokenspeed_kernels.gemm.linear_triton import LinearSiluMulTriton, LinearTriton
from tokenspeed_kernels.moe.experts_hopper import RINGS, ExpertsHopper, Ring
from tokenspeed_kernels.moe.experts_packed_hopper import ExpertsPackedHopper
from tokenspeed_kernels.moe.experts_packed_triton import ExpertsPackedTriton
from tokenspeed_kernels.moe.one_token_triton import OneTile
from tokenspeed_kernels.moe.op import Routing, Shared
from tokenspeed_kernels.moe.route_triton import route
from tokenspeed_kernels.weight import FP8_FORMATS, NIBBLE_GROUPS, SQUARE, RawWeight

BF16 = torch.bfloat16
# Of large products: sustained in bfloat16, of float8 rows and weights in short bursts.
BF16_TFLOPS, FP8_TFLOPS = 663.0, 1400.0
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
BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "mxfp4": 17 / 32, "int4_g32": 18 / 32}


def _weight(rows: int, columns: int, kept: str = "bfloat16") -> RawWeight:
    """Random; of e2m1 with scales of 2^-5 to 2^-9."""
    if kept in NIBBLE_GROUPS:
        data = torch.randint(0, 256, (rows, columns // 2), device="cuda", dtype=torch.uint8)
        scales = torch.randint(118, 123, (rows, columns // 32), device="cuda", dtype=torch.uint8)
        if kept == "int4_g32":
            scales = torch.rand(rows, columns // 32, device="cuda").mul_(0.01).to(BF16)
        return RawWeight(kept, (rows, columns), data, scales)
    data = torch.empty(rows, columns, device="cuda", dtype=BF16).normal_(0, columns**-0.5)
    if kept in FP8_FORMATS:
        shape = (rows,) if kept == "fp8" else (rows // SQUARE, columns // SQUARE)
        narrow = (data * (30 * columns**0.5)).to(torch.float8_e4m3fn)
        scales = torch.full(shape, columns**-0.5 / 30, device="cuda")
        return RawWeight(kept, (rows, columns), narrow, scales)
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
        kernel = ExpertsPackedTriton if kept in NIBBLE_GROUPS else ExpertsHopper
        if kept == "mxfp4":
            kernel = ExpertsPackedHopper
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
        self, tokens: int, ring: Ring | OneTile | None, in_parts: bool = False
    ) -> tuple[list[Callable[[], None]], float]:
        """Each layer for as many tokens, and the distinct experts that one reads. `in_parts`: the
        sum over a token's experts is left to the norm behind, as a model does."""
        shape = self.shape
        x = torch.randn(tokens, shape.hidden, device="cuda").to(BF16)
        sets = [torch.rand(tokens, shape.experts, device="cuda") for _ in self.layers]
        chosen = [s.topk(shape.top, dim=-1).indices.int() for s in sets]
        distinct = sum(len(c.unique()) for c in chosen) / len(chosen)

        def layer(index: int) -> None:
            logits = self.routers[index].parts(x, torch.float32)
            weights, _ = route(logits, None, self.routing)
            if in_parts:
                self.layers[index].parts(x, weights, chosen[index])
            elif ring is None:
                self.layers[index](x, weights, chosen[index])
            else:
                self.layers[index](x, weights, chosen[index], ring=ring)

        return [partial(layer, index) for index in range(len(self.layers))], distinct


def measure(
    layers: Layers, tokens: int, rings: dict[str, Ring | OneTile | None], in_parts: bool = False
) -> Iterator[Result]:
    """Router, choice and experts of one layer; None: what the class chooses itself. `in_parts`:
    see `Layers.calls`."""
    shape = layers.shape
    ceiling = FP8_TFLOPS if layers.kept in FP8_FORMATS else BF16_TFLOPS
    for name, ring in rings.items():
        calls, distinct = layers.calls(tokens, ring, in_parts)
        us = microseconds(calls)
        elements = 3 * shape.hidden * shape.inner
        case = f"{shape.name} {layers.kept} B={tokens} {distinct:.0f} read"
        always = 3 * shape.hidden * shape.shared
        chosen = distinct * elements * BYTES[layers.kept]
        size = int(chosen) + 2 * (always + shape.experts * shape.hidden)
        flops = 2.0 * tokens * (shape.top * elements + always)
        if size / READ_GBS / 1e3 > flops / ceiling / 1e6:
            yield memory("experts", name, case, us, size, READ_GBS)
        else:
            yield arithmetic("experts", name, case, us, flops, ceiling)


def run() -> Iterator[Result]:
    for shape, kept in (
        (QWEN3_30B, "bfloat16"), (QWEN3_30B, "fp8"), (QWEN3_30B, "fp8_block"),
        (V2_LITE, "bfloat16"), (GPT_OSS, "mxfp4"), (GPT_OSS, "int4_g32"),
    ):  # fmt: skip
        layers = Layers(shape, 4, kept)
        compile_all([layers.calls(tokens, None)[0][0] for tokens in BATCHES])
        for tokens in BATCHES:
            name = "packed" if kept in NIBBLE_GROUPS else "hopper"
            yield from measure(layers, tokens, {name: None})
            if 1 < tokens <= 128:
                yield from measure(layers, tokens, {f"{name}, in parts": None}, in_parts=True)
        del layers


def tune() -> Iterator[Result]:
    ones = [OneTile(*tile) for tile in ((1, 1, 4), (2, 1, 4), (2, 2, 4), (4, 2, 4), (1, 1, 8))]
    for kept in ("bfloat16", "fp8"):
        layers = Layers(QWEN3_30B, 4, kept)
        rings = [ring for narrow, ring in RINGS if narrow == (kept == "fp8")]
        compile_all(
            [layers.calls(1, one)[0][0] for one in ones]
            + [layers.calls(8, ring)[0][0] for ring in rings]
        )
        yield from measure(layers, 1, {str(one): one for one in ones})
        for tokens in BATCHES[1:]:
            yield from measure(layers, tokens, {str(ring): ring for ring in rings})
        del layers
