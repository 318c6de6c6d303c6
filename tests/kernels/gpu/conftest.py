"""Every test here needs a CUDA device."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _device():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.manual_seed(torch.seed() % 2**31)
    yield
    # A fault of a kernel shows in the test that launched it.
    torch.cuda.synchronize()
