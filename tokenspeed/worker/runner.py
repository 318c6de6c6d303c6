"""Runs steps: inputs, forward pass, sampling. Launching returns before the step is done."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenspeed_kernels.sampling.op import Logprobs

from tokenspeed.cache.kv import KvCache
from tokenspeed.layers.attention import BoundAttention, Expanded
from tokenspeed.models.decoder import Decoder
from tokenspeed.scheduler import Step
from tokenspeed.wire import LayerLoad
from tokenspeed.worker.graphs import Captured, CompileAll, FixedStep, Graphs, Outcome
from tokenspeed.worker.inputs import HostInputs, Inputs, Shape, padded_tokens
from tokenspeed.worker.sampler import Entry, Sampler, SamplingWork
from tokenspeed.worker.scoring import PromptScorer, Scored, Span, score
from tokenspeed.worker.stream import Pending, Stream
from tokenspeed.worker.upload import DeviceParts, Packed, Upload, to_host

if TYPE_CHECKING:
    from tokenspeed.worker.mapped import Landing

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step, in host memory.

    `tokens` int32, one per sampling row in the order of the rows. `logprobs` belong to
    `logprob_rows` (indexes into `tokens`), None if none were asked for. `scored`: prompt spans.
    """

    tokens: np.ndarray
    logprob_rows: np.ndarray | None
    logprobs: Logprobs | None
    scored: tuple[Scored, ...]


Draw = Callable[[np.ndarray], Pending[StepResult]]


class PendingStep:
    """A launched step. If some of its rows are sampled under masks, only its forward pass is
    launched: masks depend on the previous tokens, which may still be in flight. `release` brings
    them."""

    def __init__(self, pending: Pending[StepResult] | None, draw: Draw | None = None) -> None:
        self._pending = pending
        self._draw = draw

    def release(self, masks: np.ndarray) -> None:
        """Samples. `masks` int32 [masked rows, ceil(V / 32)], in the order of `launch`. No step may
        have been launched since."""
        assert self._draw is not None and self._pending is None, "a step is sampled once"
        self._pending = self._draw(masks)

    def wait(self) -> StepResult:
        """Blocks until the step is done. Raises what it raised."""
        assert self._pending is not None, "the step waits for its masks"
        return self._pending.result()


@dataclass(frozen=True, slots=True)
class _Work:
    """A prepared step. `captured`: it has a graph of its shape."""

    packed: Packed
    captured: bool
    shape: Shape
    width: int
    expanded: Expanded | None
    num_samples: int
    sampling: SamplingWork
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """What sampling needs of a forward pass, on the device: logits [B, V], slots and positions
    [B]. `tokens` in host memory: those that the graph sampled, None if they do not count."""

    parts: DeviceParts
    logits: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    scored: tuple[Scored, ...]
    tokens: torch.Tensor | None = None


class Runner:
    """Runs steps on the device, one after the other.

    `max_step_tokens`: the largest step. `replayed` and `launched` count steps with a graph and
    without.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KvCache,
        inputs: Inputs,
        sampler: Sampler,
        upload: Upload,
        stream: Stream,
        graphs: Graphs,
        max_step_tokens: int,
        landing: Landing | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._inputs = inputs
        self._sampler = sampler
        self._scorer = PromptScorer()
        self._upload = upload
        self._stream = stream
        self._graphs = graphs
        self._landing = landing
        self._most_tokens = padded_tokens(max_step_tokens)
        self._wide: BoundAttention | None = None
        self._expanding: BoundAttention | None = None
        self.replayed = self.launched = 0

    def admit(self, request_id: int, entry: Entry) -> None:
        """A request enters its slot with the step that is launched next."""
        self._sampler.admit(entry)
        wanted = entry.params.prompt_logprobs
        self._scorer.admit(entry.slot, request_id, entry.prompt, wanted)

    def recount(self, entry: Entry) -> None:
        """A request has more output than was sampled; counts from the next step launched."""
        self._sampler.recount(entry)

    def launch(self, step: Step, masked_rows: np.ndarray = _NONE) -> PendingStep:
        """Starts the step. Reads the step's views before it returns. int64 `masked_rows`: indexes,
        among the rows that sample, of those that are sampled under a mask."""
        spans = self._scorer.prepare(step)
        expands = self._inputs.expands(step)
        shape = None if spans or expands else self._graphs.shape(step)
        self.replayed += shape is not None
        self.launched += shape is None
        inputs = self._inputs.prepare(step, shape, expands)
        work = self._prepared(step, inputs, shape is not None, spans, masked_rows)
        if not work.sampling.masked:
            return PendingStep(self._stream.submit(lambda: self._run(work)))
        passed: list[_Forwarded] = []
        forward = self._stream.submit(lambda: passed.append(self._forward(work)))

        def drawn(masks: np.ndarray) -> StepResult:
            if not passed:
                forward.result()  # raises what the forward pass raised
            return self._draw(work, passed[0], masks)

        return PendingStep(None, lambda masks: self._stream.submit(lambda: drawn(masks)))

    def skip(self, step: Step) -> PendingStep:
        """Completes the step without computing it: the cache keeps whatever it holds and every
        token is 0. For benchmarks of long contexts, which need not be computed first."""
        work = self._prepared(step, self._inputs.prepare(step), False, (), _NONE)
        return PendingStep(self._stream.submit(lambda: self._skipped(work)))

    @torch.inference_mode()
    def compile(self, compile_all: CompileAll[Outcome]) -> Outcome:
        """Compiles the kernels of the graphs, which are also those of steps without one."""
        rehearsal = functools.partial(self._fixed_step, brief=True)
        besides = []
        if self._model.attention.expands:
            besides.append(functools.partial(rehearsal, self._inputs.least(), expands=True))
        return self._graphs.compile(rehearsal, compile_all, besides)

    @torch.inference_mode()
    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Captures the graphs. Only block 0 of the cache is written."""
        brief = functools.partial(self._fixed_step, brief=True)
        self._graphs.capture(self._fixed_step, brief, progress)
        if self._landing is not None:
            self._landing.restart()

    def expert_load(self) -> tuple[LayerLoad, ...]:
        """Counts of the steps so far, () if they are not counted. Waits for launched steps."""
        load = self._model.expert_load
        if load is None:
            return ()
        tokens = self._stream.submit(load.read).result()
        return tuple(map(LayerLoad, load.layers, tokens))

    def close(self) -> None:
        self._stream.close()

    def _prepared(
        self,
        step: Step,
        inputs: HostInputs,
        captured: bool,
        spans: tuple[Span, ...],
        masked_rows: np.ndarray,
    ) -> _Work:
        sampling = self._sampler.prepare(step.slots[step.samples != 0], masked_rows)
        return _Work(
            packed=self._upload.pack(inputs.parts | sampling.parts),
            captured=captured,
            shape=inputs.shape,
            width=inputs.width,
            expanded=inputs.expanded,
            num_samples=step.num_samples,
            sampling=sampling,
            spans=spans,
        )

    def _begin(self, work: _Work) -> DeviceParts:
        """Updates the slots' state on the device for this step."""
        parts = self._upload.place(work.packed)
        self._inputs.change(parts)
        if "copy_sources" in parts:
            self._cache.copy(parts["copy_sources"], parts["copy_destinations"])
        self._sampler.enter(parts, work.sampling)
        return parts

    def _run(self, work: _Work) -> StepResult:
        return self._draw(work, self._forward(work), None)

    @torch.inference_mode()
    def _forward(self, work: _Work) -> _Forwarded:
        parts = self._begin(work)
        if work.captured:
            return self._replay(self._graphs[work.shape], work, parts)
        bound = self._bound(work.shape, work.expanded is not None)
        inputs = self._inputs.gather(parts, work.width, bound, work.expanded)
        # Scoring a prompt needs the hidden states of all its tokens.
        wanted = None if work.spans else inputs.sample_tokens
        hidden = self._model.forward(inputs.tokens, inputs.attention, wanted)
        scored = tuple(
            score(span, hidden, self._model.logits, self._sampler.logprobs) for span in work.spans
        )
        if work.spans and inputs.sample_tokens is not None:
            hidden = hidden.index_select(0, inputs.sample_tokens)
        logits = self._model.logits(hidden) if len(hidden) else hidden
        return _Forwarded(parts, logits, inputs.sample_slots, inputs.sample_positions, scored)

    def _replay(self, captured: Captured, work: _Work, parts: DeviceParts) -> _Forwarded:
        count = work.num_samples
        captured.replay()
        assert self._landing is not None, "graphs leave their tokens there"
        landed = self._landing.landed()[:count]
        # The graph sampled the plain logits; if more is asked for, its tokens are not used.
        tokens = landed if work.sampling.only_draws else None
        slots, positions = parts["sample_slots"][:count], parts["sample_positions"][:count]
        return _Forwarded(parts, captured.logits[:count], slots, positions, (), tokens)

    @torch.inference_mode()
    def _draw(self, work: _Work, done: _Forwarded, masks: np.ndarray | None) -> StepResult:
        tokens, logprobs = done.tokens, None
        if not len(done.logits):
            tokens = torch.empty(0, dtype=torch.int32)
        elif tokens is None:
            tokens, logprobs = self._sampler.sample(
                done.logits, done.slots, done.positions, done.parts, work.sampling, masks
            )
            self._inputs.remember(done.slots, tokens)
        return self._result(work, tokens, logprobs, done.scored)

    @torch.inference_mode()
    def _skipped(self, work: _Work) -> StepResult:
        parts = self._begin(work)
        tokens = torch.zeros(work.num_samples, dtype=torch.int32)
        self._inputs.remember(
            parts["sample_slots"], tokens.to(parts["sample_slots"].device, non_blocking=True)
        )
        return self._result(work, tokens, None, ())

    def _result(
        self,
        work: _Work,
        tokens: torch.Tensor,
        logprobs: Logprobs | None,
        scored: tuple[Scored, ...],
    ) -> StepResult:
        return StepResult(
            tokens=self._upload.down(tokens).numpy(),
            logprob_rows=work.sampling.logprob_rows,
            logprobs=None if logprobs is None else _down(logprobs),
            scored=tuple(Scored(one.span, tuple(map(_down, one.parts))) for one in scored),
        )

    def _bound(self, shape: Shape, expands: bool) -> BoundAttention | None:
        """Attention for steps of that shape. Steps with longer rows share one that is bound to the
        largest shape, and those that expand share another."""
        if shape.decodes_only:
            return self._model.attention.bind(shape.decode, 0, 0, keep_out=True)
        rows = (shape.decode, shape.extend, self._most_tokens)
        if expands:
            if self._expanding is None:
                self._expanding = self._model.attention.bind_expanded(*rows)
            return self._expanding
        if self._wide is None:
            self._wide = self._model.attention.bind(*rows, keep_out=True)
        return self._wide

    def _fixed_step(self, shape: Shape, *, brief: bool = False, expands: bool = False) -> FixedStep:
        """What a graph holds; its inputs lie where every step of that shape has them. `brief`: see
        `Decoder.forward`. No graph holds one that `expands`."""
        blank = self._inputs.blank(shape, expands)
        parts = self._upload.place(self._upload.pack(blank.parts))
        bound = self._bound(shape, expands)

        def step() -> torch.Tensor:
            inputs = self._inputs.gather(parts, blank.width, bound, blank.expanded)
            hidden = self._model.forward(
                inputs.tokens, inputs.attention, inputs.sample_tokens, brief=brief
            )
            logits = self._model.logits(hidden)
            tokens = self._sampler.draw(logits, inputs.sample_slots, inputs.sample_positions)
            self._inputs.remember(inputs.sample_slots, tokens)
            if self._landing is not None:
                self._landing.land(tokens)
            return logits

        return step


def _down(logprobs: Logprobs) -> Logprobs:
    return Logprobs(
        to_host(logprobs.chosen), to_host(logprobs.top_values), to_host(logprobs.top_ids)
    )
