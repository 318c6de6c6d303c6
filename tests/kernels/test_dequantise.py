from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from tokenspeed_kernels.dequantise import dequantise, dequantise_part, dequantise_rows
from tokenspeed_kernels.weight import RawWeight


@pytest.mark.parametrize(
    ("name", "kind"),
    [("q4_1", gguf.GGMLQuantizationType.Q4_1), ("q8_0", gguf.GGMLQuantizationType.Q8_0)],
)
def test_equals_the_gguf_package(name, kind):
    matrix = np.random.default_rng(3).standard_normal((7, 96)).astype(np.float32)
    data = gguf.quants.quantize(matrix, kind)
    expected = torch.from_numpy(gguf.quants.dequantize(data, kind))
    rows = torch.from_numpy(data)
    assert torch.equal(dequantise_rows(name, rows), expected)
    assert torch.equal(dequantise(RawWeight(name, (7, 96), rows)), expected)


def test_float_weights_widen():
    data = torch.randn(3, 5).bfloat16()
    assert torch.equal(dequantise(RawWeight("bfloat16", (3, 5), data)), data.float())


def test_e2m1_under_powers_of_two():
    """Sign, exponent and mantissa read from the bits, against the table."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(2, 2)  # two groups of 32 in all: one a row
    scales = torch.tensor([[0], [130]], dtype=torch.uint8)
    expected = []
    for code in codes[0].tolist():
        exponent, mantissa = code >> 1 & 3, code & 1
        size = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
        expected.append(-size if code & 8 else size)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    made = dequantise(RawWeight("mxfp4", (2, 32), packed, scales))
    assert made[0].tolist() == [value * 2.0**-127 for value in expected]
    assert made[1].tolist() == [value * 8 for value in expected]


def test_e2m1_under_e4m3_and_a_scale_of_the_row():
    """Every byte under every e4m3 that a scale can be, in float64 from the bits, rounded once."""
    scales = np.arange(127, dtype=np.uint8)
    exponent, mantissa = (scales >> 3).astype(int), scales % 8
    under = np.where(exponent == 0, mantissa * 2.0**-9, 2.0 ** (exponent - 7) * (1 + mantissa / 8))
    pairs = np.arange(256, dtype=np.uint8)
    codes = np.stack((pairs % 16, pairs // 16), 1).reshape(-1)
    size = np.array([0, 1, 2, 3, 4, 6, 8, 12])[codes % 8] / 2
    value = np.where(codes >= 8, -size, size)
    rows = (np.random.default_rng(5).random(127) * 1e-3).astype(np.float32)
    expected = (value * under[:, None] * rows.astype(np.float64)[:, None]).astype(np.float32)
    packed = torch.from_numpy(pairs).repeat(127, 1)
    made = dequantise(
        RawWeight(
            "nvfp4", (127, 512), packed, torch.from_numpy(scales)[:, None].repeat(1, 32),
            torch.from_numpy(rows),
        )
    )  # fmt: skip
    assert torch.equal(made, torch.from_numpy(expected))


def test_integers_are_less_8():
    packed = torch.tensor([[0x80, 0x1F] * 8], dtype=torch.uint8)
    made = dequantise(RawWeight("int4_g32", (1, 32), packed, torch.tensor([[0.5]]).bfloat16()))
    assert made[0, :4].tolist() == [-4.0, 0.0, 3.5, -3.5]


@pytest.mark.parametrize("begin", [0, 5, 128, 130])
def test_a_part_is_that_part_of_the_whole(begin):
    data = torch.randn(300, 200).to(torch.float8_e4m3fn)
    weight = RawWeight("fp8_block", (300, 200), data, torch.rand(3, 2))
    assert torch.equal(dequantise_part(weight, begin, 290), dequantise(weight)[begin:290])
