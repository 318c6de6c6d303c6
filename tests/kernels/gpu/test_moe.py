from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.launch_triton import is_hopper
from tokenspeed_kernels.moe.experts_hopper import RINGS, Ring
from tokenspeed_kernels.moe.experts_packed_hopper import ExpertsPackedHopper
from tokenspeed_kernels.moe.experts_packed_triton import ExpertsPackedTriton
from tokenspeed_kernels.moe.experts_triton import FEW, MANY, SOME
from tokenspeed_kernels.moe.op import Routing

from tests.kernels.triton.moe_cases import (
    check_experts,
    check_group,
    check_hopper_experts,
    check_hopper_experts_repeat,
    check_quantised_experts,
    check_route,
)

pytestmark = pytest.mark.gpu

QWEN3 = {"experts": 128, "top": 8, "hidden": 2048, "inner": 768}
LITE = {"experts": 64, "top": 6, "hidden": 2048, "inner": 1408, "shared": 2816}
OSS = {"experts": 32, "top": 4, "hidden": 2880, "inner": 2880, "clamp": 7.0, "biased": True}

# Like it, but soon compiled; inputs end within a chunk.
PACKED = {**OSS, "hidden": 1472, "inner": 704}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("experts", "routing"),
    [
        (128, Routing(top_k=8, scoring="softmax", renormalise=True)),
        (32, Routing(top_k=4, scoring="topk_softmax", renormalise=True)),
        (384, Routing(top_k=8, scoring="sigmoid", renormalise=True, scale=2.8)),
        (160, Routing(top_k=6, scoring="softmax", renormalise=False, scale=16.0, groups=8,
                      top_groups=3)),
        (256, Routing(top_k=8, scoring="sigmoid", renormalise=True, scale=2.5, groups=8,
                      top_groups=4)),
    ],
)  # fmt: skip
def test_route(experts, routing, biased):
    check_route("cuda", 700, experts, routing, biased)


@pytest.mark.parametrize(
    ("tokens", "top"), [(1, 8), (2, 8), (128, 8), (129, 8), (4096, 8), (40_000, 4)]
)
@pytest.mark.parametrize(("experts", "block"), [(128, 16), (384, 64)])
def test_group(tokens, top, experts, block):
    check_group("cuda", tokens, top, experts, block)


@pytest.mark.parametrize("tokens", [2, 33, 200])
def test_group_with_parts_that_all_pass(tokens):
    check_group("cuda", tokens, 6, 64, 16, passed=2)


@pytest.mark.parametrize("shape", [QWEN3, LITE, OSS])
@pytest.mark.parametrize("tokens", [1, 2, 8, 33, 128, 700])
def test_experts(tokens, shape):
    check_experts("cuda", tokens, **shape)


@pytest.mark.parametrize("tiles", [FEW, SOME, MANY])
def test_every_tile_with_one_busy_expert(tiles):
    check_experts("cuda", 90, tiles=tiles, skewed=True, **QWEN3)


@pytest.mark.parametrize(
    ("kept", "shape"),
    [
        *(("mxfp4", OSS), ("nvfp4", OSS), ("nvfp4", QWEN3), ("int4_g32", LITE)),
        *(("fp8_block", QWEN3), ("fp8_block", LITE), ("fp8", QWEN3)),
    ],
)
@pytest.mark.parametrize("tokens", [1, 8, 33, 700])
def test_quantised_experts(tokens, kept, shape):
    check_quantised_experts("cuda", tokens, kept, **shape)


@pytest.mark.parametrize(
    ("kept", "tokens"),
    [("mxfp4", 1), ("mxfp4", 8), ("mxfp4", 40), ("mxfp4", 700), ("int4_g32", 8), ("int4_g32", 700)],
)
def test_packed_experts(kept, tokens):
    check_quantised_experts("cuda", tokens, kept, kernel=ExpertsPackedTriton, **PACKED)


@pytest.fixture
def hopper():
    if not is_hopper(torch.device("cuda")):
        pytest.skip("not made for this device")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("tokens", [1, 2, 8, 32, 40])
@pytest.mark.parametrize(
    "sizes", [{}, {"hidden": 2880, "inner": 2880}, {"hidden": 128, "inner": 1088, "clamp": None}]
)
def test_packed_experts_through_rings(tokens, sizes):
    """40 tokens give the experts of some more than a block has."""
    check_quantised_experts(
        "cuda", tokens, "mxfp4", kernel=ExpertsPackedHopper, **{**PACKED, **sizes}
    )


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("kept", ["bfloat16", "fp8", "fp8_block"])
@pytest.mark.parametrize("tokens", [1, 2, 33, 128, 1500])
def test_hopper_experts(tokens, kept):
    check_hopper_experts("cuda", tokens, kept, **QWEN3)
    if tokens in (2, 128):
        check_hopper_experts("cuda", tokens, kept, in_parts=True, **QWEN3)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("kept", ["bfloat16", "fp8_block"])
@pytest.mark.parametrize("tokens", [2, 33])
def test_hopper_experts_are_the_same_each_time(tokens, kept):
    check_hopper_experts_repeat("cuda", tokens, kept, times=300, **QWEN3)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("tokens", [1, 2, 8, 16, 17, 128, 129, 700])
def test_hopper_experts_beside_what_all_tokens_pass(tokens):
    check_hopper_experts("cuda", tokens, "bfloat16", **LITE)
    if 1 < tokens <= 128:
        check_hopper_experts("cuda", tokens, "bfloat16", in_parts=True, **LITE)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("tokens", [2, 20])
def test_what_all_tokens_pass_is_the_same_each_time(tokens):
    check_hopper_experts_repeat("cuda", tokens, "bfloat16", times=300, **LITE)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("shared", [1408, 2000])
def test_what_all_tokens_pass_is_as_wide_as_an_expert_or_no_multiple(shared):
    check_hopper_experts("cuda", 8, "bfloat16", **{**LITE, "shared": shared})


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("narrow", "ring"), RINGS)
def test_every_ring_with_one_busy_expert(narrow, ring: Ring):
    """Blocks that are full, half full and nearly empty."""
    kept = "fp8_block" if narrow else "bfloat16"
    for tokens in (5, 3 * ring.pairs + ring.pairs // 2 - 1):
        check_hopper_experts("cuda", tokens, kept, ring=ring, skewed=True, **QWEN3)
    if not narrow:
        # Two blocks of what all pass, the second one with a pair or two.
        for tokens in (5, min(ring.pairs + 2, 128)):
            check_hopper_experts("cuda", tokens, kept, ring=ring, skewed=True, **LITE)
