"""Runs steps: inputs, forward pass, sampling. Launching returns before the step is done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tokenspeed.models.decoder import Decoder
from tokenspeed.scheduler import Step
from tokenspeed.worker.inputs import HostInputs, Inputs
from tokenspeed.worker.sampler import Entry, Logprobs, Sampler, SamplingWork
from tokenspeed.worker.scoring import PromptScorer, Scored, Span, score
from tokenspeed.worker.stream import Pending, Stream, to_host


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave, in host memory.

    `tokens` int32, one per sampling row in the order of the rows. `logprobs` belong to
    `logprob_rows` (indexes into `tokens`), None where nobody asked. `scored` are prompt spans.
    """

    tokens: np.ndarray
    logprob_rows: np.ndarray | None
    logprobs: Logprobs | None
    scored: tuple[Scored, ...]


class PendingStep:
    """A launched step."""

    def __init__(self, pending: Pending[StepResult]) -> None:
        self._pending = pending

    def wait(self) -> StepResult:
        """Blocks until the step is done. Raises what it raised."""
        return self._pending.result()


class Runner:
    """Owns what lasts between steps on the device besides weights and cache."""

    def __init__(self, model: Decoder, inputs: Inputs, sampler: Sampler, stream: Stream) -> None:
        self._model = model
        self._inputs = inputs
        self._sampler = sampler
        self._scorer = PromptScorer()
        self._stream = stream

    def admit(self, request_id: int, entry: Entry) -> None:
        """A request enters its slot with the step that is launched next."""
        self._sampler.admit(entry)
        wanted = entry.params.prompt_logprobs
        self._scorer.admit(entry.slot, request_id, entry.prompt, wanted)

    def launch(self, step: Step) -> PendingStep:
        """Starts the step. Reads the step's views before it returns."""
        inputs = self._inputs.prepare(step)
        sampling = self._sampler.prepare(step.slots[step.samples != 0])
        spans = self._scorer.prepare(step)
        return PendingStep(self._stream.submit(lambda: self._run(inputs, sampling, spans)))

    def close(self) -> None:
        self._stream.close()

    @torch.inference_mode()
    def _run(self, host: HostInputs, sampling: SamplingWork, spans: tuple[Span, ...]) -> StepResult:
        inputs = self._inputs.place(host)
        self._sampler.enter(sampling.entries)
        hidden = self._model.forward(inputs.tokens, inputs.attention)
        scored = tuple(
            score(span, hidden, self._model.logits, self._sampler.logprobs) for span in spans
        )
        if inputs.sample_tokens is not None:
            hidden = hidden.index_select(0, inputs.sample_tokens)
        logprobs = None
        if len(hidden):
            logits = self._model.logits(hidden)
            tokens, logprobs = self._sampler.sample(
                logits, inputs.sample_slots, inputs.sample_positions, sampling
            )
            self._inputs.remember(inputs.sample_slots, tokens)
        else:
            tokens = torch.empty(0, dtype=torch.int32)
        return StepResult(
            tokens=to_host(tokens).numpy(),
            logprob_rows=sampling.logprob_rows,
            logprobs=None if logprobs is None else _down(logprobs),
            scored=tuple(Scored(one.span, tuple(map(_down, one.parts))) for one in scored),
        )


def _down(logprobs: Logprobs) -> Logprobs:
    return Logprobs(
        to_host(logprobs.chosen), to_host(logprobs.top_values), to_host(logprobs.top_ids)
    )
