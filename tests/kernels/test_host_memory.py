from __future__ import annotations

import platform

import pytest
import torch
from tokenspeed_kernels.host_memory import prefer_huge_pages


@pytest.mark.skipif(platform.system() != "Linux", reason="madvise is Linux's")
def test_memory_stays_usable():
    tensor = torch.empty(9 << 20, dtype=torch.uint8)
    prefer_huge_pages(tensor)
    tensor.fill_(7)
    assert int(tensor.sum(dtype=torch.int64)) == 7 * tensor.numel()


def test_a_tensor_without_a_whole_page_is_left_alone():
    assert not prefer_huge_pages(torch.empty(1000))
    assert not prefer_huge_pages(torch.empty(0))
