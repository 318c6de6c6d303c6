"""Sampling on a CPU. The code is csrc/cpu/sampling.cc and csrc/cpu/vector/sampling.inc."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from tokenspeed_kernels import _cpu
from tokenspeed_kernels.sampling.op import Drawn, Edits, Logprobs


def _sample(
    isa: int,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    edits: Edits | None = None,
    scored_rows: torch.Tensor | None = None,
    num_logprobs: int = 0,
) -> Drawn:
    rows, vocab_size = logits.shape
    _check_logits(logits)
    edited = logits if edits is None else _edited(isa, logits, edits)
    for values in (temperature, top_p, min_p):
        assert values.dtype is torch.float32 and values.is_contiguous()
    assert top_k.dtype is torch.int32 and top_k.is_contiguous()
    for values in (seeds, positions):
        assert values.dtype is torch.int64 and values.is_contiguous()
    tokens = torch.empty(rows, dtype=torch.int32)
    _cpu.sample(
        isa,
        edited.data_ptr(),
        rows,
        vocab_size,
        temperature.data_ptr(),
        top_k.data_ptr(),
        top_p.data_ptr(),
        min_p.data_ptr(),
        seeds.data_ptr(),
        positions.data_ptr(),
        tokens.data_ptr(),
    )
    if scored_rows is None:
        return Drawn(tokens, None)
    scored = logits.index_select(0, scored_rows), tokens.index_select(0, scored_rows)
    return Drawn(tokens, _log_softmax_topk(isa, *scored, num_logprobs))


def _edited(isa: int, logits: torch.Tensor, edits: Edits) -> torch.Tensor:
    """New logits, as `op.Edits` says."""
    counts, slots, logits = edits.counts, edits.slots.tolist(), logits.clone()
    assert counts.dtype is torch.int16 and counts.is_contiguous()
    penalties = (edits.repetition.tolist(), edits.presence.tolist(), edits.frequency.tolist())
    for row, slot, *row_penalties in zip(logits, slots, *penalties, strict=True):
        if row_penalties != [1.0, 0.0, 0.0]:
            _cpu.penalise(isa, row.data_ptr(), counts[slot].data_ptr(), len(row), *row_penalties)
    for row, slot, biased in zip(logits, slots, edits.biased.tolist(), strict=True):
        if biased:
            row += edits.bias[slot]
    words = edits.masks.numpy().view(np.uint8)
    for row, mask in zip(logits, edits.mask_of.tolist(), strict=True):
        if mask >= 0:
            allowed = np.unpackbits(words[mask], bitorder="little", count=len(row)).view(np.bool_)
            row.masked_fill_(torch.from_numpy(~allowed), float("-inf"))
    return logits


def _log_softmax_topk(isa: int, logits: torch.Tensor, chosen: torch.Tensor, k: int) -> Logprobs:
    rows, vocab_size = logits.shape
    _check_logits(logits)
    assert chosen.dtype is torch.int32 and chosen.is_contiguous() and 0 <= k <= vocab_size
    chosen_logprob = torch.empty(rows)
    top_values = torch.empty((rows, k))
    top_ids = torch.empty((rows, k), dtype=torch.int32)
    _cpu.log_softmax_topk(
        isa,
        logits.data_ptr(),
        rows,
        vocab_size,
        k,
        chosen.data_ptr(),
        chosen_logprob.data_ptr(),
        top_values.data_ptr(),
        top_ids.data_ptr(),
    )
    return Logprobs(chosen_logprob, top_values, top_ids)


def _check_logits(logits: torch.Tensor) -> None:
    assert logits.dtype is torch.float32 and logits.is_contiguous()


sample_avx512 = partial(_sample, _cpu.AVX512)
sample_avx2 = partial(_sample, _cpu.AVX2)
sample_portable = partial(_sample, _cpu.PORTABLE)
log_softmax_topk_avx512 = partial(_log_softmax_topk, _cpu.AVX512)
log_softmax_topk_avx2 = partial(_log_softmax_topk, _cpu.AVX2)
log_softmax_topk_portable = partial(_log_softmax_topk, _cpu.PORTABLE)
