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


def test_wrong_formats():
    with pytest.raises(ValueError, match="packs 32 inputs, 33 do not divide"):
        RawWeight("q4_1", (1, 33), torch.zeros(1, 20))
    with pytest.raises(ValueError, match="unknown weight format q5_0"):
        RawWeight("q5_0", (1, 32), torch.zeros(1, 20))
