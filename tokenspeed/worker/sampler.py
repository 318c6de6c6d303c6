"""From logits to tokens, with the parameters of each slot.

Parameters live on the device by slot and are set when a request enters the slot; a step gathers
them. One slot more belongs to padding. What the host must know to choose the work (does anybody
draw, is anybody penalised) is kept beside them on the host. As in `inputs`, `prepare` runs on the
loop's thread, `sample` on the stream.

Axes: B sampled rows, S slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tokenspeed.layers.kernels import Kernels
from tokenspeed.request import SamplingParams
from tokenspeed.worker.picks import TORCH_PICKS, Drawing, Picks
from tokenspeed.worker.upload import DeviceParts, to_device

# Rows of the float parameters.
_TEMPERATURE, _TOP_P, _MIN_P, _REPETITION, _PRESENCE, _FREQUENCY = range(6)


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that enters a slot: its parameters, its prompt, and what it has said already
    (not empty after a preemption). int32 token ids."""

    slot: int
    params: SamplingParams
    prompt: np.ndarray
    output: np.ndarray


@dataclass(frozen=True, slots=True)
class SamplingWork:
    """What one step asks of the sampler; indexes are rows of the step's logits. `parts` are what
    goes up for it, `entries` and `recounts` are requests whose slots change before it.

    `num_logprobs` is the most alternatives that any of the rows with log-probabilities wants.
    """

    parts: dict[str, np.ndarray]
    entries: tuple[Entry, ...]
    recounts: tuple[Entry, ...] = ()
    draws: bool = False
    penalises: bool = False
    biased: tuple[tuple[int, int], ...] = ()  # (row, slot)
    logprob_rows: np.ndarray | None = None
    num_logprobs: int = 0
    masked: bool = False  # some rows, `masked_rows` of `parts`, are drawn under a bitmask

    @property
    def only_draws(self) -> bool:
        """Whether the tokens depend on the logits and the slots' own parameters alone, and nothing
        but the tokens is asked for."""
        return not (self.penalises or self.biased or self.masked or self.logprob_rows is not None)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """`chosen` float32 [N], `top_values` float32 [N, k], `top_ids` int32 [N, k]."""

    chosen: torch.Tensor
    top_values: torch.Tensor
    top_ids: torch.Tensor


class Sampler:
    """Draws the tokens of every step."""

    def __init__(
        self,
        kernels: Kernels,
        vocab_size: int,
        max_running: int,
        device: torch.device,
        picks: Picks = TORCH_PICKS,
    ) -> None:
        self._picks = picks
        self._sample = kernels.sample()
        self._apply_penalties = kernels.apply_penalties()
        self._apply_bitmask = kernels.apply_bitmask()
        self._log_softmax_topk = kernels.log_softmax_topk()
        self._vocab_size = vocab_size
        self._device = device
        # On the device, by slot; the last one is padding's.
        slots = max_running + 1
        self._floats = torch.zeros(6, slots, device=device)
        self._top_k = torch.zeros(slots, dtype=torch.int32, device=device)
        self._seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        shape = (max_running, vocab_size)
        self._prompt_seen = torch.zeros(shape, dtype=torch.bool, device=device)
        self._output_counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._bias: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # On the host, by slot. `plain` rows take the largest logit and nothing else.
        self._plain = np.ones(max_running, dtype=bool)
        self._draws = np.zeros(max_running, dtype=bool)
        self._penalised = np.zeros(max_running, dtype=bool)
        self._biased = np.zeros(max_running, dtype=bool)
        self._num_logprobs = np.full(max_running, -1, dtype=np.int32)
        self._entries: list[Entry] = []
        self._recounts: list[Entry] = []

    def admit(self, entry: Entry) -> None:
        """A request enters a slot with the step that is prepared next."""
        params, slot = entry.params, entry.slot
        self._draws[slot] = params.temperature > 0
        self._penalised[slot] = is_penalised(params)
        self._biased[slot] = bool(params.logit_bias)
        self._num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self._plain[slot] = not (
            self._draws[slot]
            or self._penalised[slot]
            or self._biased[slot]
            or params.logprobs is not None
        )
        self._entries.append(entry)

    def recount(self, entry: Entry) -> None:
        """A request in its slot has said more than was drawn; from the step on that is prepared
        next its `output` counts."""
        self._recounts.append(entry)

    def prepare(self, slots: np.ndarray, masked_rows: np.ndarray) -> SamplingWork:
        """`slots` int32 [B] of the rows that sample, in the order of their logits; int64
        `masked_rows` are indexes of those that `sample` will be given masks for."""
        entries, self._entries = tuple(self._entries), []
        recounts, self._recounts = tuple(self._recounts), []
        parts = self._entry_parts(entries)
        masked = len(masked_rows) > 0
        if masked:
            parts["masked_rows"] = masked_rows
        if self._plain[slots].all():
            return SamplingWork(parts, entries, recounts, masked=masked)
        penalised = np.flatnonzero(self._penalised[slots])
        biased = np.flatnonzero(self._biased[slots])
        wanted = self._num_logprobs[slots]
        logprob_rows = np.flatnonzero(wanted >= 0)
        if len(penalised):
            parts["penalised_rows"] = penalised
        if len(logprob_rows):
            parts["logprob_rows"] = logprob_rows
        return SamplingWork(
            parts,
            entries,
            recounts,
            draws=bool(self._draws[slots].any()),
            penalises=bool(len(penalised)),
            biased=tuple((int(row), int(slots[row])) for row in biased),
            logprob_rows=logprob_rows if len(logprob_rows) else None,
            num_logprobs=max(0, int(wanted.max(initial=0))),
            masked=masked,
        )

    def _entry_parts(self, entries: tuple[Entry, ...]) -> dict[str, np.ndarray]:
        if not entries:
            return {}
        every = [entry.params for entry in entries]
        floats = [
            (
                params.temperature,
                params.top_p,
                params.min_p,
                params.repetition_penalty,
                params.presence_penalty,
                params.frequency_penalty,
            )
            for params in every
        ]
        top_k = [min(params.top_k, self._vocab_size) for params in every]
        return {
            "entry_slots": np.array([entry.slot for entry in entries], dtype=np.int64),
            "entry_seeds": np.array([_signed(params.seed) for params in every], dtype=np.int64),
            "entry_floats": np.array(floats, dtype=np.float32).T,
            "entry_top_k": np.array(top_k, dtype=np.int32),
        }

    def enter(self, parts: DeviceParts, work: SamplingWork) -> None:
        """Sets the slots' state on the device."""
        if work.entries:
            self._set(parts, work.entries)
        for entry in work.recounts:
            self._count_output(entry)

    def _set(self, parts: DeviceParts, entries: tuple[Entry, ...]) -> None:
        slots = parts["entry_slots"]
        self._floats.index_copy_(1, slots, parts["entry_floats"])
        self._top_k.index_copy_(0, slots, parts["entry_top_k"])
        self._seeds.index_copy_(0, slots, parts["entry_seeds"])
        for entry in entries:
            if is_penalised(entry.params):
                prompt = to_device(entry.prompt.astype(np.int64), self._device)
                self._prompt_seen[entry.slot].zero_().index_fill_(0, prompt, True)
                self._count_output(entry)
            if entry.params.logit_bias:
                ids, values = zip(*entry.params.logit_bias, strict=True)
                self._bias[entry.slot] = (
                    to_device(np.array(ids, dtype=np.int64), self._device),
                    to_device(np.array(values, dtype=np.float32), self._device),
                )

    def _count_output(self, entry: Entry) -> None:
        output = to_device(entry.output.astype(np.int64), self._device)
        counts = self._output_counts[entry.slot].zero_()
        counts.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))

    def draw(
        self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Tokens int32 [B] by the parameters of int64 `slots` [B] alone, from `logits` float32
        [B, V], which stay as they are; int64 `positions` [B] are those of the tokens."""
        kept = Drawing(self._floats, self._top_k, self._seeds)
        picked = self._picks.drawing(kept, _MIN_P + 1, slots)
        return self._sample(
            logits,
            picked.floats[_TEMPERATURE],
            picked.top_k,
            picked.floats[_TOP_P],
            picked.floats[_MIN_P],
            picked.seeds,
            positions,
        )

    def sample(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        parts: DeviceParts,
        work: SamplingWork,
        masks: np.ndarray | None,
    ) -> tuple[torch.Tensor, Logprobs | None]:
        """As `draw`, with all that `work` asks for; changes `logits` in place. `masks` int32
        [masked rows, ceil(V / 32)], see `ApplyBitmask`."""
        raw = None
        if work.logprob_rows is not None:
            # The model's own distribution, before anything below.
            raw = logits.index_select(0, parts["logprob_rows"])
        if work.penalises:
            self._penalise(logits, slots, parts["penalised_rows"])
        for row, slot in work.biased:
            ids, values = self._bias[slot]
            logits[row].index_add_(0, ids, values)
        if masks is not None:
            on_device = to_device(masks, self._device)
            self._apply_bitmask(logits, on_device, parts["masked_rows"])
        if work.draws:
            tokens = self.draw(logits, slots, positions)
        else:
            tokens = logits.argmax(-1).to(torch.int32)
        if work.penalises:
            self._count(tokens, slots, parts["penalised_rows"])
        if raw is None:
            return tokens, None
        chosen = tokens.index_select(0, parts["logprob_rows"])
        return tokens, self.logprobs(raw, chosen, work.num_logprobs)

    def logprobs(self, logits: torch.Tensor, chosen: torch.Tensor, k: int) -> Logprobs:
        """Of the `chosen` tokens int32 [N] and the k likeliest ones, from logits [N, V]."""
        return Logprobs(*self._log_softmax_topk(logits, chosen, min(k, self._vocab_size)))

    def _penalise(self, logits: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        places = slots.index_select(0, rows)
        floats = self._floats.index_select(1, places)
        part = logits.index_select(0, rows)
        self._apply_penalties(
            part,
            self._prompt_seen,
            self._output_counts,
            places,
            floats[_REPETITION],
            floats[_PRESENCE],
            floats[_FREQUENCY],
        )
        logits.index_copy_(0, rows, part)

    def _count(self, tokens: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        flat = slots.index_select(0, rows) * self._vocab_size
        flat += tokens.index_select(0, rows)
        self._output_counts.view(-1).index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))


def is_penalised(params: SamplingParams) -> bool:
    """Whether the logits depend on which tokens came before."""
    neutral = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return neutral != (1.0, 0.0, 0.0)


def _signed(seed: int) -> int:
    """The low 64 bits of the seed as a signed integer, which is what tensors hold."""
    low = seed & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
