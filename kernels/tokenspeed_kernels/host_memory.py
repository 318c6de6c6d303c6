"""Host memory for large tensors that kernels stream through."""

from __future__ import annotations

import torch

from tokenspeed_kernels import _cpu


def prefer_huge_pages(tensor: torch.Tensor) -> bool:
    """Asks the system for 2 MB pages under `tensor`, which is on the CPU, contiguous and not yet
    written. True where the wish was accepted; otherwise nothing changes but speed."""
    assert tensor.device.type == "cpu" and tensor.is_contiguous()
    return _cpu.prefer_huge_pages(tensor.data_ptr(), tensor.numel() * tensor.element_size())
