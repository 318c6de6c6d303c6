from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.moe import experts_packed_triton as packed
from tokenspeed_kernels.moe.experts_triton import FEW, Tile, Tiles
from tokenspeed_kernels.moe.one_token_triton import OneTile
from tokenspeed_kernels.moe.op import Routing
from tokenspeed_kernels.moe.route_triton import route

from tests.kernels.triton.moe_cases import (
    check_experts,
    check_float8_experts_of_one_token,
    check_group,
    check_quantise_groups,
    check_quantised_experts,
    check_route,
)

LARGE = Tiles(Tile(32, 32, 64, 4, 2), Tile(32, 64, 64, 4, 2))
QUANTISED = Tiles(Tile(32, 32, 64, 4, 2), Tile(32, 32, 128, 4, 2))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("experts", "routing"),
    [
        (60, Routing(top_k=6, scoring="softmax", renormalise=False)),
        (128, Routing(top_k=8, scoring="softmax", renormalise=True)),
        (32, Routing(top_k=4, scoring="topk_softmax", renormalise=True)),
        (64, Routing(top_k=6, scoring="sigmoid", renormalise=True, scale=2.446)),
        (160, Routing(top_k=6, scoring="softmax", renormalise=False, scale=16.0, groups=8,
                      top_groups=3)),
        (24, Routing(top_k=3, scoring="sigmoid", renormalise=True, groups=3, top_groups=2)),
    ],
)  # fmt: skip
def test_route(experts, routing, biased):
    check_route("cpu", 5, experts, routing, biased)


@pytest.mark.parametrize("experts", [24, 160])
def test_equal_scores_and_none(experts):
    """They come in the order of the experts, what is no number last."""
    logits = torch.zeros(2, experts)
    logits[1, 1::2] = float("nan")
    weights, chosen = route(logits, None, Routing(top_k=4, scoring="softmax", renormalise=True))
    assert chosen.tolist() == [[0, 1, 2, 3], [0, 2, 4, 6]]
    torch.testing.assert_close(weights, torch.full((2, 4), 0.25))


@pytest.mark.parametrize(("tokens", "top"), [(1, 1), (7, 3), (40, 4)])
@pytest.mark.parametrize("block", [4, 16])
@pytest.mark.parametrize("passed", [0, 2])
def test_group(tokens, top, block, passed):
    check_group("cpu", tokens, top, 12, block, passed)


def test_group_by_programs():
    """More pairs than one program has."""
    check_group("cpu", 300, 2, 12, 64, passed=2)


@pytest.mark.parametrize(("clamp", "biased"), [(None, False), (0.5, True)])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_experts(tokens, clamp, biased):
    check_experts("cpu", tokens, clamp=clamp, biased=biased)


@pytest.mark.parametrize(
    ("tokens", "clamp", "tiles"),
    [(1, None, None), (1, None, OneTile(4, 2, 2)), (1, 0.5, None), (5, None, None)],
)
def test_experts_beside_what_all_tokens_pass(tokens, clamp, tiles):
    check_experts("cpu", tokens, clamp=clamp, shared=96, inner=64, hidden=192, tiles=tiles, top=3)


@pytest.mark.parametrize("tiles", [FEW, LARGE])
def test_widths_that_tiles_do_not_divide(tiles):
    check_experts("cpu", 9, hidden=192, inner=192, tiles=tiles, skewed=True)


@pytest.mark.parametrize(
    ("kept", "sizes"),
    [
        ("mxfp4", {"hidden": 160, "inner": 96}),
        ("nvfp4", {"hidden": 160, "inner": 96}),
        ("int4_g32", {"hidden": 96, "inner": 160}),
        ("fp8", {"hidden": 160, "inner": 96}),
        ("fp8_block", {"hidden": 160, "inner": 96}),
    ],
)
@pytest.mark.parametrize("tokens", [1, 20])
def test_quantised_experts(kept, sizes, tokens):
    """Widths that steps and tiles do not divide, and rows that begin within a block of scales."""
    few = tokens == 1
    check_quantised_experts(
        "cpu", tokens, kept, **sizes, tiles=None if few else QUANTISED, biased=not few,
        clamp=0.5 if kept == "mxfp4" else None, shared=64 if kept == "fp8_block" else 0,
    )  # fmt: skip


PACKED = packed.Tiles(packed.Tile(16, 2, 2), packed.Tile(16, 1, 2))
PACKED_MANY = packed.Tiles(packed.Tile(16, 2, 4), packed.Tile(16, 1, 4), stages=2)


@pytest.mark.parametrize(
    ("kept", "sizes", "tokens", "tiles"),
    [
        ("mxfp4", (160, 96), 1, None),
        ("mxfp4", (160, 96), 20, packed.FEW),
        ("mxfp4", (160, 96), 20, PACKED),
        ("mxfp4", (96, 160), 20, PACKED_MANY),
        ("int4_g32", (96, 160), 20, PACKED),
        ("int4_g32", (160, 96), 20, PACKED_MANY),
        ("int4", (256, 128), 3, packed.FEW),
    ],
)
def test_packed_experts(kept, sizes, tokens, tiles):
    check_quantised_experts(
        "cpu", tokens, kept, kernel=packed.ExpertsPackedTriton, hidden=sizes[0], inner=sizes[1],
        tiles=tiles, biased=tiles is not None, clamp=0.5 if kept == "mxfp4" else None,
        shared=64 if kept == "int4" else 0,
    )  # fmt: skip


@pytest.mark.parametrize("kept", ["fp8", "fp8_block"])
@pytest.mark.parametrize(("hidden", "inner"), [(256, 128), (160, 96), (384, 192)])
def test_float8_experts_of_one_token(kept, hidden, inner):
    """Widths that fill their padding, and others; rows that begin within a block of scales."""
    check_float8_experts_of_one_token("cpu", kept, OneTile(2, 1, 4), hidden=hidden, inner=inner)


def test_quantise_groups():
    check_quantise_groups("cpu", 5, 384)
