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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 16, 33, 64])
@pytest.mark.parametrize(("out_features", "in_features"), [(6144, 4096), (1000, 1544), (96, 576)])
def test_products(rows, out_features, in_features, bias):
    tile = cases.Tile(16, 1024, 4, 3) if rows == 1 else cases.Tile(32, 128, 4, 4)
    cases.check_product("cuda", rows, out_features, in_features, tile, bias)


@pytest.mark.parametrize("out_dtype", [cases.BF16, torch.float32])
@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 300])
def test_linear(rows, out_dtype):
    cases.check_linear("cuda", rows, 4104, 1024, rows % 2 == 1, out_dtype)
    cases.check_linear("cuda", rows, 9000, 520, rows % 2 == 0, out_dtype)
