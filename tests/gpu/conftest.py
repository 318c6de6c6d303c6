"""Every test here needs a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    yield
    # A fault of a kernel shows in the test that launched it.
    torch.cuda.synchronize()
