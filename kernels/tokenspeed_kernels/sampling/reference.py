"""Sampling in torch. Probabilities and the draw in float64, so that another implementation
which rounds otherwise still draws the same token."""

from __future__ import annotations

import torch

from tokenspeed_kernels.sampling.philox import token_bits


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """See `op.Sample`."""
    greedy = temperature == 0
    largest = logits.max(dim=-1, keepdim=True).values
    heat = torch.where(greedy, torch.ones_like(temperature), temperature).double().unsqueeze(1)
    scaled = (logits - largest).double() / heat
    scaled = scaled.masked_fill(logits < _top_k_threshold(logits, top_k), float("-inf"))
    floor = min_p.clamp(max=1).double().log().unsqueeze(1)
    kept = scaled.masked_fill(scaled < floor, float("-inf"))
    kept = _keep_top_p(kept, top_p)
    uniform = (token_bits(seeds, positions, logits.shape[1]).double() + 0.5) / 2**32
    drawn = (kept - (-uniform.log()).log()).argmax(dim=-1)
    first_largest = (logits == largest).to(torch.uint8).argmax(dim=-1)
    return torch.where(greedy, first_largest, drawn).to(torch.int32)


def _top_k_threshold(logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The k-th largest logit of each row, [B, 1]."""
    vocab_size = logits.shape[1]
    k = torch.where(top_k > 0, top_k, vocab_size).clamp(max=vocab_size).long()
    return logits.sort(dim=-1, descending=True).values.gather(1, k.unsqueeze(1) - 1)


def _keep_top_p(scaled: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    ordered = scaled.sort(dim=-1, descending=True).values
    weights = ordered.exp()
    before = weights.cumsum(-1) - weights
    wanted = top_p.double().unsqueeze(1) * weights.sum(-1, keepdim=True)
    # The first is always kept, also for top_p 0; all are where it is 1, whatever the rounding.
    count = torch.where(top_p >= 1, ordered.shape[1], (before < wanted).sum(-1)).clamp(min=1)
    threshold = ordered.gather(1, count.unsqueeze(1) - 1)
    return scaled.masked_fill(scaled < threshold, float("-inf"))


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
    counts = output_counts.index_select(0, slots)
    in_output = counts > 0
    seen = prompt_seen.index_select(0, slots) | in_output
    factor = repetition.unsqueeze(1)
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    changed = torch.where(seen, repeated, logits)
    changed = changed - presence.unsqueeze(1) * in_output - frequency.unsqueeze(1) * counts
    logits.copy_(changed)


def apply_bitmask(logits: torch.Tensor, masks: torch.Tensor, rows: torch.Tensor) -> None:
    """See `op.ApplyBitmask`."""
    places = torch.arange(32, dtype=torch.int32, device=masks.device)
    allowed = ((masks.unsqueeze(2) >> places) & 1).bool().flatten(1)[:, : logits.shape[1]]
    logits[rows] = logits[rows].masked_fill(~allowed, float("-inf"))


def log_softmax_topk(
    logits: torch.Tensor, chosen: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `op.LogSoftmaxTopk`."""
    logprobs = logits.log_softmax(-1)
    chosen_logprob = logprobs.gather(1, chosen.long().unsqueeze(1)).squeeze(1)
    # A stable sort, where topk leaves the order of equals open.
    ids = logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return chosen_logprob, logprobs.gather(1, ids), ids.to(torch.int32)
