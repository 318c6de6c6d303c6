"""A device for tests: it keeps, per cache slot, which token of which history was written there.

Every row of a step writes its query tokens where the block tables say, then every row reads its
whole context back and must find exactly its own history. Aliased, early reused, wrongly shared
or never written blocks all show as a wrong read. The next token is a pure function of what was
read, so scheduling cannot influence it, unless it is wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenspeed.scheduler import SchedulerConfig, Step

VOCAB = 61
Ints = NDArray[np.int32]


def next_token(history: Ints) -> int:
    """The "model": the token that follows a history."""
    return zlib.crc32(history.astype("<i4").tobytes()) % VOCAB


def guess(history: list[int]) -> int:
    """A draft: right in two cases of three."""
    right = next_token(np.array(history, np.int32))
    return right if zlib.crc32(bytes(history)) % 3 else (right + 1) % VOCAB


def expected_output(
    prompt: Ints, max_tokens: int, min_tokens: int, stops: frozenset[int]
) -> tuple[list[int], int]:
    """What a request must generate, and how it ends (1 stop, 2 length), whatever happens to it."""
    history = list(prompt)
    for count in range(1, max_tokens + 1):
        history.append(next_token(np.array(history, np.int32)))
        if count >= min_tokens and history[-1] in stops:
            return history[len(prompt) :], 1
    return history[len(prompt) :], 2


@dataclass
class Row:
    """One row of a step, as the device gets it: block ids are copied, tokens may be -1.

    `known` are the tokens of the request when the step was made; `salt` starts its chain. `unsure`
    of the `context_len` tokens are drafts in flight when the step is made.
    """

    request_id: int
    known: list[int]
    salt: int
    slot: int
    context_len: int
    tokens: Ints
    blocks: Ints
    samples: bool
    admitted: bool
    unsure: int = 0

    def written(self, block_size: int) -> set[int]:
        """Blocks that the row may write."""
        first = (self.context_len - self.unsure) // block_size
        last = (self.context_len + len(self.tokens) - 1) // block_size
        return set(self.blocks[first : last + 1].tolist())

    def touched(self, block_size: int) -> set[int]:
        """Blocks that the row reads or writes."""
        last = (self.context_len + len(self.tokens) - 1) // block_size
        return set(self.blocks[: last + 1].tolist())


class Device:
    """Runs steps on a shadow of the KV cache. Feed `receive` in step order, then `run`."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.block_size = config.block_size
        size = config.num_blocks * config.block_size
        self.tokens = np.full(size, -1, np.int32)
        self.chains = np.zeros(size, np.uint32)
        self.memories: list[NDArray[np.generic]] = [self.tokens, self.chains]  # what copies move
        self.tables = np.zeros((config.max_running, config.max_blocks_per_request), np.int32)
        self.histories: dict[int, list[int]] = {}  # per slot
        self.counts = np.zeros(0, np.int32)  # of the last run: tokens per row that sampled

    def receive(
        self, step: Step, block_tables: Ints, describe: Callable[[int], tuple[list[int], int]]
    ) -> list[Row]:
        """Copies the dirty ranges, as a worker would, and cuts the step into rows.

        `describe(request_id)` gives the known tokens and the salt of a request.
        """
        for slot, begin, end in step.dirty.tolist():
            self.tables[slot, begin:end] = block_tables[slot, begin:end]
        assert np.array_equal(self.tables, block_tables), "a change of the tables was not listed"
        rows = []
        at = 0
        for i in range(step.num_rows):
            slot, query_len = int(step.slots[i]), int(step.query_lens[i])
            request_id = int(step.request_ids[i])
            known, salt = describe(request_id)
            rows.append(
                Row(
                    request_id=request_id,
                    known=known,
                    salt=salt,
                    slot=slot,
                    context_len=int(step.context_lens[i]),
                    tokens=step.tokens[at : at + query_len].copy(),
                    blocks=self.tables[slot].copy(),
                    samples=bool(step.samples[i]),
                    admitted=bool(step.admitted[i]),
                    unsure=int(step.unsure_lens[i]),
                )
            )
            at += query_len
        assert at == step.num_tokens
        return rows

    def copy(self, copies: Ints) -> None:
        """What a step copies before its rows run; the rest of a destination is lost."""
        for source, destination, count in copies.tolist():
            begin, end = source * self.block_size, destination * self.block_size
            for cells in self.memories:
                kept = cells[begin : begin + count].copy()
                cells[end : end + self.block_size] = 0
                cells[end : end + count] = kept

    def run(self, rows: list[Row]) -> Ints:
        """All rows write, then all rows read. Returns the sampled tokens in row order; `counts`
        then says how many of them are whose."""
        texts = [self._text(row) for row in rows]
        chains = [self._chain(text, row.salt) for text, row in zip(texts, rows, strict=True)]
        for row, text, chain in zip(rows, texts, chains, strict=True):
            where = self._places(row, len(text))
            begin = len(text) - len(row.tokens)
            self.tokens[where[begin:]] = text[begin:]
            self.chains[where[begin:]] = chain[begin:]
        for row, text, chain in zip(rows, texts, chains, strict=True):
            where = self._places(row, len(text))
            assert self.tokens[where].tolist() == text, f"request {row.request_id}: foreign tokens"
            assert np.array_equal(self.chains[where], chain), f"request {row.request_id}: chain"
        return self._sample(rows, texts)

    def _text(self, row: Row) -> list[int]:
        """All tokens up to the end of the row: its history, and the drafts that the row carries."""
        if row.admitted:
            self.histories[row.slot] = row.known[: row.context_len]
        history = self.histories[row.slot]
        known = row.tokens[row.tokens >= 0].tolist()
        if known:
            assert row.unsure == 0
            del history[row.context_len :]
            history.extend(known)
        context = len(history) - max(1, len(known))
        assert row.context_len - row.unsure <= context <= row.context_len, "the wrong place"
        text = list(history)
        for _ in range(len(row.tokens) - max(1, len(known))):
            text.append(guess(text))
        return text

    def _sample(self, rows: list[Row], texts: list[list[int]]) -> Ints:
        """The drafts that stand and one token more, per row that samples."""
        sampled: list[int] = []
        counts: list[int] = []
        for row, text in zip(rows, texts, strict=True):
            history = self.histories[row.slot]
            if not row.samples:
                continue
            begin = len(history)
            history.append(next_token(np.array(history, np.int32)))
            for draft in text[begin:]:
                if history[-1] != draft:
                    break
                history.append(next_token(np.array(history, np.int32)))
            sampled += history[begin:]
            counts.append(len(history) - begin)
        self.counts = np.array(counts, np.int32)
        return np.array(sampled, np.int32)

    def foresee(self, rows: list[Row], sampled: Ints, forced: list[int]) -> Ints:
        """`sampled` of the last run, with so many tokens more behind those of each row."""
        parts = []
        ends = np.cumsum(self.counts)
        slots = [row.slot for row in rows if row.samples]
        for slot, own, more in zip(slots, np.split(sampled, ends[:-1]), forced, strict=True):
            text = list(self.histories[slot])
            for _ in range(more):
                text.append(next_token(np.array(text, np.int32)))
            parts += [own, np.array(text[len(text) - more :], np.int32)]
        return np.concatenate(parts)

    def _places(self, row: Row, count: int) -> NDArray[np.int64]:
        positions = np.arange(count)
        blocks = row.blocks[positions // self.block_size].astype(np.int64)
        assert (blocks > 0).all(), "a row uses the null block"
        places: NDArray[np.int64] = blocks * self.block_size + positions % self.block_size
        return places

    @staticmethod
    def _chain(history: list[int], salt: int) -> NDArray[np.uint32]:
        chain = np.zeros(len(history), np.uint32)
        state = salt
        for i, token in enumerate(history):
            state = zlib.crc32(int(token).to_bytes(4, "little"), state)
            chain[i] = state
        return chain
