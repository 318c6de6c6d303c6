from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.norm import reference

SHAPES = [(0, 64), (1, 1), (1, 576), (3, 31), (5, 64), (2, 100), (7, 2049)]
# One float32 rounding per step of a sum of squares in another order: a few units of 2^-24.
CLOSE = {"rtol": 2e-6, "atol": 1e-6}


@pytest.mark.op("rms_norm")
@pytest.mark.parametrize(("rows", "dim"), SHAPES)
def test_rms_norm(kernel, rows, dim, poisoned):
    x, weight = torch.randn(rows, dim) * 3, torch.randn(dim)
    before = x.clone()
    out = kernel(x, weight, 1e-5)
    assert torch.equal(x, before)
    torch.testing.assert_close(out, reference.rms_norm(x, weight, 1e-5), **CLOSE)


@pytest.mark.op("rms_norm")
def test_eps_counts(kernel):
    x, weight = torch.full((1, 64), 1e-3), torch.ones(64)
    out = kernel(x, weight, 1e-6)
    torch.testing.assert_close(out, torch.full((1, 64), 0.5**0.5), **CLOSE)


@pytest.mark.op("add_rms_norm")
@pytest.mark.parametrize(("rows", "dim"), SHAPES)
def test_add_rms_norm(kernel, rows, dim, poisoned):
    x, residual, weight = torch.randn(rows, dim), torch.randn(rows, dim), torch.randn(dim)
    expected_residual = residual.clone()
    expected = reference.add_rms_norm(x, expected_residual, weight, 1e-5)
    out = kernel(x, residual, weight, 1e-5)
    assert torch.equal(residual, expected_residual)
    torch.testing.assert_close(out, expected, **CLOSE)


def test_reference_equals_torch():
    x, weight = torch.randn(4, 96), torch.randn(96)
    expected = torch.nn.functional.rms_norm(x, (96,), weight, 1e-5)
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-5), expected)


def test_reference_in_bfloat16_has_float32_statistics():
    x = (torch.randn(4, 4096) * 100).bfloat16()
    weight = torch.ones(4096, dtype=torch.bfloat16)
    out = reference.rms_norm(x, weight, 1e-5)
    assert out.dtype is torch.bfloat16
    # One rounding to 8 bits of mantissa.
    torch.testing.assert_close(
        out.float(), reference.rms_norm(x.float(), weight.float(), 1e-5), rtol=2**-8, atol=0
    )
