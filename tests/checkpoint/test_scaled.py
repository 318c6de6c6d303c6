"""Tensors that make up one matrix are found together, whoever wrote them."""

from __future__ import annotations

import pytest

from tokenspeed.checkpoint.scaled import FLOAT8, Scaled, Shape, gather

Tensors = dict[str, tuple[str, Shape]]


@pytest.mark.parametrize(
    ("tensors", "name", "expected"),
    [
        ({"a.weight": ("BF16", (4, 6))}, "a.weight", Scaled("bfloat16", (4, 6), "a.weight")),
        (
            {
                "a.weight": ("F8_E4M3", (130, 6)),
                "a.weight_scale_inv": ("F32", (2, 1)),
                "a.input_scale": ("F32", ()),
            },
            "a.weight",
            Scaled(FLOAT8, (130, 6), "a.weight", "a.weight_scale_inv"),
        ),
        (
            {"up_blocks": ("U8", (3, 10, 2, 16)), "up_scales": ("U8", (3, 10, 2))},
            "up",
            Scaled("mxfp4", (3, 64, 10), "up_blocks", "up_scales"),
        ),
        (
            {"a.weight_packed": ("U8", (10, 32)), "a.weight_scale": ("F8_E8M0", (10, 2))},
            "a.weight",
            Scaled("mxfp4", (10, 64), "a.weight_packed", "a.weight_scale"),
        ),
        (
            {
                "a.weight_packed": ("I32", (10, 16)),
                "a.weight_scale": ("BF16", (10, 4)),
                "a.weight_shape": ("I64", (2,)),
            },
            "a.weight",
            Scaled("int4_g32", (10, 128), "a.weight_packed", "a.weight_scale"),
        ),
        (
            {"a.weight_packed": ("I32", (10, 16)), "a.weight_scale": ("BF16", (10, 1))},
            "a.weight",
            Scaled("int4", (10, 128), "a.weight_packed", "a.weight_scale"),
        ),
        (
            {
                "a.weight": ("U8", (10, 32)),
                "a.weight_scale": ("F8_E4M3", (10, 4)),
                "a.weight_scale_2": ("F32", ()),
                "a.input_scale": ("F32", ()),
            },
            "a.weight",
            Scaled("nvfp4", (10, 64), "a.weight", "a.weight_scale", "", "a.weight_scale_2"),
        ),
        (
            {
                "a.weight_packed": ("U8", (10, 32)),
                "a.weight_scale": ("F8_E4M3", (10, 4)),
                "a.weight_global_scale": ("F32", (1,)),
                "a.input_global_scale": ("F32", (1,)),
            },
            "a.weight",
            Scaled(
                "nvfp4",
                (10, 64),
                "a.weight_packed",
                "a.weight_scale",
                "",
                "a.weight_global_scale",
                divides=True,
            ),
        ),
    ],
)
def test_one_matrix(tensors: Tensors, name: str, expected: Scaled) -> None:
    assert gather(tensors) == {name: expected}


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        ({"a.weight": ("F8_E4M3", (4, 6))}, "no scale"),
        ({"up_blocks": ("U8", (3, 10, 2, 16))}, "no scale"),
        ({"a.weight_packed": ("I32", (10, 16))}, "no scale"),
        ({"up_blocks": ("U8", (3, 10, 2, 16)), "up_scales": ("U8", (3, 2, 10))}, r"[3, 2, 10]"),
        ({"up_blocks": ("U8", (3, 10, 2, 16)), "up_scales": ("F32", (3, 10, 2))}, "F32"),
        ({"a.weight_packed": ("I32", (9, 16)), "a.weight_scale": ("BF16", (9, 3))}, r"[9, 3]"),
        ({"a.weight_packed": ("I32", (9, 16)), "a.weight_scale": ("BF16", ())}, r"[]"),
        ({"a.weight_packed": ("I32", (9, 0)), "a.weight_scale": ("BF16", (9, 0))}, ""),
        ({"a.weight": ("U8", (10, 32)), "a.weight_scale": ("F8_E4M3", (10, 4))}, "no global scale"),
        (
            {
                "a.weight": ("U8", (10, 32)),
                "a.weight_scale": ("F8_E4M3", (10, 2)),
                "a.weight_scale_2": ("F32", ()),
            },
            "[10, 2], not [10, 4]",
        ),
        (
            {
                "a.weight_packed": ("U8", (10, 32)),
                "a.weight_scale": ("F8_E4M3", (10, 4)),
                "a.weight_global_scale": ("F32", (2,)),
            },
            "shape [2], not one F32",
        ),
    ],
)
def test_what_is_wrong_with_a_scale(tensors: Tensors, fault: str) -> None:
    one = gather(tensors)["up" if "up_blocks" in tensors else "a.weight"]
    assert fault in one.fault


@pytest.mark.parametrize(
    "tensors",
    [
        {"up_scales": ("U8", (3, 10, 2))},
        {"a.weight_scale": ("F32", ())},
        {"up_blocks": ("U8", (3, 10, 2))},
        {"a.weight_packed": ("F32", (3, 2))},
    ],
)
def test_others_stay_what_they_are(tensors: Tensors) -> None:
    assert gather(tensors).keys() == tensors.keys()
