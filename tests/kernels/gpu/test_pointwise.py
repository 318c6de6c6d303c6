from __future__ import annotations

import pytest
import torch

from tests.kernels.triton import cases

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("rows", [1, 3, 263, 265, 4097])
@pytest.mark.parametrize("width", [64, 576, 4096, 5120, 16384])
def test_norms(rows, width):
    cases.check_rms_norm("cuda", rows, width)
    cases.check_add_rms_norm("cuda", rows, width)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    ("out_features", "width"), [(3648, 2048), (64, 2048), (32, 2880), (2112, 4096), (77, 576)]
)
def test_a_row_and_its_norm(out_features, width, parts):
    for bias, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        cases.check_normed("cuda", out_features, width, parts, bias, dtype)


@pytest.mark.parametrize(("rows", "width"), [(1, 14336), (7, 1536), (513, 12288), (70000, 32)])
def test_silu_mul(rows, width):
    cases.check_silu_mul("cuda", rows, width)


@pytest.mark.parametrize(("width", "rows"), [(576, 1), (4096, 1000)])
def test_embedding(width, rows):
    cases.check_embedding("cuda", 5000, width, rows)


@pytest.mark.parametrize("kv_dtype", [cases.BF16, cases.FP8])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim"),
    [(32, 8, 128, 128), (9, 3, 64, 64), (28, 4, 128, 128), (16, 2, 128, 64), (3, 1, 96, 48)],
)
def test_rope(heads, kv_heads, head_dim, rotary_dim, norm, kv_dtype):
    for tokens in (1, 133):
        cases.check_rope("cuda", tokens, heads, kv_heads, head_dim, rotary_dim, norm, kv_dtype)
