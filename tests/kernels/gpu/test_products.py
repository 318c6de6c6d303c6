from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.gemm.linear_nvfp4_triton import Few, LinearNvfp4Triton, Many
from tokenspeed_kernels.gemm.linear_triton import LinearFloat8Rows, LinearSiluMulFloat8Rows
from tokenspeed_kernels.gemm.quantise_triton import quantise_rows
from tokenspeed_kernels.gemm.streamed_gluon import stream
from tokenspeed_kernels.gemm.tiles import Ring, Tile

from tests.kernels.triton import cases, moe_cases

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 16, 33, 64])
@pytest.mark.parametrize(("out_features", "in_features"), [(6144, 4096), (1000, 1544), (96, 576)])
def test_products(rows, out_features, in_features, bias):
    tile = Tile(16, 1024, 4, 3) if rows == 1 else Tile(32, 128, 4, 4)
    cases.check_product("cuda", rows, out_features, in_features, tile, bias=bias)


@pytest.mark.parametrize("kind", ["bf16", "fp8", "fp8_block"])
@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 64, 128, 300])
def test_linear(rows, kind):
    """Shapes and dtypes in turn: each is a kernel of its own to compile."""
    dtype = torch.float32 if rows % 2 else torch.bfloat16
    shape = (768, 1536, True) if rows in (5, 64) else (4096, 4096, False)
    cases.check_linear("cuda", rows, shape[0], shape[1], kind, shape[2], dtype)


@pytest.mark.parametrize("kind", ["fp8", "fp8_block"])
@pytest.mark.parametrize("rows", [1, 7, 33, 100, 300])
def test_linear_in_float8_rows(rows, kind):
    kernels = {"linear": LinearFloat8Rows, "linear_silu_mul": LinearSiluMulFloat8Rows}
    cases.check_linear("cuda", rows, 4096, 4096, kind, **kernels)


@pytest.mark.parametrize(
    ("kind", "rows", "ring"),
    [
        ("bf16", 1, Ring(64, 3)),
        ("bf16", 7, Ring(128, 4, 2)),
        ("bf16", 128, Ring(64, 8, 4)),
        ("fp8", 1, Ring(128, 4, 2)),
        ("fp8", 7, Ring(128, 2)),
        ("fp8", 300, Ring(64, 3)),
        ("fp8_block", 1, Ring(128, 4, 2)),
        ("fp8_block", 33, Ring(64, 6, 4)),
        ("fp8_block", 300, Ring(128, 3)),
    ],
)
def test_streams(rows, ring, kind):
    x = torch.randn(rows, 1024, device="cuda").to(cases.BF16)
    weight, scales, exact = cases.random_weight("cuda", kind, 768, 1024)
    given, more, near = x, {}, 1e-5
    if kind != "bf16":
        given, x_scales = quantise_rows(x)
        # The matrix units keep 14 bits of a sum of float8 products.
        x, more, near = given.double() * x_scales, {"x_scales": x_scales, "scales": scales}, 4e-3
    expected = x.double() @ exact.T
    bias = torch.randn(768, device="cuda").to(cases.BF16)
    out = cases.poisoned(ring.splits, rows, 768, dtype=torch.float32, device="cuda")
    stream(given, weight, bias, out, ring, **more)
    cases.assert_near(out.sum(0), expected + bias.double(), near)
    if ring.splits == 1:
        gated = cases.poisoned(rows, 384, dtype=cases.BF16, device="cuda")
        stream(given, weight, None, gated, ring, gated=True, **more)
        cases.assert_near(gated, cases.silu_mul_of(expected), 8e-3)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(
    ("out_features", "in_features", "ring"),
    [(32, 2880, Ring(64, 3, 15)), (75, 1024, Ring(128, 2, 8)), (65, 576, Ring(64, 4))],
)
def test_streams_to_uneven_outputs(out_features, in_features, ring, rows):
    x = torch.randn(rows, in_features, device="cuda").to(cases.BF16)
    weight, _, exact = cases.random_weight("cuda", "bf16", out_features, in_features)
    bias = torch.randn(out_features, device="cuda").to(cases.BF16)
    shape = (ring.splits, rows, out_features)
    out = cases.poisoned(*shape, dtype=torch.float32, device="cuda")
    stream(x, weight, bias, out, ring)
    cases.assert_near(out.sum(0), x.double() @ exact.T + bias.double(), 1e-5)


@pytest.mark.parametrize(
    ("parts", "rows", "width"),
    [(2, 1, 4096), (4, 1, 2880), (4, 8, 2880), (15, 128, 2048), (40, 3, 2049), (3, 33, 31)],
)
def test_parts_are_added_before_the_norm(parts, rows, width):
    cases.check_add_parts_rms_norm("cuda", parts, rows, width)


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_are_added_before_the_rotation(parts):
    cases.check_rope("cuda", 33, 32, 8, 128, 128, True, cases.BF16, parts)


@pytest.mark.parametrize("width", [576, 4096, 14336])
def test_rows_become_float8(width):
    cases.check_quantise_rows("cuda", 33, width)


@pytest.mark.parametrize("kept", ["mxfp4", "int4", "int4_g32"])
@pytest.mark.parametrize("rows", [1, 17, 33, 700])
def test_linear_nibbles(rows, kept):
    moe_cases.check_linear_nibbles("cuda", rows, kept, 1000, 4096, bias=rows == 17)


@pytest.mark.parametrize("rows", [1, 11, 32, 64, 300, 600])
@pytest.mark.parametrize(("out_features", "in_features"), [(1000, 4096), (4096, 1008)])
def test_linear_nvfp4(rows, out_features, in_features):
    moe_cases.check_linear_nibbles(
        "cuda", rows, "nvfp4", out_features, in_features, bias=rows == 11, kernel=LinearNvfp4Triton
    )


@pytest.mark.parametrize(
    ("rows", "tile"),
    [(5, Few(8, 2, 4, parts=4)), (16, Few(16, 4, 4, 1, 4)), (40, Many(64, 4, 4, parts=2))],
)
def test_linear_nvfp4_in_parts(rows, tile):
    moe_cases.check_linear_nibbles_in_parts("cuda", rows, 1000, 4096, tile)
