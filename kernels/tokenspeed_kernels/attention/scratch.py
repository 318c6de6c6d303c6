"""Memory that kernels bound to several shapes share."""

from __future__ import annotations

import torch


class Scratch:
    """Float32 memory for who runs one after the other. Ask for the largest first: whoever asked
    for less before keeps what it got."""

    def __init__(self) -> None:
        self._held: torch.Tensor | None = None

    def take(self, count: int, device: torch.device) -> torch.Tensor:
        """`count` elements, whose values last until somebody else runs."""
        if self._held is None or self._held.numel() < count:
            self._held = torch.empty(count, dtype=torch.float32, device=device)
        return self._held[:count]
