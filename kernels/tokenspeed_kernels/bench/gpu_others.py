"""Norms, activation, rope and sampling on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tokenspeed_kernels.activation.silu_mul_triton import silu_mul
from tokenspeed_kernels.bench.gpu_measure import COPY_GBS, READ_GBS, microseconds, sets_for
from tokenspeed_kernels.bench.result import Result, memory
from tokenspeed_kernels.norm.norm_triton import add_rms_norm, rms_norm
from tokenspeed_kernels.rope.rope_kv_write_triton import rope_kv_write
from tokenspeed_kernels.sampling.logprobs_triton import log_softmax_topk
from tokenspeed_kernels.sampling.op import Edits
from tokenspeed_kernels.sampling.sample_triton import sample

BF16 = torch.bfloat16


def _randn(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=BF16).normal_()


def norms(rows: int) -> Iterator[Result]:
    """RMSNorm of `rows`, with and without the residual."""
    weight = _randn(4096)
    size = 4 * rows * 4096 * 2
    sets = [(_randn(rows, 4096), _randn(rows, 4096)) for _ in range(sets_for(size))]
    out = torch.empty(rows, 4096, device="cuda", dtype=BF16)
    us = microseconds([lambda s=s: add_rms_norm(*s, weight, 1e-5, out=out) for s in sets])
    yield memory("add_rms_norm", "triton", f"{rows} x 4096", us, size, COPY_GBS)
    us = microseconds([lambda s=s: rms_norm(s[0], weight, 1e-5, out=out) for s in sets])
    yield memory("rms_norm", "triton", f"{rows} x 4096", us, size // 2, COPY_GBS)


def activation(rows: int) -> Iterator[Result]:
    """silu(gate) * up of the feed-forward of an 8B model."""
    size = 3 * rows * 14336 * 2
    sets = [_randn(rows, 28672) for _ in range(sets_for(size))]
    out = torch.empty(rows, 14336, device="cuda", dtype=BF16)
    us = microseconds([lambda x=x: silu_mul(x, out=out) for x in sets])
    yield memory("silu_mul", "triton", f"{rows} x 14336", us, size, COPY_GBS)


def rope(tokens: int, dtype: torch.dtype) -> Iterator[Result]:
    """Rope with qk-norm and the write of K and V, 32 and 8 heads of 128."""
    cos_sin = torch.rand(32768, 128, device="cuda")
    blocks = tokens // 64 + 2
    size = tokens * (6144 * 2 + 4096 * 2 + 2048 * dtype.itemsize)
    sets = [
        (_randn(tokens, 6144), *(_randn(blocks, 64, 8, 128).to(dtype) for _ in "kv"))
        for _ in range(sets_for(size))
    ]
    slots = torch.randperm(blocks * 64, device="cuda")[:tokens]
    positions = torch.randint(0, 32768, (tokens,), device="cuda", dtype=torch.int32)
    q_norm, k_norm = _randn(128), _randn(128)
    out = torch.empty(tokens, 32, 128, device="cuda", dtype=BF16)

    def call(qkv: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        rope_kv_write(
            qkv, 32, 8, positions, cos_sin, slots, k, v, q_norm, k_norm, 1e-6, out=out
        )  # fmt: skip

    us = microseconds([lambda s=s: call(*s) for s in sets])
    name = "bf16" if dtype is BF16 else "fp8"
    yield memory("rope_kv_write", "triton", f"{tokens} qk-norm {name}", us, size, COPY_GBS)


# Temperature, top-k, top-p, min-p.
KINDS = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "temperature": (0.8, 0, 1.0, 0.0),
    "top-k 50 top-p 0.95": (0.8, 50, 0.95, 0.0),
    "top-k 1000": (0.8, 1000, 0.95, 0.0),
    "top-p 0.95": (0.8, 0, 0.95, 0.0),
    "min-p 0.05": (0.8, 0, 1.0, 0.05),
}


def sampling(rows: int, vocab: int) -> Iterator[Result]:
    """The draw, by its parameters and with edits and log-probabilities; the logits stay in L2,
    where the output projection leaves them."""
    logits = torch.randn(rows, vocab, device="cuda") * 4
    every = torch.arange(rows, device="cuda")
    seeds, tokens = every * 7919, every.int()
    dtypes = (torch.float32, torch.int32, torch.float32, torch.float32)
    case = f"{rows} x {vocab}"

    def draw(name: str, kind: str, edits: Edits | None = None, k: int | None = None) -> Result:
        parameters = [
            torch.full((rows,), value, device="cuda", dtype=dtype)
            for value, dtype in zip(KINDS[kind], dtypes, strict=True)
        ]
        scored = None if k is None else every
        us = microseconds([
            lambda: sample(logits, *parameters, seeds, seeds, edits, scored, k or 0)
        ])  # fmt: skip
        return memory("sample", name, case, us, logits.nbytes, READ_GBS)

    for kind in KINDS:
        yield draw(kind, kind)
    usual = "top-k 50 top-p 0.95"
    penalised, masked = _edits(rows, vocab, True, False), _edits(rows, vocab, False, True)
    yield draw(f"{usual}, penalties", usual, penalised)
    yield draw(f"{usual}, bitmask", usual, masked)
    yield draw(f"{usual}, 20 log-probabilities", usual, None, 20)
    yield draw(f"{usual}, all of these", usual, _edits(rows, vocab, True, True), 20)
    us = microseconds([lambda: log_softmax_topk(logits, tokens, 20)])
    yield memory("logprobs", "top 20", case, us, logits.nbytes, READ_GBS)


def _edits(rows: int, vocab: int, penalised: bool, masked: bool) -> Edits:
    """A hundredth of the tokens drawn before, half of them forbidden."""
    row, ones = torch.arange(rows, device="cuda"), torch.ones(rows, device="cuda")
    counts = (torch.rand(rows, vocab, device="cuda") < 0.01).to(torch.int16)
    words = (rows, -(-vocab // 32))
    return Edits(
        slots=row,
        counts=counts,
        repetition=ones * (1.1 if penalised else 1.0),
        presence=ones * (0.5 if penalised else 0.0),
        frequency=ones * (0.2 if penalised else 0.0),
        biased=ones * 0,
        bias=torch.zeros(1, vocab, device="cuda"),
        mask_of=row.int() if masked else torch.full_like(row, -1).int(),
        masks=torch.full(words, 0x0F0F0F0F, device="cuda", dtype=torch.int32),
    )


def tune() -> Iterator[Result]:
    """Nothing here has variants."""
    yield from ()


def run() -> Iterator[Result]:
    """The kernels as they are chosen."""
    for rows in (1, 64, 16384):
        yield from norms(rows)
    for rows in (1, 64, 8192):
        yield from activation(rows)
    for tokens, dtype in [(1, BF16), (64, BF16), (8192, BF16), (8192, torch.float8_e4m3fn)]:
        yield from rope(tokens, dtype)
    for rows, vocab in [(64, 131072), (1, 201088), (128, 131072)]:
        yield from sampling(rows, vocab)
