"""Sampling on a CPU. The code is csrc/cpu/sampling.cc and csrc/cpu/vector/sampling.inc."""

from __future__ import annotations

from functools import partial

import torch

from tokenspeed_kernels import _cpu


def _sample(
    isa: int,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    rows, vocab_size = logits.shape
    _check_logits(logits)
    for values in (temperature, top_p, min_p):
        assert values.dtype is torch.float32 and values.is_contiguous()
    assert top_k.dtype is torch.int32 and top_k.is_contiguous()
    for values in (seeds, positions):
        assert values.dtype is torch.int64 and values.is_contiguous()
    tokens = torch.empty(rows, dtype=torch.int32)
    _cpu.sample(
        isa,
        logits.data_ptr(),
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
    return tokens


def _log_softmax_topk(
    isa: int, logits: torch.Tensor, chosen: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
    return chosen_logprob, top_values, top_ids


def _apply_penalties(
    isa: int,
    logits: torch.Tensor,
    prompt_seen: torch.Tensor,
    output_counts: torch.Tensor,
    slots: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    vocab_size = logits.shape[1]
    _check_logits(logits)
    assert prompt_seen.dtype is torch.bool and prompt_seen.is_contiguous()
    assert output_counts.dtype is torch.int32 and output_counts.is_contiguous()
    penalties = (repetition.tolist(), presence.tolist(), frequency.tolist())
    neutral = (1.0, 0.0, 0.0)
    for row, (slot, *row_penalties) in enumerate(zip(slots.tolist(), *penalties, strict=True)):
        if tuple(row_penalties) == neutral:
            continue
        _cpu.penalise(
            isa,
            logits[row].data_ptr(),
            prompt_seen[slot].data_ptr(),
            output_counts[slot].data_ptr(),
            vocab_size,
            *row_penalties,
        )


def _check_logits(logits: torch.Tensor) -> None:
    assert logits.dtype is torch.float32 and logits.is_contiguous()


sample_avx512 = partial(_sample, _cpu.AVX512)
sample_avx2 = partial(_sample, _cpu.AVX2)
sample_portable = partial(_sample, _cpu.PORTABLE)
log_softmax_topk_avx512 = partial(_log_softmax_topk, _cpu.AVX512)
log_softmax_topk_avx2 = partial(_log_softmax_topk, _cpu.AVX2)
log_softmax_topk_portable = partial(_log_softmax_topk, _cpu.PORTABLE)
apply_penalties_avx512 = partial(_apply_penalties, _cpu.AVX512)
apply_penalties_avx2 = partial(_apply_penalties, _cpu.AVX2)
apply_penalties_portable = partial(_apply_penalties, _cpu.PORTABLE)
