"""Ordered kernels: near their references, and a row's result is its own, to the last bit."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.attention.paged_attention_ordered import PagedAttentionOrdered
from tokenspeed_kernels.gemm.linear_ordered import LinearOrdered, LinearSiluMulOrdered
from tokenspeed_kernels.norm.norm_triton import add_rms_norm_ordered, rms_norm_ordered
from tokenspeed_kernels.weight import RawWeight

from tests.kernels.triton import cases
from tests.kernels.triton.company import Company

pytestmark = pytest.mark.gpu

MOST_KEYS = 16384
SHAPES = [
    {"heads": 32, "kv_heads": 8, "head_dim": 128, "block": 64},
    {"heads": 9, "kv_heads": 3, "head_dim": 64, "block": 16},
]


def bind(*shape, decode=None, extend=None, window=0):
    return PagedAttentionOrdered(*shape, window=window, most_keys=MOST_KEYS)


@pytest.mark.parametrize("kv_dtype", [cases.BF16, cases.FP8])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention(shape, kv_dtype):
    facts = {"kv_dtype": kv_dtype, "bind": bind, **shape}
    lens, contexts = [1, 0, 1, 200, 0, 3, 70], [500, 70, 0, 160, 9, 640, 9000]
    for first in (0, 3):
        cases.check_attention("cuda", lens, contexts, first, **facts)
    for contexts in ([0], [63], [64], [16383], [5, 900, 0, 4095, 64] * 9):
        cases.check_attention("cuda", [1] * len(contexts), contexts, len(contexts), **facts)


@pytest.mark.parametrize("kv_dtype", [cases.BF16, cases.FP8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("length", "new"), [(130, 130), (600, 200), (9000, 130), (16384, 70)])
def test_queries_attend_alike_in_any_company(length, new, shape, kv_dtype):
    others = [(1, 16000), (300, 0), (1, 70), (5, 2500)]
    company = Company("cuda", bind, length, new, others, kv_dtype=kv_dtype, **shape)
    company.check(step=7)


@pytest.mark.parametrize(
    ("out_features", "in_features", "bias"),
    [(6144, 4096, False), (4096, 14336, False), (1000, 1544, True), (96, 576, False)],
)
def test_products_are_alike_for_any_number_of_rows(out_features, in_features, bias):
    x = torch.randn(1000, in_features, device="cuda").to(cases.BF16)
    data = torch.randn(out_features, in_features, device="cuda").to(cases.BF16)
    offset = torch.randn(out_features, device="cuda").to(cases.BF16) if bias else None
    weight = RawWeight("bfloat16", (out_features, in_features), data)
    exact = x.double() @ data.double().T + (0 if offset is None else offset.double())
    linear, gated = LinearOrdered(weight, offset), LinearSiluMulOrdered(weight, offset)
    wide = linear(x, torch.float32)
    cases.assert_near(wide, exact, 5e-5)
    cases.assert_near(gated(x), cases.silu_mul_of(exact), 8e-3)
    parts = linear.parts(x)
    cases.assert_near(parts if parts.dim() == 2 else parts.sum(0), exact, 4e-3)
    for first, rows in [(0, 1), (999, 1), (3, 5), (100, 8), (7, 9), (90, 33), (0, 64), (50, 128),
                        (1, 129), (400, 300)]:  # fmt: skip
        some = slice(first, first + rows)
        assert torch.equal(linear(x[some], torch.float32), wide[some])
        assert torch.equal(gated(x[some]), gated(x)[some])
        assert torch.equal(linear.parts(x[some]), parts[..., some, :])


@pytest.mark.parametrize("width", [576, 4096])
def test_norms_are_alike_for_any_number_of_rows(width):
    x = torch.randn(2, 2000, width, device="cuda")
    residual, weight = (torch.randn(n, width, device="cuda").to(cases.BF16) for n in (2000, 1))
    kept = residual.clone()
    whole = add_rms_norm_ordered(x, kept, weight[0], 1e-5)
    plain = rms_norm_ordered(residual, weight[0], 1e-5)
    for some in (slice(0, 1), slice(5, 70), slice(1000, 1500)):
        part = residual[some].clone()
        assert torch.equal(
            add_rms_norm_ordered(x[:, some].contiguous(), part, weight[0], 1e-5), whole[some]
        )
        assert torch.equal(part, kept[some])
        assert torch.equal(rms_norm_ordered(residual[some], weight[0], 1e-5), plain[some])
