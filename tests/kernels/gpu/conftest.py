"""Every test here needs a CUDA device."""

from __future__ import annotations

import pytest
import torch

from tests.device import require_whole_device


@pytest.fixture(autouse=True)
def _device(request):
    require_whole_device(request.config)
    torch.manual_seed(torch.seed() % 2**31)
    yield
    # A fault of a kernel shows in the test that launched it.
    torch.cuda.synchronize()
