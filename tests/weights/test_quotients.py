"""Scales are quotients rounded once, also on a device that divides as CUDA does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tokenspeed.plan import WeightFormat
from tokenspeed.weights.formats.floats import divided
from tokenspeed.weights.formats.fp8 import Scaled, quantised
from tokenspeed.weights.formats.nibbles import Nibbles, nvfp4


class AsCuda(TorchDispatchMode):
    """Divides by a number as CUDA does: multiplies with its reciprocal, a float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.ops.aten.div.Tensor and not isinstance(args[1], torch.Tensor):
            return args[0] * torch.tensor(1.0 / args[1], dtype=torch.float32)
        return func(*args, **(kwargs or {}))


def floats() -> torch.Tensor:
    """Of a reach that differs from row to row."""
    return torch.randn(2000, 256) * torch.rand(2000, 1)


def rounded_once(values: torch.Tensor, by: float) -> torch.Tensor:
    """A float64 has more than twice a float32's bits: rounding it again changes nothing."""
    return (values.double() / by).float()


@pytest.mark.parametrize("by", [448.0, 6.0])
def test_a_quotient_is_rounded_once(by: float) -> None:
    values = floats()
    with AsCuda():
        found, as_it_stands = divided(values, by), values / by
    expected = rounded_once(values, by)
    assert torch.equal(found, expected)
    assert not torch.equal(as_it_stands, expected), "this device shows nothing"


def test_scales_of_float8_are_quotients() -> None:
    values = floats()
    with AsCuda():
        rows = quantised(values, WeightFormat.FP8).scales
        blocks = quantised(values[:1920], WeightFormat.FP8_BLOCK).scales
    assert torch.equal(rows, rounded_once(values.abs().amax(1), 448))
    most = values[:1920].abs().view(15, 128, 2, 128).amax((1, 3))
    assert torch.equal(blocks, rounded_once(most, 448))


def test_scales_of_nvfp4_are_quotients() -> None:
    values = floats()
    with AsCuda():
        rows = nvfp4(values).row_scales
    assert rows is not None
    assert torch.equal(rows, rounded_once(rounded_once(values.abs().amax(1), 6), 448))


@pytest.mark.parametrize(
    "made",
    [
        lambda floats: quantised(floats, WeightFormat.FP8),
        lambda floats: quantised(floats, WeightFormat.FP8_BLOCK),
        nvfp4,
    ],
)
def test_values_are_the_same(made: Callable[[torch.Tensor], Scaled | Nibbles]) -> None:
    values = floats()
    with AsCuda():
        found = made(values)
    expected = made(values)
    assert torch.equal(found.data.view(torch.uint8), expected.data.view(torch.uint8))
    assert torch.equal(found.scales, expected.scales)
