"""Products with few rows, and the norm that adds up their parts."""

from types import SimpleNamespace

import pytest
import torch
from tokenspeed_kernels.dequantise import dequantise
from tokenspeed_kernels.gemm import linear_nvfp4_triton as nvfp4
from tokenspeed_kernels.gemm import linear_triton
from tokenspeed_kernels.gemm.linear_nibbles_triton import NibblesTile
from tokenspeed_kernels.gemm.linear_triton import LinearFloat8Rows, LinearTriton
from tokenspeed_kernels.gemm.op import Quantised, Unnormed
from tokenspeed_kernels.gemm.tiles import Tile
from tokenspeed_kernels.weight import RawWeight

from tests.kernels.triton import cases, moe_cases
from tokenspeed.layers.kernels import Kernels
from tokenspeed.layers.linear import float8_from
from tokenspeed.models.decoder import _norm
from tokenspeed.plan import KernelChoice
from tokenspeed.weights.parameter import Weights

MAPS = Tile(64, 32, 4, 3, maps=True)


@pytest.mark.parametrize("kind", ["bf16", "fp8", "fp8_block"])
@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        (1, Tile(16, 64, 4, 2)),
        (1, Tile(32, 32, 4, 2, splits=2)),
        (5, Tile(32, 64, 4, 2)),
        (17, Tile(64, 32, 4, 2, splits=4)),
        (3, MAPS),
    ],
)
def test_product(kind, rows, tile):
    cases.check_product("cpu", rows, 192, 256, tile, kind=kind,
                        dtype=torch.float32 if tile.splits > 1 else torch.bfloat16)  # fmt: skip


@pytest.mark.parametrize("kind", ["bf16", "fp8", "fp8_block"])
@pytest.mark.parametrize(
    ("rows", "tile"), [(1, Tile(16, 64, 4, 2)), (6, Tile(32, 64, 4, 2)), (4, MAPS)]
)
def test_gated_product(kind, rows, tile):
    cases.check_product("cpu", rows, 256, 128, tile, kind=kind, gated=True)


@pytest.mark.parametrize(("width", "splits"), [(72, 1), (128, 2)])
@pytest.mark.parametrize("rows", [1, 9])
def test_odd_sizes_and_bias(rows, width, splits):
    tile = Tile(16, 64, 4, 2, splits)
    cases.check_product("cpu", rows, 75, width, tile, bias=True, dtype=torch.float32)


def test_parts_are_added_before_the_norm():
    cases.check_add_parts_rms_norm("cpu", 3, 2, 96)


@pytest.mark.parametrize(
    ("out_features", "width", "parts"), [(64, 256, 1), (6, 96, 3), (1060, 64, 1)]
)
def test_a_row_and_its_norm(out_features, width, parts):
    bias = parts > 1
    dtype = torch.float32 if bias else torch.bfloat16
    cases.check_normed("cpu", out_features, width, parts, bias, dtype)


def test_parts_are_added_before_the_rotation():
    cases.check_rope("cpu", 2, 4, 2, 32, 16, True, torch.bfloat16, parts=2)


@pytest.mark.parametrize("kind", ["bf16", "fp8", "fp8_block"])
@pytest.mark.parametrize("rows", [1, 5])
def test_linear(kind, rows):
    cases.check_linear("cpu", rows, 64, 256, kind, bias=rows == 5, dtype=torch.float32)


@pytest.mark.parametrize("kind", ["fp8", "fp8_block"])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_float8_inputs_end_within_a_block(kind, rows):
    cases.check_linear("cpu", rows, 96, 336, kind)


def test_rows_become_float8():
    cases.check_quantise_rows("cpu", 3, 100)


@pytest.mark.parametrize("kept", ["mxfp4", "int4_g32"])
@pytest.mark.parametrize("rows", [0, 1, 21])
def test_linear_nibbles(kept, rows):
    """Rows, outputs and inputs that tiles do not divide, and rows apart in memory."""
    tile = NibblesTile(16, 32, 128, 4, 2) if rows == 21 else None
    moe_cases.check_linear_nibbles("cpu", rows, kept, 75, 160, tile=tile, bias=rows == 21)


@pytest.mark.parametrize(
    ("rows", "tile"),
    [(0, None), (1, None), (100, None), (21, nvfp4.Few(16, 2, 2)), (40, nvfp4.Few(32, 4, 4, 1)),
     (40, nvfp4.Many(64, 8, 4))],
)  # fmt: skip
def test_linear_nvfp4(rows, tile):
    """Rows and outputs that tiles do not divide, inputs that chunks do not."""
    moe_cases.check_linear_nibbles(
        "cpu", rows, "nvfp4", 75, 336, tile=tile, bias=rows == 21, kernel=nvfp4.LinearNvfp4Triton
    )


@pytest.mark.parametrize("tile", [nvfp4.Few(16, 4, 2, 1, 3), nvfp4.Many(64, 4, 4, 3, 2)])
def test_linear_nvfp4_in_parts(tile):
    """Parts of as many chunks as warps share; the last has fewer. Only one adds the bias."""
    moe_cases.check_linear_nibbles_in_parts("cpu", 21, 75, 1008, tile)


@pytest.mark.parametrize("bias", [False, True])
def test_slices_of_nvfp4_that_are_widened_in_turn(bias, monkeypatch):
    monkeypatch.setattr(nvfp4, "WIDENED_BYTES", 2 * 128 * 144)
    moe_cases.check_linear_nibbles(
        "cpu", 600, "nvfp4", 330, 144, bias=bias, kernel=nvfp4.LinearNvfp4Triton
    )


def test_every_code_of_nvfp4_is_widened_exactly():
    """All values under all scales, in every place of a tile, as far as bfloat16 goes."""
    scales = torch.arange(127, dtype=torch.uint8).repeat(3)[: 16 * 16].view(16, 16)
    data = torch.arange(256, dtype=torch.uint8).repeat(8).view(16, 128)
    weight = RawWeight("nvfp4", (16, 256), data, scales, torch.full((16,), 0.25))
    made = nvfp4.LinearNvfp4Triton(weight, None)._floats(0, 16)
    assert torch.equal(made.float(), dequantise(weight))


@pytest.mark.parametrize(
    ("kind", "shape", "kernel", "expected"),
    [
        # The first is near one that a lone row meets by a tile, the second near one by a ring.
        ("fp8", (2560, 1024), LinearFloat8Rows, 2),
        ("fp8", (4096, 4096), LinearFloat8Rows, 1),
        ("fp8", (2560, 1024), LinearTriton, None),
        ("bfloat16", (64, 256), LinearTriton, None),
    ],
)
def test_how_many_rows_are_read_in_float8(monkeypatch, kind, shape, kernel, expected):
    monkeypatch.setattr(linear_triton, "is_hopper", lambda device: True)
    data = torch.zeros(shape, dtype=torch.bfloat16)
    scales = None if kind == "bfloat16" else torch.ones(shape[0])
    narrow = data if scales is None else data.to(torch.float8_e4m3fn)
    product = kernel(RawWeight(kind, shape, narrow, scales), None)
    assert float8_from(product) == float8_from(product.parts) == expected


@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("least", [None, 1, 2])
def test_norm_is_as_its_reader_takes_it(least, itself):
    weights = Weights({}, {"n": torch.ones(64, dtype=torch.bfloat16)})
    choice = KernelChoice(
        op="add_rms_norm", variant="", kernel="add_rms_norm_triton", reason="", rejected=()
    )
    kernels = Kernels([choice])
    norm = _norm(
        weights, 1e-6, kernels, "n", SimpleNamespace(float8_from=least, norms_itself=itself)
    )
    for rows in (1, 2):
        x = torch.randn(rows, 64).to(torch.bfloat16)
        made, total = norm(x, torch.zeros_like(x))
        assert isinstance(made, Unnormed) == (itself and rows == 1)
        if isinstance(made, Unnormed):
            assert made.branch is x and made.total is total and total is not made.residual
            continue
        assert torch.equal(total, x)
        assert isinstance(made, Quantised) == (least is not None and rows >= least)
        rounded = made.float8.float() * made.scales if isinstance(made, Quantised) else made
        cases.assert_near(rounded, x.float() * x.float().square().mean(1, True).rsqrt(), 0.04)
