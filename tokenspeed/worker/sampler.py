"""From logits to tokens, with the parameters of each slot.

Parameters live on the device by slot and are set when a request enters the slot; a step gathers
them. One more slot is for padding. What the host needs to decide the work of a step (which
requests have penalties or want log-probabilities) is kept on the host as well. As in `inputs`,
`prepare` runs on the loop's thread, `sample` on the stream.

Axes: B sampled rows, S slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tokenspeed_kernels.sampling.op import Drawn, Edits, Logprobs

from tokenspeed.layers.kernels import Kernels
from tokenspeed.request import SamplingParams
from tokenspeed.worker.picks import TORCH_PICKS, Drawing, Picks
from tokenspeed.worker.upload import DeviceParts, to_device

# Rows of the float parameters.
_TEMPERATURE, _TOP_P, _MIN_P, _REPETITION, _PRESENCE, _FREQUENCY, _BIASED = range(7)
# The largest count of a token in the output, in an int16 whose sign bit says whether the prompt
# has the token.
_MOST_COUNTED = 0x7FFF


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that enters a slot: its parameters, its prompt, and its output so far (not empty
    after a preemption). int32 token ids."""

    slot: int
    params: SamplingParams
    prompt: np.ndarray
    output: np.ndarray


@dataclass(frozen=True, slots=True)
class SamplingWork:
    """What one step asks of the sampler; indexes are rows of the step's logits. `parts` are
    uploaded for it, `entries` and `recounts` are requests whose slots change before it.

    `num_logprobs` is the most alternatives that any of the rows with log-probabilities wants.
    """

    parts: dict[str, np.ndarray]
    entries: tuple[Entry, ...]
    recounts: tuple[Entry, ...]
    edits: bool  # some rows have penalties, biases or a bitmask
    masked: bool  # some rows have a bitmask
    penalised: bool  # some rows' tokens must be counted for penalties
    logprob_rows: np.ndarray | None
    num_logprobs: int

    @property
    def only_draws(self) -> bool:
        """Whether nothing but tokens is asked for, and these depend on logits and the slots'
        parameters alone."""
        return not self.edits and self.logprob_rows is None


class Sampler:
    """Samples the tokens of every step."""

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
        self._log_softmax_topk = kernels.log_softmax_topk()
        self._vocab_size = vocab_size
        self._device = device
        # On the device, by slot; the last one is padding's.
        slots = max_running + 1
        self._floats = torch.zeros(_BIASED + 1, slots, device=device)
        self._top_k = torch.zeros(slots, dtype=torch.int32, device=device)
        self._seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        # See `Edits`; padding's logits are not changed.
        shape = (max_running, vocab_size)
        self._counts = torch.zeros(shape, dtype=torch.int16, device=device)
        self._bias = torch.zeros(shape, device=device)
        self._no_masks = torch.zeros(1, -(-vocab_size // 32), dtype=torch.int32, device=device)
        # On the host, by slot.
        self._penalised = np.zeros(max_running, dtype=bool)
        self._biased = np.zeros(max_running, dtype=bool)
        self._num_logprobs = np.full(max_running, -1, dtype=np.int32)
        self._entries: list[Entry] = []
        self._recounts: list[Entry] = []

    def admit(self, entry: Entry) -> None:
        """A request enters a slot with the step that is prepared next."""
        params, slot = entry.params, entry.slot
        self._penalised[slot] = is_penalised(params)
        self._biased[slot] = bool(params.logit_bias)
        self._num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self._entries.append(entry)

    def recount(self, entry: Entry) -> None:
        """A request in its slot has more output than was sampled (forced tokens); its `output`
        counts from the step that is prepared next."""
        self._recounts.append(entry)

    def prepare(self, slots: np.ndarray, masked_rows: np.ndarray) -> SamplingWork:
        """`slots` int32 [B] of the rows that sample, in the order of their logits; int64
        `masked_rows` are indexes of those that `sample` will be given masks for."""
        entries, self._entries = tuple(self._entries), []
        recounts, self._recounts = tuple(self._recounts), []
        parts = self._entry_parts(entries)
        masked = len(masked_rows) > 0
        penalised = np.flatnonzero(self._penalised[slots])
        wanted = self._num_logprobs[slots]
        logprob_rows = np.flatnonzero(wanted >= 0)
        edits = masked or len(penalised) > 0 or bool(self._biased[slots].any())
        if edits:
            mask_of = np.full(len(slots), -1, dtype=np.int32)
            mask_of[masked_rows] = np.arange(len(masked_rows))
            parts["mask_of"] = mask_of
        if len(penalised):
            parts["penalised_rows"] = penalised
        if len(logprob_rows):
            parts["logprob_rows"] = logprob_rows
        return SamplingWork(
            parts,
            entries,
            recounts,
            edits=edits,
            masked=masked,
            penalised=len(penalised) > 0,
            logprob_rows=logprob_rows if len(logprob_rows) else None,
            num_logprobs=min(max(0, int(wanted.max(initial=0))), self._vocab_size),
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
                bool(params.logit_bias),
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
                self._counts[entry.slot].zero_().index_fill_(0, prompt, ~_MOST_COUNTED)
                self._count_output(entry)
            if entry.params.logit_bias:
                ids, values = zip(*entry.params.logit_bias, strict=True)
                self._bias[entry.slot].zero_().index_add_(
                    0,
                    to_device(np.array(ids, dtype=np.int64), self._device),
                    to_device(np.array(values, dtype=np.float32), self._device),
                )

    def _count_output(self, entry: Entry) -> None:
        output = to_device(entry.output.astype(np.int64), self._device)
        kept = self._counts[entry.slot]
        counts = torch.zeros_like(kept, dtype=torch.int32)
        counts.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))
        counts.clamp_(max=_MOST_COUNTED)
        kept.bitwise_and_(~_MOST_COUNTED).bitwise_or_(counts.to(kept.dtype))

    def draw(
        self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Tokens int32 [B] by the parameters of int64 `slots` [B] alone, from `logits` float32
        [B, V], which stay as they are; int64 `positions` [B] are those of the tokens."""
        picked = self._picked(slots, _MIN_P + 1)
        return self._sample(logits, *_parameters(picked), positions).tokens

    def sample(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        parts: DeviceParts,
        work: SamplingWork,
        masks: np.ndarray | None,
    ) -> Drawn:
        """As `draw`, with all that `work` asks for. `masks` int32 [masked rows, ceil(V / 32)], see
        `Edits`; log-probabilities are of the model's own distribution, before any of them."""
        picked = self._picked(slots, len(self._floats))
        edits = None
        if work.edits:
            floats = picked.floats
            edits = Edits(
                slots=slots,
                counts=self._counts,
                repetition=floats[_REPETITION],
                presence=floats[_PRESENCE],
                frequency=floats[_FREQUENCY],
                biased=floats[_BIASED],
                bias=self._bias,
                mask_of=parts["mask_of"],
                masks=self._no_masks if masks is None else to_device(masks, self._device),
            )
        scored, k = parts.get("logprob_rows"), work.num_logprobs
        drawn = self._sample(logits, *_parameters(picked), positions, edits, scored, k)
        if work.penalised:
            self._count(drawn.tokens, slots, parts["penalised_rows"])
        return drawn

    def _picked(self, slots: torch.Tensor, count: int) -> Drawing:
        kept = Drawing(self._floats, self._top_k, self._seeds)
        return self._picks.drawing(kept, count, slots)

    def logprobs(self, logits: torch.Tensor, chosen: torch.Tensor, k: int) -> Logprobs:
        """Of the `chosen` tokens int32 [N] and the k likeliest ones, from logits [N, V]."""
        return self._log_softmax_topk(logits, chosen, min(k, self._vocab_size))

    def _count(self, tokens: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        flat = slots.index_select(0, rows) * self._vocab_size + tokens.index_select(0, rows)
        counts = self._counts.view(-1)
        before = counts.index_select(0, flat)
        counts.index_copy_(0, flat, before + (before & _MOST_COUNTED != _MOST_COUNTED))


def _parameters(
    picked: Drawing,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `Sample` takes them."""
    floats = picked.floats
    return floats[_TEMPERATURE], picked.top_k, floats[_TOP_P], floats[_MIN_P], picked.seeds


def is_penalised(params: SamplingParams) -> bool:
    """Whether the logits depend on which tokens came before."""
    neutral = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return neutral != (1.0, 0.0, 0.0)


def _signed(seed: int) -> int:
    """The low 64 bits of the seed as a signed integer, which is what tensors hold."""
    low = seed & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
