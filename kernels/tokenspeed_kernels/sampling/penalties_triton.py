"""Penalties in Triton: one pass in place; rows that nothing changes are not read."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch

_BLOCK = 4096


@triton.jit
def _apply_penalties(
    LOGITS, PROMPT_SEEN, OUTPUT_COUNTS, SLOTS, REPETITION, PRESENCE, FREQUENCY,
    vocab_size, row_stride, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab_size
    after_producer(PDL)
    repetition, presence = tl.load(REPETITION + row), tl.load(PRESENCE + row)
    frequency = tl.load(FREQUENCY + row)
    if (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0):
        state = tl.load(SLOTS + row) * vocab_size + token
        logits = LOGITS + row.to(tl.int64) * row_stride + token
        count = tl.load(OUTPUT_COUNTS + state, mask=inside, other=0)
        prompt = tl.load(PROMPT_SEEN + state, mask=inside, other=0)
        seen = inside & ((count > 0) | (prompt != 0))
        # Few tokens were seen: only their logits are read and written.
        x = tl.load(logits, mask=seen, other=0.0)
        repeated = tl.where(x > 0.0, tl.div_rn(x, tl.full(x.shape, 0.0, tl.float32) + repetition),
                            x * repetition)  # fmt: skip
        x = repeated - tl.where(count > 0, presence, 0.0)
        x -= frequency * count.to(tl.float32)
        tl.store(logits, x, mask=seen)


def apply_penalties(
    logits: torch.Tensor,
    prompt_seen: torch.Tensor,
    output_counts: torch.Tensor,
    slots: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """See `op.ApplyPenalties`."""
    rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and logits.dtype is torch.float32
    assert prompt_seen.is_contiguous() and output_counts.is_contiguous()
    if rows:
        pdl = dependent_launch(logits.device)
        _apply_penalties[(rows, triton.cdiv(vocab_size, _BLOCK))](
            logits, prompt_seen.view(torch.uint8), output_counts, slots,
            repetition, presence, frequency, vocab_size, logits.stride(0),
            BLOCK=_BLOCK, PDL=pdl, num_warps=8, launch_pdl=pdl,
        )  # fmt: skip
