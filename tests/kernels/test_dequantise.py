from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from tokenspeed_kernels.dequantise import dequantise, dequantise_rows
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
