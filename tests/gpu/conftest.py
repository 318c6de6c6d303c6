"""Every test here needs a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.device import require_whole_device


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    require_whole_device(request.config)
    yield
    # A fault of a kernel shows in the test that launched it.
    torch.cuda.synchronize()
