"""From a Step to the tensors of the forward pass.

What lasts longer than a step lives on the device, by slot: the block tables and the last token
sampled. A step brings only what changed; everything it brings goes up in one copy. `prepare` runs
on the loop's thread and reads the scheduler's views; `place` and `remember` run on the stream, in
the order of the steps, so a step may still be running while the next one is prepared.

Axes: R rows, T tokens, S sampled rows, W blocks of the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tokenspeed.layers.attention import AttentionInputs
from tokenspeed.scheduler import Step

Ints = np.ndarray  # int32, one axis


@dataclass(frozen=True, slots=True)
class HostInputs:
    """One step as it goes up. `packed` holds the named ranges of `bounds` one after the other.

    `patch` is (places in the flat block tables, their new values), None when nothing changed.
    """

    packed: Ints
    bounds: dict[str, tuple[int, int]]
    patch: tuple[np.ndarray, Ints] | None
    width: int


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """`tokens` int32 [T]; `sample_tokens` int32 [S], the place in T of each token that is
    followed by a sampled one, None where that is every token; `sample_slots` int32 [S];
    `sample_positions` int32 [S], the positions of the tokens to be drawn."""

    tokens: torch.Tensor
    attention: AttentionInputs
    sample_tokens: torch.Tensor | None
    sample_slots: torch.Tensor
    sample_positions: torch.Tensor


class Inputs:
    """Builds the inputs of each step from the slots' persistent state."""

    def __init__(self, block_tables: np.ndarray, block_size: int, device: torch.device) -> None:
        self._host_tables = block_tables
        self._block_size = block_size
        self._device = device
        self._tables = torch.zeros(block_tables.shape, dtype=torch.int32, device=device)
        self._last_tokens = torch.zeros(block_tables.shape[0], dtype=torch.int32, device=device)

    def prepare(self, step: Step) -> HostInputs:
        """Copies what the step needs out of the scheduler's memory."""
        contexts, query_lens, slots = step.context_lens, step.query_lens, step.slots
        ends = np.cumsum(query_lens, dtype=np.int32)
        seq_lens = contexts + query_lens
        width = -(-int(seq_lens.max()) // self._block_size)
        sampling = step.samples != 0
        rows = np.arange(step.num_rows, dtype=np.int32)
        if step.num_tokens == step.num_rows:
            positions = contexts
            row_of_token = rows
        else:
            row_of_token = np.repeat(rows, query_lens)
            places = np.arange(step.num_tokens, dtype=np.int32)
            positions = places + (contexts - ends + query_lens)[row_of_token]
        parts: dict[str, Ints] = {
            "tokens": step.tokens,
            "positions": positions,
            # The place of each token's block in the gathered tables [R, W], flattened.
            "block_places": row_of_token * width + positions // self._block_size,
            "offsets": positions % self._block_size,
            "slots": slots,
            "contexts": contexts,
            "cu_query_lens": np.concatenate((_ZERO, ends)),
            "sample_slots": slots[sampling],
            "sample_positions": seq_lens[sampling],
        }
        if step.num_samples != step.num_tokens:
            parts["sample_tokens"] = ends[sampling] - 1
        if step.tokens.min() < 0:
            parts["token_slots"] = slots[row_of_token]
        bounds, begin = {}, 0
        for name, part in parts.items():
            bounds[name] = (begin, begin + len(part))
            begin += len(part)
        packed = np.concatenate(list(parts.values()), dtype=np.int32)
        return HostInputs(packed, bounds, self._changed(step.dirty), width)

    def _changed(self, dirty: np.ndarray) -> tuple[np.ndarray, Ints] | None:
        """The entries of the block tables in `dirty` (slot, begin, end), flattened."""
        if not len(dirty):
            return None
        begins = dirty[:, 0].astype(np.int64) * self._host_tables.shape[1] + dirty[:, 1]
        counts = (dirty[:, 2] - dirty[:, 1]).astype(np.int64)
        shifts = begins - (np.cumsum(counts) - counts)
        places = np.arange(counts.sum()) + np.repeat(shifts, counts)
        return places, self._host_tables.reshape(-1)[places]

    def place(self, host: HostInputs) -> DeviceInputs:
        """The step's tensors on the device; changed block table entries are written first."""
        if host.patch is not None:
            places, values = (torch.from_numpy(part).to(self._device) for part in host.patch)
            self._tables.view(-1).index_copy_(0, places, values)
        packed = torch.from_numpy(host.packed).to(self._device)
        part = {name: packed[begin:end] for name, (begin, end) in host.bounds.items()}
        tokens = part["tokens"]
        if "token_slots" in part:
            known = self._last_tokens.index_select(0, part["token_slots"])
            tokens = torch.where(tokens < 0, known, tokens)
        tables = self._tables.narrow(1, 0, host.width).index_select(0, part["slots"])
        blocks = tables.view(-1).index_select(0, part["block_places"])
        return DeviceInputs(
            tokens=tokens,
            attention=AttentionInputs(
                positions=part["positions"],
                slots=blocks.long().mul_(self._block_size).add_(part["offsets"]),
                block_tables=tables,
                cu_query_lens=part["cu_query_lens"],
                context_lens=part["contexts"],
            ),
            sample_tokens=part.get("sample_tokens"),
            sample_slots=part["sample_slots"],
            sample_positions=part["sample_positions"],
        )

    def remember(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Keeps the sampled `tokens` int32 [S] for steps that are scheduled before they are
        known on the host."""
        self._last_tokens.index_copy_(0, slots.long(), tokens)


_ZERO = np.zeros(1, dtype=np.int32)
