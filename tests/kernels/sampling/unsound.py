"""Logits of a model that overflowed."""

from __future__ import annotations

import torch


def unsound_rows(logits: torch.Tensor) -> torch.Tensor:
    """Six rows, float [6, vocab], made in place: no number, every other one none, the last none,
    -inf alone, one inf, and a number in the last place alone."""
    logits[0] = torch.nan
    logits[1, ::2] = torch.nan
    logits[2, -1] = torch.nan
    logits[3] = -torch.inf
    logits[4, 2] = torch.inf
    logits[5, :-1] = torch.nan
    return logits
