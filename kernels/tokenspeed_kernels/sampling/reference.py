"""Sampling in torch. Probabilities and the draw in float64, so that another implementation
which rounds otherwise still draws the same token."""

from __future__ import annotations

import torch

from tokenspeed_kernels.sampling.op import Drawn, Edits, Logprobs
from tokenspeed_kernels.sampling.philox import token_bits


def sample(
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
    """See `op.Sample`."""
    edited = logits if edits is None else apply_edits(logits, edits)
    tokens = _draw(edited, temperature, top_k, top_p, min_p, seeds, positions)
    if scored_rows is None:
        return Drawn(tokens, None)
    scored = logits.index_select(0, scored_rows), tokens.index_select(0, scored_rows)
    return Drawn(tokens, log_softmax_topk(*scored, num_logprobs))


def _draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
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


def apply_edits(logits: torch.Tensor, edits: Edits) -> torch.Tensor:
    """New logits, as `op.Edits` says."""
    counts = edits.counts.index_select(0, edits.slots)
    times = counts & 0x7FFF
    factor = edits.repetition.unsqueeze(1)
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    changed = torch.where(counts != 0, repeated, logits)
    changed = changed - edits.presence.unsqueeze(1) * (times > 0)
    changed = changed - edits.frequency.unsqueeze(1) * times
    bias = edits.bias.index_select(0, edits.slots)
    changed = torch.where(edits.biased.unsqueeze(1) != 0, changed + bias, changed)
    places = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((edits.masks.unsqueeze(2) >> places) & 1).bool().flatten(1)[:, : logits.shape[1]]
    mask_of = edits.mask_of.long()
    allowed = allowed.index_select(0, mask_of.clamp(min=0)) | (mask_of < 0).unsqueeze(1)
    return changed.masked_fill(~allowed, float("-inf"))


def log_softmax_topk(logits: torch.Tensor, chosen: torch.Tensor, k: int) -> Logprobs:
    """See `op.LogSoftmaxTopk`."""
    logprobs = logits.log_softmax(-1)
    chosen_logprob = logprobs.gather(1, chosen.long().unsqueeze(1)).squeeze(1)
    # A stable sort, where topk leaves the order of equals open.
    ids = logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return Logprobs(chosen_logprob, logprobs.gather(1, ids), ids.to(torch.int32))
