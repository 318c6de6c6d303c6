"""Bitmasks on a CPU: numpy spreads the bits, torch writes where none is set."""

from __future__ import annotations

import numpy as np
import torch


def apply_bitmask(logits: torch.Tensor, masks: torch.Tensor, rows: torch.Tensor) -> None:
    """See `op.ApplyBitmask`."""
    vocab_size = logits.shape[1]
    words = masks.numpy().view(np.uint8)
    for row, bits in zip(rows.tolist(), words, strict=True):
        allowed = np.unpackbits(bits, bitorder="little", count=vocab_size).view(np.bool_)
        logits[row].masked_fill_(torch.from_numpy(~allowed), float("-inf"))
