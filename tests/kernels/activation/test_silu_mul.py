from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.activation import reference


@pytest.mark.op("silu_mul")
@pytest.mark.parametrize(("rows", "inner"), [(0, 8), (1, 1), (1, 1536), (3, 17), (5, 96)])
def test_equals_the_reference(kernel, rows, inner, poisoned):
    x = torch.randn(rows, 2 * inner) * 4
    # exp is within 2 units in the last place, the division and product one each.
    torch.testing.assert_close(kernel(x), reference.silu_mul(x), rtol=1e-6, atol=1e-7)


@pytest.mark.op("silu_mul")
def test_far_out_values_neither_overflow_nor_turn_nan(kernel):
    gate = torch.tensor([-1e30, -200.0, -88.0, -50.0, 0.0, 50.0, 88.0, 200.0, 1e30] * 4)
    x = torch.cat((gate, torch.ones_like(gate))).unsqueeze(0)
    out = kernel(x)
    assert out.isfinite().all()
    # Below exp's range the true value is under 1e-35 and a zero is right enough.
    torch.testing.assert_close(out, reference.silu_mul(x), rtol=1e-6, atol=1e-30)


def test_gate_comes_first():
    x = torch.tensor([[2.0, 3.0]])
    assert reference.silu_mul(x).item() == pytest.approx(2 / (1 + 2.718281828**-2) * 3)
