from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.weight import RawWeight


@pytest.mark.parametrize(
    ("weight_format", "shape", "data"),
    [("float32", (3, 5), (3, 5)), ("q4_1", (3, 64), (3, 40)), ("q8_0", (3, 64), (3, 68))],
)
def test_shapes_of_the_data(weight_format, shape, data):
    assert RawWeight(weight_format, shape, torch.zeros(data)).shape == shape
    with pytest.raises(ValueError, match="takes data of shape"):
        RawWeight(weight_format, shape, torch.zeros(data[0], data[1] + 1))


@pytest.mark.parametrize(("weight_format", "group"), [("mxfp4", 32), ("int4", 128)])
def test_two_values_a_byte_have_scales(weight_format, group):
    data, scales = torch.zeros(3, 128), torch.zeros(3, 256 // group)
    assert RawWeight(weight_format, (3, 256), data, scales).nbytes == data.nbytes + scales.nbytes
    with pytest.raises(ValueError, match="takes scales of"):
        RawWeight(weight_format, (3, 256), data, torch.zeros(3, 1))
    with pytest.raises(ValueError, match=f"packs {group} inputs, 272 do not divide"):
        RawWeight(weight_format, (3, 272), torch.zeros(3, 136), scales)


def test_nvfp4_has_a_scale_for_each_row_too():
    parts = torch.zeros(3, 16), torch.zeros(3, 2)
    assert RawWeight("nvfp4", (3, 32), *parts, torch.zeros(3)).nbytes == 4 * 3 * (16 + 2 + 1)
    for rows in (None, torch.zeros(1)):
        with pytest.raises(ValueError, match="takes row scales of"):
            RawWeight("nvfp4", (3, 32), *parts, rows)


def test_wrong_formats():
    with pytest.raises(ValueError, match="packs 32 inputs, 33 do not divide"):
        RawWeight("q4_1", (1, 33), torch.zeros(1, 20))
    with pytest.raises(ValueError, match="unknown weight format q5_0"):
        RawWeight("q5_0", (1, 32), torch.zeros(1, 20))
