"""Bitmasks in Triton: one pass over the masked rows that only writes."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch

_BLOCK = 4096


@triton.jit
def _apply_bitmask(
    LOGITS, MASKS, ROWS, vocab_size, row_stride, words, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    mask = tl.program_id(0)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab_size
    after_producer(PDL)
    row = tl.load(ROWS + mask)
    # 32 neighbours read one word, which the cache serves.
    word = tl.load(MASKS + mask * words + token // 32, mask=inside, other=-1)
    forbidden = ((word >> (token % 32)) & 1) == 0
    minus_infinity = tl.full(token.shape, float("-inf"), tl.float32)
    tl.store(LOGITS + row * row_stride + token, minus_infinity, mask=inside & forbidden)


def apply_bitmask(logits: torch.Tensor, masks: torch.Tensor, rows: torch.Tensor) -> None:
    """See `op.ApplyBitmask`."""
    vocab_size, words = logits.shape[1], masks.shape[1]
    assert logits.stride(1) == 1 and logits.dtype is torch.float32
    assert masks.is_contiguous() and masks.dtype is torch.int32 and words * 32 >= vocab_size
    if len(rows):
        pdl = dependent_launch(logits.device)
        _apply_bitmask[(len(rows), triton.cdiv(vocab_size, _BLOCK))](
            logits, masks, rows, vocab_size, logits.stride(0), words,
            BLOCK=_BLOCK, PDL=pdl, num_warps=8, launch_pdl=pdl,
        )  # fmt: skip
