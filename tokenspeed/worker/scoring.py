"""Log-probabilities of prompt tokens, gathered chunk by chunk.

A chunk of a prompt gives the distribution of each token after one of its own; the last of them
may lie in the next chunk, but its id is known, so every chunk stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from tokenspeed_kernels.sampling.op import Logprobs

from tokenspeed.scheduler import Step
from tokenspeed.worker.upload import to_device

# Rows of logits held at once: 256 rows of 150,000 ids are 150 MB.
ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Span:
    """Prompt tokens first .. first + len(targets) of a request: each has its distribution in
    the hidden state at `begin` + its place of the step. `targets` are their ids, int32."""

    request_id: int
    first: int
    begin: int
    targets: np.ndarray
    num_logprobs: int


@dataclass(frozen=True, slots=True)
class Scored:
    """The log-probabilities of one span, on the host once the step is done."""

    span: Span
    parts: tuple[Logprobs, ...]


class PromptScorer:
    """Knows which slots hold requests that want their prompt scored."""

    def __init__(self) -> None:
        self._by_slot: dict[int, tuple[int, np.ndarray, int]] = {}

    def admit(self, slot: int, request_id: int, prompt: np.ndarray, wanted: int | None) -> None:
        """A request enters a slot; `wanted` is None where the prompt is not scored."""
        self._by_slot.pop(slot, None)
        if wanted is not None:
            self._by_slot[slot] = (request_id, prompt, wanted)

    def prepare(self, step: Step) -> tuple[Span, ...]:
        """The spans that this step computes."""
        if not self._by_slot:
            return ()
        begins = np.cumsum(step.query_lens) - step.query_lens
        spans = []
        for row, slot in enumerate(step.slots):
            request_id, prompt, wanted = self._by_slot.get(int(slot), _NOBODY)
            if request_id != step.request_ids[row]:
                continue
            first = int(step.context_lens[row]) + 1
            targets = prompt[first : first + int(step.query_lens[row])]
            if len(targets):
                spans.append(Span(request_id, first, int(begins[row]), targets, wanted))
        return tuple(spans)


_NOBODY = (-1, np.empty(0, dtype=np.int32), 0)


def score(
    span: Span,
    hidden: torch.Tensor,
    logits: Callable[[torch.Tensor], torch.Tensor],
    logprobs: Callable[[torch.Tensor, torch.Tensor, int], Logprobs],
) -> Scored:
    """Runs on the stream; `hidden` is that of the whole step, [T, hidden]."""
    targets = to_device(span.targets, hidden.device)
    parts = []
    for begin in range(0, len(targets), ROWS_AT_ONCE):
        chosen = targets[begin : begin + ROWS_AT_ONCE]
        rows = hidden[span.begin + begin : span.begin + begin + len(chosen)]
        parts.append(logprobs(logits(rows), chosen, span.num_logprobs))
    return Scored(span, tuple(parts))
