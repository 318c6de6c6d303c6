"""Latent attention on a CUDA device: decode against the read ceiling, extend against the matrix
units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from tokenspeed_kernels.attention.paged_attention_triton import Tiling
from tokenspeed_kernels.bench.gpu_measure import READ_GBS, microseconds, sets_for
from tokenspeed_kernels.bench.result import Result, arithmetic, memory
from tokenspeed_kernels.compile_triton import compile_all
from tokenspeed_kernels.latent.latent_attention_hopper import (
    TILINGS,
    HopperTiling,
    LatentAttentionHopper,
)
from tokenspeed_kernels.latent.latent_attention_triton import LatentAttentionTriton
from tokenspeed_kernels.latent.latent_extend_hopper import HOPPER, AttendHopper
from tokenspeed_kernels.latent.latent_extend_triton import (
    EXTEND,
    Attend,
    AttendTriton,
    ExtendTiling,
    LatentExtendTriton,
)
from tokenspeed_kernels.latent.op import LatentPool, LatentShape, Lengths

RANK, ROPE, BLOCK = 512, 64, 64
NOPE, VALUE = 128, 128
SHAPE = LatentShape(16, RANK, NOPE, ROPE, VALUE)
CHUNK = 16384
BF16_TFLOPS = 663.0
CONTEXTS = {1: 1024, 4: 4096, 16: 16384, 50: 50000, 59: 59000}
# Rows, their thousands of tokens, and how many thousands all begin with.
SHARED = [(4, 59, 8), (8, 59, 8), (16, 59, 0), (16, 59, 8), (16, 59, 50)]
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


@dataclass(frozen=True)
class Form:
    """How a chunk's keys and values are made and met."""

    tiling: ExtendTiling
    attend: type[Attend] = AttendTriton
    by_torch: bool = False


FORMS = {"expanded": Form(EXTEND), "expanded, roles": Form(HOPPER, AttendHopper, by_torch=True)}


class Batch:
    """Rows of equal length over a cache of random blocks in random order, of which they have those
    of the first `shared` tokens in common."""

    def __init__(
        self, query_len: int, context: int, rows: int, heads: int, kind: str, sets: int,
        shared: int = 0,
    ) -> None:  # fmt: skip
        blocks = -(-(query_len + context) // BLOCK)
        self.pools = [_pool(kind, rows * blocks + 1) for _ in range(sets)]
        order = torch.randperm(rows * blocks, device="cuda") + 1
        self.tables = order.view(rows, blocks).to(torch.int32)
        self.tables[:, : shared // BLOCK] = self.tables[0, : shared // BLOCK]
        self.cu = torch.arange(rows + 1, device="cuda", dtype=torch.int32) * query_len
        self.context = torch.full((rows,), context, device="cuda", dtype=torch.int32)
        shape = (rows * query_len, heads, RANK + ROPE)
        self.query = torch.randn(shape, device="cuda").to(torch.bfloat16)
        self.rows, self.query_len, self.heads = rows, query_len, heads

    def call(self, tiling: Tiling | None) -> None:
        bound = self._bound(tiling)
        bound.latents(self.query, self.pools[0], self.tables, 0.07)

    def _bound(self, tiling: Tiling | None) -> LatentAttentionTriton:
        one, hopper = self.query_len == 1, isinstance(tiling, HopperTiling)
        bound = (LatentAttentionHopper if hopper else LatentAttentionTriton)(
            self.heads, RANK, ROPE, self.rows if one else 0, 0 if one else self.rows,
            len(self.query), self.pools[0].latent.dtype, self.query.device, tiling, tiling,
        )  # fmt: skip
        bound.schedule(self.cu, self.context)
        return bound

    def us(self, tiling: Tiling | None) -> float:
        bound = self._bound(tiling)
        torch.cuda.synchronize()
        return microseconds(
            [lambda p=p: bound.latents(self.query, p, self.tables, 0.07) for p in self.pools]
        )

    def absorbed_us(self) -> float:
        """With the products that bring values back; those of the queries are few beside them."""
        bound = self._bound(None)
        up = torch.randn(self.heads, RANK, VALUE, device="cuda").to(torch.bfloat16)
        torch.cuda.synchronize()
        pool = self.pools[0]
        return microseconds([lambda: bound(self.query, pool, self.tables, 0.07, up)])

    def expanded_us(self, form: Form) -> float:
        run = self.expanded(form)
        torch.cuda.synchronize()
        return microseconds([run])

    def expanded(self, form: Form) -> Callable[[], None]:
        """One layer of it; its kernels are compiled by the first call."""
        query = torch.randn(len(self.query), self.heads, NOPE + ROPE, device="cuda")
        query = query.to(torch.bfloat16)
        ups = [
            torch.randn(self.heads, *shape, device="cuda").to(torch.bfloat16)
            for shape in ((NOPE, RANK), (RANK, VALUE))
        ]
        out = torch.empty(*query.shape[:2], VALUE, device="cuda", dtype=torch.bfloat16)
        bound = LatentExtendTriton(
            SHAPE, self.rows, len(query), CHUNK, query.device, form.tiling,
            attend=form.attend, by_torch=form.by_torch,
        )  # fmt: skip
        lengths = Lengths([self.query_len] * self.rows, self.context.tolist())
        bound.schedule(self.cu, self.context, 0, lengths)
        rotated = query[..., NOPE:]
        return lambda: bound(
            query[..., :NOPE], rotated, self.pools[0], self.tables, 0.07, *ups, out=out
        )


def decode(
    batch: int, thousands: int, kind: str, tilings: dict[str, Tiling | None], queries: int = 1,
    shared: int = 0,
) -> Iterator[Result]:  # fmt: skip
    """16 heads, `queries` tokens a row, over `thousands` * 1000 (1k: 1024) cached ones, the first
    `shared` * 1000 of which are those of all rows."""
    length = CONTEXTS[thousands]
    size = (batch * length - (batch - 1) * shared * 1000) * TOKEN_BYTES[kind]
    made = Batch(queries, length - queries, batch, 16, kind, sets_for(size), shared * 1000)
    case = f"{batch} x {thousands}k q{queries} {kind}"
    if shared:
        case += f", {shared}k shared"
    for name, tiling in tilings.items():
        yield memory("latent", name, case, made.us(tiling), size, READ_GBS)


# New tokens of each row, and cached ones.
EXTENDS = [(2048, 0, 1), (8192, 0, 1), (500, 50000, 1), (171, 50000, 1), (500, 16384, 8)]


def extend(
    query_len: int, context: int, rows: int, kind: str, forms: dict[str, Form]
) -> Iterator[Result]:
    """Both forms of equal rows, each beside the time of its own products: those that bring queries
    into the latent space and values back, or those that make keys and values."""
    made = Batch(query_len, context, rows, SHAPE.num_heads, kind, 1)
    pairs = rows * (query_len * context + query_len * (query_len + 1) // 2)
    tokens = rows * (query_len + context)
    heads, up = 2 * SHAPE.num_heads, RANK * (NOPE + VALUE)
    flops = {
        "absorbed": heads * ((2 * RANK + ROPE) * pairs + up * len(made.query)),
        "expanded": heads * ((NOPE + ROPE + VALUE) * pairs + up * tokens),
    }
    case = f"{rows} x {query_len} on {context} {kind}"
    times = {"absorbed": made.absorbed_us()}
    times |= {name: made.expanded_us(form) for name, form in forms.items()}
    for name, us in times.items():
        floor = flops["absorbed" if name == "absorbed" else "expanded"]
        yield arithmetic("latent_extend", name, case, us, floor, BF16_TFLOPS)


def _roles(kind: str, rows: int) -> HopperTiling:
    return TILINGS[2 if kind == "bf16" else 1][rows]


def run() -> Iterator[Result]:
    for kind in ("bf16", "scaled", "fp8"):
        for batch, thousands in DECODES:
            tilings = {"triton": None, "roles": _roles(kind, 16)}
            yield from decode(batch, thousands, kind, tilings)
    for kind in ("bf16", "scaled"):
        for batch, thousands, shared in SHARED:
            tilings = {"triton": None, "roles": _roles(kind, 16)}
            yield from decode(batch, thousands, kind, tilings, shared=shared)
    tilings = {"triton": None, "roles": _roles("bf16", 64)}
    yield from decode(16, 50, "bf16", tilings, queries=4)
    for query_len, context, rows in EXTENDS:
        yield from extend(query_len, context, rows, "bf16", FORMS)
    yield from extend(500, 50000, 1, "scaled", FORMS)


_EXTENDS = FORMS | {
    "expanded k128s2": Form(ExtendTiling(keys=128, stages=2)),
    "expanded k64s2": Form(ExtendTiling(stages=2)),
}


def _tilings(kind: str, rows: int) -> dict[str, Tiling]:
    best = _roles(kind, rows)
    variants = {
        "as_is": {}, "one_stage_less": {"stages": best.stages - 1}, "one_buffer": {"buffers": 1},
    }  # fmt: skip
    return {name: replace(best, **changes) for name, changes in variants.items()}


def tune() -> Iterator[Result]:
    """Tilings of the kernel of warpgroups with roles, and forms of expanding."""
    kinds = {kind: _tilings(kind, 16) for kind in ("scaled", "bf16")}
    windows = _tilings("bf16", 64)
    compile_all(
        [partial(Batch(1, 128, 1, 16, kind, 1).call, tiling)
         for kind, tilings in kinds.items() for tiling in tilings.values()]
        + [partial(Batch(4, 128, 1, 16, "bf16", 1).call, tiling) for tiling in windows.values()]
        + [Batch(200, 128, 1, 16, "bf16", 1).expanded(form) for form in _EXTENDS.values()]
    )  # fmt: skip
    for query_len, context in ((500, 50000), (8192, 0)):
        yield from extend(query_len, context, 1, "bf16", dict(_EXTENDS))
    for batch, thousands in [(16, 50), (1, 50), (1, 1), (8, 16), (128, 1)]:
        for kind, tilings in kinds.items():
            yield from decode(batch, thousands, kind, dict(tilings))
    yield from decode(16, 50, "bf16", dict(windows), queries=4)
