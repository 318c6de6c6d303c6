"""From a Step to the tensors of the forward pass.

State that outlives a step stays on the device, by slot: the block tables and the last token
sampled. A step uploads only what changed. `prepare` runs on the loop's thread and reads the
scheduler's views; `change`, `gather` and `remember` run on the stream, in the order of the steps,
so a step may still be running while the next one is prepared.

Steps may be padded, so that many of them share one captured graph or one compiled kernel. Padding
belongs to a slot of its own after all others: its keys and values go to block 0, and its sampled
tokens to that slot.

Axes: R rows, T tokens, S sampled rows, W blocks of the longest row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenspeed_kernels.latent.op import Lengths

from tokenspeed.layers.attention import AttentionInputs, BoundAttention, Expanded
from tokenspeed.plan import ExpansionPlan
from tokenspeed.scheduler import Step
from tokenspeed.worker.picks import TORCH_PICKS, Picks
from tokenspeed.worker.upload import DeviceParts

Ints = np.ndarray  # int32 or int64, one axis


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step is padded to: decode rows, longer rows, tokens of all rows, sampled rows.

    The first `decode` rows have at most one token each.
    """

    decode: int
    extend: int
    tokens: int
    samples: int

    @property
    def decodes_only(self) -> bool:
        """Whether every row is one token that a sampled one follows."""
        return not self.extend and self.decode == self.tokens == self.samples


@dataclass(frozen=True, slots=True)
class HostInputs:
    """One step to be uploaded: named arrays. `width` is W. `expanded`: see `AttentionInputs`."""

    parts: dict[str, np.ndarray]
    shape: Shape
    width: int
    expanded: Expanded | None = None


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """`tokens` int32 [T]; `sample_tokens` int32 [S], the index in T of each token that a
    sampled one follows, None where that is every token; `sample_slots` int64 [S];
    `sample_positions` int64 [S], the positions of the tokens to be sampled."""

    tokens: torch.Tensor
    attention: AttentionInputs
    sample_tokens: torch.Tensor | None
    sample_slots: torch.Tensor
    sample_positions: torch.Tensor


class Inputs:
    """Builds the inputs of each step from the slots' persistent state.

    `sections` are the columns of each cache group in a row of the tables. `fixed_shapes`: kernels
    are compiled for each new shape, so steps are padded to few shapes and tables have all their
    columns. `expansion`: when rows are expanded (MLA), None for never. `picks`: how state is
    gathered on this device.
    """

    def __init__(
        self,
        block_tables: np.ndarray,
        sections: Sequence[int],
        block_size: int,
        device: torch.device,
        fixed_shapes: bool = False,
        expansion: ExpansionPlan | None = None,
        picks: Picks = TORCH_PICKS,
    ) -> None:
        self._picks = picks
        self._host_tables = block_tables
        self._sections = tuple(sections)
        self._begins = tuple(itertools.accumulate((0, *self._sections[:-1])))
        self._columns = max(self._sections)
        self._block_size = block_size
        self._fixed_shapes = fixed_shapes
        self._expansion = expansion
        self._pad_slot, self._width = block_tables.shape
        shape = (self._pad_slot + 1, self._width)
        self._tables = torch.zeros(shape, dtype=torch.int32, device=device)
        self._last_tokens = torch.zeros(shape[0], dtype=torch.int32, device=device)

    def expands(self, step: Step) -> bool:
        """Whether keys and values of the step's longer rows are expanded from latents: if enough
        queries, on average, attend to each of their tokens."""
        rule = self._expansion
        if rule is None or step.num_decode_rows == step.num_rows:
            return False
        new, cached = self._longer_rows(step)
        pairs = int((new * (2 * cached + new + 1)).sum()) // 2
        return pairs > rule.least_reuse * (int(new.sum() + cached.sum()) + rule.launch_tokens)

    def _longer_rows(self, step: Step) -> tuple[Ints, Ints]:
        """New and cached tokens of the rows after those that decode."""
        first = step.num_decode_rows
        lengths = step.query_lens[first:], step.context_lens[first:]
        return lengths[0].astype(np.int64), lengths[1].astype(np.int64)

    def prepare(self, step: Step, shape: Shape | None = None, expands: bool = False) -> HostInputs:
        """Copies what the step needs out of the scheduler's memory. `shape`: that of the captured
        graph that will run it, None for none."""
        contexts, query_lens, slots = step.context_lens, step.query_lens, step.slots
        ends = np.cumsum(query_lens, dtype=np.int32)
        seq_lens = contexts + query_lens
        sampling = step.samples != 0
        if step.num_tokens == step.num_rows:
            positions, token_slots = contexts, slots
        else:
            row_of_token = np.repeat(np.arange(step.num_rows, dtype=np.int32), query_lens)
            places = np.arange(step.num_tokens, dtype=np.int32)
            positions = places + (contexts - ends + query_lens)[row_of_token]
            token_slots = slots[row_of_token]
        columns, offsets = divmod(positions, self._block_size)
        blocks = [
            self._host_tables[token_slots, begin + columns].astype(np.int64)
            for begin in self._begins
        ]
        parts: dict[str, np.ndarray] = {
            "kv_slots": np.stack(blocks) * self._block_size + offsets,
            "sample_slots": slots[sampling].astype(np.int64),
            "sample_positions": seq_lens[sampling].astype(np.int64),
            "tokens": step.tokens,
            "positions": positions,
            "token_slots": token_slots,
        }
        captured, shape = shape is not None, shape or self._shape(step)
        if not shape.decodes_only:
            parts["sample_tokens"] = ends[sampling] - 1
        if not captured and step.tokens.min() >= 0:
            del parts["token_slots"]
        parts = self._padded(parts, shape)
        decode = step.num_rows if shape.decodes_only else step.num_decode_rows
        parts |= self._row_parts(shape, decode, slots, contexts, ends)
        width = self._columns
        if not self._fixed_shapes:
            width = -(-int(seq_lens.max()) // self._block_size)
        parts |= self._changed(step.dirty, self._room(shape) if captured else 0)
        if len(step.copies):
            sources, destinations, _ = step.copies.astype(np.int64).T
            parts |= {
                "copy_sources": np.ascontiguousarray(sources),
                "copy_destinations": np.ascontiguousarray(destinations),
            }
        expanded = None
        if expands:
            new, cached = self._longer_rows(step)
            first_token = step.num_tokens - int(new.sum())
            lengths = Lengths(new.tolist(), cached.tolist())
            expanded = Expanded(shape.decode, first_token, lengths)
        return HostInputs(parts, shape, width, expanded)

    def least(self) -> Shape:
        """The smallest shape of steps without a graph."""
        return Shape(self._pad_slot, self._pad_slot, padded_tokens(1), self._pad_slot)

    def blank(self, shape: Shape, expands: bool = False) -> HostInputs:
        """A step of padding only. Its rows are empty, except in a decode step: there each has one
        token to attend to. One that `expands` launches the same kernels as any other."""
        parts = {
            name: np.empty(0, "<i8" if name in _WIDE else "<i4")
            for name in (*_BY_TOKEN, *_BY_SAMPLE)
            if name != "sample_tokens" or not shape.decodes_only
        }
        parts["kv_slots"] = np.empty((len(self._begins), 0), "<i8")
        parts = self._padded(parts, shape)
        rows = shape.decode if shape.decodes_only else 0
        slots = np.full(rows, self._pad_slot, dtype=np.int32)
        zeros = np.zeros(rows, dtype=np.int32)
        ends = np.arange(1, rows + 1, dtype=np.int32)
        parts |= self._row_parts(shape, rows, slots, zeros, ends)
        parts |= self._within(self._room(shape), slots[:0], slots[:0])
        expanded = Expanded(shape.decode, 0, Lengths([1], [0])) if expands else None
        return HostInputs(parts, shape, self._columns, expanded)

    def _shape(self, step: Step) -> Shape:
        """The shape of a step without a captured graph."""
        decode, extend = step.num_decode_rows, step.num_rows - step.num_decode_rows
        if not self._fixed_shapes:
            return Shape(decode, extend, step.num_tokens, step.num_samples)
        tokens = padded_tokens(step.num_tokens)
        # A slot is one row: attention is bound to all of them, whatever they do.
        return Shape(self._pad_slot, self._pad_slot, tokens, step.num_samples)

    def _padded(self, parts: dict[str, Ints], shape: Shape) -> dict[str, Ints]:
        """Pads slots with the pad slot and everything else with 0; in a fixed order, since equal
        shapes must lie at equal addresses."""
        padded = {}
        for name in (*_BY_TOKEN, *_BY_SAMPLE):
            if name not in parts:
                continue
            part = parts[name]
            length = shape.tokens if name in _BY_TOKEN else shape.samples
            fill = self._pad_slot if name in ("sample_slots", "token_slots") else 0
            missing = (*part.shape[:-1], length - part.shape[-1])
            padded[name] = np.concatenate((part, np.full(missing, fill, part.dtype)), axis=-1)
        return padded

    def _row_parts(
        self, shape: Shape, decode: int, slots: Ints, contexts: Ints, ends: Ints
    ) -> dict[str, Ints]:
        """Padding follows the first `decode` rows, and the other rows; its rows are empty."""
        total = shape.decode + shape.extend
        if total == len(slots):
            cu_query_lens = np.concatenate((_ZERO, ends))
            return {"slots": slots, "contexts": contexts, "cu_query_lens": cu_query_lens}
        places = np.arange(len(slots))
        places[decode:] += shape.decode - decode
        row_slots = np.full(total, self._pad_slot, dtype=np.int32)
        row_slots[places] = slots
        row_contexts = np.zeros(total, dtype=np.int32)
        row_contexts[places] = contexts
        cu_query_lens = np.zeros(total + 1, dtype=np.int32)
        cu_query_lens[places + 1] = ends
        np.maximum.accumulate(cu_query_lens, out=cu_query_lens)
        return {"slots": row_slots, "contexts": row_contexts, "cu_query_lens": cu_query_lens}

    def _room(self, shape: Shape) -> int:
        """How many entries of the block tables a graph of that shape writes: a few per row, and
        those of its tokens. Only requests that enter with a long history need more."""
        rows = shape.decode + shape.extend
        return 2 * rows * len(self._begins) + shape.tokens // self._block_size + 64

    def _changed(self, dirty: np.ndarray, room: int) -> dict[str, np.ndarray]:
        """The entries of the block tables in `dirty` (slot, begin, end): their places in the flat
        tables, and their values. A graph always writes `room` of them, unused ones to the pad
        slot. Where they do not fit, they are written before the graph."""
        places, values = self._entries(dirty)
        fits = len(places) <= room
        parts = self._within(room, *((places, values) if fits else (places[:0], values[:0])))
        if len(places) and not fits:
            parts |= {"changed_places": places, "changed_values": values}
        return parts

    def _within(self, room: int, places: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
        if not room:
            return {}
        padded = np.full(room, self._pad_slot * self._width, dtype=np.int64)
        padded[: len(places)] = places
        zeros = np.zeros(room, dtype=np.int32)
        zeros[: len(values)] = values
        return {"table_places": padded, "table_values": zeros}

    def _entries(self, dirty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        begins = dirty[:, 0].astype(np.int64) * self._width + dirty[:, 1]
        counts = (dirty[:, 2] - dirty[:, 1]).astype(np.int64)
        shifts = begins - (np.cumsum(counts) - counts)
        places = np.arange(counts.sum()) + np.repeat(shifts, counts)
        return places, self._host_tables.reshape(-1)[places]

    def change(self, parts: DeviceParts) -> None:
        """Writes the changed entries of the block tables that no graph writes."""
        if "changed_places" in parts:
            flat = self._tables.view(-1)
            self._picks.write(flat, parts["changed_places"], parts["changed_values"])

    def gather(
        self,
        parts: DeviceParts,
        width: int,
        bound: BoundAttention | None,
        expanded: Expanded | None = None,
    ) -> DeviceInputs:
        """The tensors that the forward pass takes. `bound` is attention for steps of this shape,
        where the kernel is bound to one; it is scheduled here."""
        if "table_places" in parts:
            flat = self._tables.view(-1)
            self._picks.write(flat, parts["table_places"], parts["table_values"])
        tokens = parts["tokens"]
        if "token_slots" in parts:
            tokens = self._picks.tokens(tokens, parts["token_slots"], self._last_tokens)
        tables = self._picks.tables(self._tables, self._begins, width, parts["slots"])
        if bound is not None:
            bound.schedule(parts["cu_query_lens"], parts["contexts"], expanded)
        return DeviceInputs(
            tokens=tokens,
            attention=AttentionInputs(
                positions=parts["positions"],
                slots=tuple(parts["kv_slots"].view(len(tables), -1)),
                block_tables=tables,
                cu_query_lens=parts["cu_query_lens"],
                context_lens=parts["contexts"],
                bound=bound,
                expanded=expanded,
            ),
            sample_tokens=parts.get("sample_tokens"),
            sample_slots=parts["sample_slots"],
            sample_positions=parts["sample_positions"],
        )

    def remember(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Keeps the sampled `tokens` int32 [S] for steps that are scheduled before they are
        known on the host."""
        self._picks.write(self._last_tokens, slots, tokens)


_ZERO = np.zeros(1, dtype=np.int32)
_BY_TOKEN = ("kv_slots", "tokens", "positions", "token_slots")
_BY_SAMPLE = ("sample_slots", "sample_positions", "sample_tokens")
_WIDE = ("kv_slots", "sample_slots", "sample_positions")
_TOKENS_AT_ONCE = 64


def padded_tokens(count: int) -> int:
    """Tokens of a step of `count` without a graph: kernels are compiled for multiples of 16, and
    products compute whole tiles of 64 rows or more."""
    return -(-count // _TOKENS_AT_ONCE) * _TOKENS_AT_ONCE
