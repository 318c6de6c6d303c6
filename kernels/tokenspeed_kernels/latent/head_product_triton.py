"""Products of each head with a matrix of its own, in Triton, for few tokens."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.latent.reference import head_product as by_torch
from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch, next_power_of_2

# Beyond as many tokens torch's batched product is as fast.
MOST_TOKENS = 64
TOKENS, OUTPUTS, INPUTS = 16, 64, 128
# Left to itself the assembler takes so few that it waits for each load of X before the next.
_REGISTERS = 64


@triton.jit
def _weights_of(W, head, n, k, K: tl.constexpr, N: tl.constexpr):
    """Inputs `k` of outputs `n` of a head's matrix."""
    at = W + head * K * N + k[:, None] * N + n[None, :]
    return tl.load(at, mask=(n < N)[None, :] & (k < K)[:, None], other=0.0)


@triton.jit
def _multiply_head(
    X, W, OUT, w, head, n, t, tokens, x_token, x_head, out_token, out_head,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tokens `t` times a head's matrix, of which `w` are the first BK inputs."""
    k = tl.arange(0, BK)
    live = (t < tokens)[:, None]
    rows = X + t[:, None] * x_token + head * x_head
    x = tl.load(rows + k[None, :], mask=live & (k < K)[None, :], other=0.0)
    acc = tl.dot(x, w)
    for begin in tl.range(BK, K, BK):
        at = begin + k
        w = _weights_of(W, head, n, at, K, N)
        x = tl.load(rows + at[None, :], mask=live & (at < K)[None, :], other=0.0)
        acc = tl.dot(x, w, acc)
    to = OUT + t[:, None] * out_token + head * out_head + n[None, :]
    tl.store(to, acc.to(OUT.dtype.element_ty), mask=live & (n < N)[None, :])


@triton.jit
def _head_product(
    X, W, OUT, tokens, x_token, x_head, out_token, out_head,
    K: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    t = (tl.program_id(2) * BT + tl.arange(0, BT)).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    # Weights are constant: the first tile is on its way while the producer of X still runs.
    w = _weights_of(W, head, n, tl.arange(0, BK), K, N)
    after_producer(PDL)
    _multiply_head(
        X, W, OUT, w, head, n, t, tokens, x_token, x_head, out_token, out_head, K, N, BK
    )  # fmt: skip


def head_product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """See `reference.head_product`."""
    tokens, heads, inputs = x.shape
    if tokens > MOST_TOKENS:
        by_torch(x, weight, out)
        return
    outputs = weight.shape[2]
    assert x.stride(2) == 1 and out.stride(2) == 1 and weight.is_contiguous()
    if tokens == 0:
        return
    pdl = dependent_launch(x.device)
    # All inputs are read at once, by so many more programs: one after the other they would wait.
    at_once = max(min(next_power_of_2(inputs), 512), INPUTS)
    wide = OUTPUTS * INPUTS // at_once
    grid = (heads, cdiv(outputs, wide), cdiv(tokens, TOKENS))
    _head_product[grid](
        x, weight, out, tokens, x.stride(0), x.stride(1), out.stride(0), out.stride(1),
        K=inputs, N=outputs, BT=TOKENS, BN=wide, BK=at_once, PDL=pdl, num_warps=8,
        maxnreg=_REGISTERS, launch_pdl=pdl,
    )  # fmt: skip
