"""Gated activation in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """See `op.SiluMul`."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up
