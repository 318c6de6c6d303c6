"""Experts for one token in Triton: no blocks and no matrix units, weights at the rate of memory.

Two kernels read the weights of the chosen experts, and with them those of what every token passes.
float8 weights are widened in registers, exactly; a sum takes its scale once, or once per 128
inputs.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch, next_power_of_2
from tokenspeed_kernels.moe.pairs_triton import activate
from tokenspeed_kernels.weight import SQUARE, RawWeight

# Inputs, and rows, under one scale of float8 blocks.
_SQUARE = tl.constexpr(SQUARE)
# Inputs that a kernel reads at least, by its kind of scales: whole blocks where a block has one.
_LEAST_INPUTS = (1, 1, SQUARE)


@dataclass(frozen=True, slots=True)
class OneTile:
    """For one token, all of whose inputs are read at once: outputs and warps of a program of the
    first product, and warps of the second one's, which makes one output (0: `one_token_hopper`
    makes it)."""

    gate_up: int
    warps: int
    down_warps: int


# As measured: with what all tokens pass, without, then by a ring; from float8, with scales of rows
# and of blocks.
ONE = OneTile(1, 1, 4)
ONE_ALONE = OneTile(1, 1, 8)
ONE_RING = OneTile(1, 1, 0)
ONE_FP8 = OneTile(2, 1, 4)
ONE_FP8_BLOCK = OneTile(2, 2, 4)


# Registers of a thread of the second product that has so few float8 inputs: all 2,048 programs of
# Qwen3-30B's are then on the device at once. The assembler takes 40, and a quarter of them wait.
_FEW_INPUTS, _FEW_REGISTERS = 48, 32


@triton.jit
def _scaled_sum(products, SCALES, row, WIDTH: tl.constexpr, SCALE: tl.constexpr):
    """Sums over the inputs of `products` [N, PAD], those of the weight's rows `row` [N]. SCALE: 0
    none, 1 one of a row, 2 one of _SQUARE rows and inputs."""
    if SCALE == 2:
        N: tl.constexpr = products.shape[0]
        BLOCKS: tl.constexpr = products.shape[1] // _SQUARE
        ACROSS: tl.constexpr = (WIDTH + _SQUARE - 1) // _SQUARE
        block = tl.arange(0, BLOCKS)
        at = SCALES + (row // _SQUARE * ACROSS)[:, None] + block[None, :]
        scales = tl.load(at, mask=(block < ACROSS)[None, :], other=0.0)
        total = tl.sum(tl.sum(tl.reshape(products, [N, BLOCKS, _SQUARE]), 2) * scales, 1)
    else:
        total = tl.sum(products, 1)
        if SCALE == 1:
            total *= tl.load(SCALES + row)
    return total


@triton.jit
def _gate_up_one(
    X, W, SCALES, BIAS, SHARED, EXPERTS, INNER, clamp,
    D: tl.constexpr, D_PAD: tl.constexpr, F: tl.constexpr, S: tl.constexpr, TOP: tl.constexpr,
    N: tl.constexpr, SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, CLAMP: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One token. INNER: F values of each choice, then the S of what all tokens pass, whose
    programs come first: their weights are on their way while the choice is made. A program reads
    all inputs of its outputs at once, and so many programs run that memory is busy."""
    SHARED_BLOCKS: tl.constexpr = (S + N - 1) // N
    EACH: tl.constexpr = (F + N - 1) // N
    program = tl.program_id(0)
    d = tl.arange(0, D_PAD)
    there = (d < D)[None, :]
    n = program * N + tl.arange(0, N)
    row = tl.minimum(n, S - 1).to(tl.int64)
    gate = tl.zeros([N, D_PAD], W.dtype.element_ty)
    up = tl.zeros([N, D_PAD], W.dtype.element_ty)
    if S:  # noqa: SIM102 (without it the compiler reads the branch, of weights that are not there)
        if program < SHARED_BLOCKS:
            at = SHARED + row[:, None] * D + d[None, :]
            gate = tl.load(at, mask=there, other=0.0, eviction_policy="evict_first")
            up = tl.load(at + S * D, mask=there, other=0.0, eviction_policy="evict_first")
    after_producer(PDL)
    to = TOP * F + n
    live = n < S
    choice = (program - SHARED_BLOCKS) // EACH
    if program >= SHARED_BLOCKS:
        n = (program - SHARED_BLOCKS) % EACH * N + tl.arange(0, N)
        row = tl.load(EXPERTS + choice).to(tl.int64) * (2 * F) + tl.minimum(n, F - 1)
        at = W + row[:, None] * D + d[None, :]
        gate = tl.load(at, mask=there, other=0.0, eviction_policy="evict_first")
        up = tl.load(at + F * D, mask=there, other=0.0, eviction_policy="evict_first")
        to = choice * F + n
        live = n < F
    x = tl.load(X + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    gate_sum = _scaled_sum(gate.to(tl.float32) * x, SCALES, row, D, SCALE)
    up_sum = _scaled_sum(up.to(tl.float32) * x, SCALES, row + F, D, SCALE)
    if HAS_BIAS:
        gate_sum += tl.load(BIAS + row).to(tl.float32)
        up_sum += tl.load(BIAS + row + F).to(tl.float32)
    made = activate(gate_sum, up_sum, clamp, CLAMP).to(INNER.dtype.element_ty)
    tl.store(INNER + to, made, mask=live)


@triton.jit
def _down_one(
    INNER, W, SCALES, BIAS, SHARED, WEIGHTS, EXPERTS, ADDED, OUT,
    D: tl.constexpr, F: tl.constexpr, F_PAD: tl.constexpr, REST_PAD: tl.constexpr,
    S: tl.constexpr, S_PAD: tl.constexpr, TOP: tl.constexpr, TOP_PAD: tl.constexpr,
    SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token, one output of it. The choice was made before `_gate_up_one` began: all weights are
    on their way while that one ends. Of F inputs the first F_PAD,
    and the REST_PAD behind them, where no block of them has a scale."""
    column = tl.program_id(0).to(tl.int64)
    choice = tl.arange(0, TOP_PAD)
    f = tl.arange(0, F_PAD)
    chosen = choice < TOP
    there = chosen[:, None] & (f < F)[None, :]
    rows = tl.load(EXPERTS + choice, mask=chosen, other=0).to(tl.int64) * D + column
    w = tl.load(W + rows[:, None] * F + f[None, :], mask=there, other=0.0,
                eviction_policy="evict_first")  # fmt: skip
    if REST_PAD:
        g = F_PAD + tl.arange(0, REST_PAD)
        more = chosen[:, None] & (g < F)[None, :]
        rest = tl.load(W + rows[:, None] * F + g[None, :], mask=more, other=0.0,
                       eviction_policy="evict_first")  # fmt: skip
    if S:
        s = tl.arange(0, S_PAD)
        shared = tl.load(SHARED + column * S + s, mask=s < S, other=0.0,
                         eviction_policy="evict_first")  # fmt: skip
    after_producer(PDL)
    weights = tl.load(WEIGHTS + choice, mask=chosen, other=0.0)
    x = tl.load(INNER + choice[:, None] * F + f[None, :], mask=there, other=0.0)
    made = _scaled_sum(w.to(tl.float32) * x.to(tl.float32), SCALES, rows, F, SCALE)
    if REST_PAD:
        x = tl.load(INNER + choice[:, None] * F + g[None, :], mask=more, other=0.0)
        made += _scaled_sum(rest.to(tl.float32) * x.to(tl.float32), SCALES, rows, F, SCALE)
    if HAS_BIAS:
        made += tl.load(BIAS + rows, mask=chosen, other=0.0).to(tl.float32)
    out = tl.sum(made * weights, 0)
    if S:
        x = tl.load(INNER + TOP * F + s, mask=s < S, other=0.0)
        out += tl.sum(shared.to(tl.float32) * x.to(tl.float32), 0)
    if HAS_ADDED:
        out += tl.load(ADDED + column).to(tl.float32)
    tl.store(OUT + column, out.to(OUT.dtype.element_ty))


def gate_up_one(
    x: torch.Tensor,
    gate_up: RawWeight,
    bias: torch.Tensor | None,
    shared: torch.Tensor | None,
    experts: torch.Tensor,
    clamp: float | None,
    tile: OneTile,
    width: int,
) -> torch.Tensor:
    """The first product of one token `x` [1, D] with its choices, `width` values of each, then with
    `shared` [2 S, D], S of them: [k * width + S]."""
    top, pdl, hidden = experts.shape[1], dependent_launch(x.device), gate_up.shape[1]
    size = 0 if shared is None else shared.shape[0] // 2
    inner = torch.empty(top * width + size, dtype=x.dtype, device=x.device)
    programs = cdiv(size, tile.gate_up) + top * cdiv(width, tile.gate_up)
    kind = _kind(gate_up)
    _gate_up_one[(programs,)](
        x, gate_up.data, gate_up.scales, bias, shared, experts, inner, clamp or 0.0,
        D=hidden, D_PAD=max(next_power_of_2(hidden), _LEAST_INPUTS[kind]), F=width, S=size,
        TOP=top, N=tile.gate_up, SCALE=kind, HAS_BIAS=bias is not None,
        CLAMP=clamp is not None, PDL=pdl, num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return inner


def one_token(
    x: torch.Tensor,
    gate_up: RawWeight,
    down: RawWeight,
    biases: tuple[torch.Tensor | None, torch.Tensor | None],
    beside: tuple[torch.Tensor, torch.Tensor] | None,
    weights: torch.Tensor,
    experts: torch.Tensor,
    added: torch.Tensor | None,
    clamp: float | None,
    tile: OneTile,
    out: torch.Tensor,
) -> None:
    """out = `op.Experts` of one token `x` [1, D] and `added`; `beside`: the weights of what every
    token passes, read by the same kernels. Weights bfloat16, fp8 or fp8_block."""
    top, pdl = experts.shape[1], dependent_launch(x.device)
    hidden, width = gate_up.shape[1], down.shape[1]
    first, second = (None, None) if beside is None else beside
    size = 0 if second is None else second.shape[1]
    inner = gate_up_one(x, gate_up, biases[0], first, experts, clamp, tile, width)
    kind = _kind(down)
    first_inputs, rest, bound = max(next_power_of_2(width), _LEAST_INPUTS[kind]), 0, {}
    if kind == 1:
        first_inputs, rest = _in_two(width)
        each = next_power_of_2(top) * (first_inputs + rest) // (32 * tile.down_warps)
        if pdl and each <= _FEW_INPUTS:
            bound = {"maxnreg": _FEW_REGISTERS}
    _down_one[(hidden,)](
        inner, down.data, down.scales, biases[1], second, weights, experts, added, out,
        D=hidden, F=width, F_PAD=first_inputs, REST_PAD=rest, S=size,
        S_PAD=next_power_of_2(size), TOP=top, TOP_PAD=next_power_of_2(top),
        SCALE=kind, HAS_BIAS=biases[1] is not None, HAS_ADDED=added is not None, PDL=pdl,
        num_warps=tile.down_warps, launch_pdl=pdl, **bound,
    )  # fmt: skip


def _in_two(width: int) -> tuple[int, int]:
    """Powers of 2 that hold `width` together; the second may be 0."""
    padded = next_power_of_2(width)
    half = padded // 2
    rest = next_power_of_2(max(width - half, 1))
    return (half, rest) if rest < half else (padded, 0)


def _kind(weight: RawWeight) -> int:
    """As the kernels count scales: 0 none, 1 one of a row, 2 one of a square."""
    return 0 if weight.scales is None else weight.scales.dim()
