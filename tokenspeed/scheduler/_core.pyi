"""Typed face of the C++ core. `step`, `commit`, `submit` and the rest run without the GIL and
one at a time, so threads may share a Scheduler.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

class SchedulerConfig:
    """What the scheduler needs to know of the deployment. Counts are of blocks or tokens.

    `num_blocks` includes block 0, the null block, which is never handed out. `max_step_tokens`
    is at least `max_running * (1 + max_draft_tokens)`. `ageing_s`: seconds of waiting that outweigh
    one priority class.
    `groups`: cache groups as (kind, window): ("full", 0), ("window", tokens) or ("state", 0).
    `max_mixed_tokens` bounds the prompt tokens of a step that also decodes. A prompt that must not
    be cut and finds no room beside decodes for `patience_steps` steps gets one without them.
    `cache_lead_s`: seconds that a wholly cached prompt goes before others of its class.
    `max_waiting`: live requests beyond `max_running`; more are refused. `max_draft_tokens`:
    guesses of the device that a decode row carries at most, to be verified by the step.
    Raises ValueError naming the field that is off.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_running: int,
        max_step_tokens: int,
        max_model_len: int,
        prefix_cache: bool,
        chunked_prefill: bool,
        in_flight_depth: int,
        digest_key: tuple[int, int],
        ageing_s: float = 30.0,
        groups: Sequence[tuple[str, int]] = (("full", 0),),
        prefix_events: bool = False,
        max_mixed_tokens: int = 2**31 - 1,
        patience_steps: int = 32,
        cache_lead_s: float = 0.0,
        max_waiting: int = 2**31 - 1,
        max_draft_tokens: int = 0,
    ) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def max_running(self) -> int: ...
    @property
    def max_step_tokens(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def prefix_cache(self) -> bool: ...
    @property
    def chunked_prefill(self) -> bool: ...
    @property
    def in_flight_depth(self) -> int: ...
    @property
    def ageing_s(self) -> float: ...
    @property
    def max_mixed_tokens(self) -> int: ...
    @property
    def patience_steps(self) -> int: ...
    @property
    def cache_lead_s(self) -> float: ...
    @property
    def max_waiting(self) -> int: ...
    @property
    def max_draft_tokens(self) -> int: ...
    def blocks_of(self, tokens: int) -> int:
        """The most blocks that a request with this many computed tokens ever holds."""
    @property
    def max_request_tokens(self) -> int:
        """Every request of at most this many tokens, prompt and output together, can be accepted:
        what the pool and `max_model_len` allow.
        """
    @property
    def row_lengths(self) -> list[int]:
        """Columns of each cache group in a row of `Scheduler.block_tables`, group after group.

        A state group has two: the block that the next step reads (0: an empty state; or the one
        it writes) and the block that it writes.
        """
    @property
    def max_blocks_per_request(self) -> int:
        """Columns of a group that keeps tokens."""

class SubmitResult(Enum):
    """ACCEPTED, or why not: DUPLICATE (the id is live), EMPTY (no prompt token), TOO_LONG
    (prompt + max_tokens > max_model_len), NEVER_FITS (more blocks than the pool has),
    EXCEEDS_STEP (chunked prefill is off and the prompt is longer than max_step_tokens),
    QUEUE_FULL (max_running + max_waiting requests are live).
    """

    ACCEPTED = 0
    DUPLICATE = 1
    EMPTY = 2
    TOO_LONG = 3
    NEVER_FITS = 4
    EXCEEDS_STEP = 5
    QUEUE_FULL = 6

class Judgement:
    """What `submit` would say, and why: the request needs `needed` of what there is `limit` of.

    Tokens for TOO_LONG and EXCEEDS_STEP, blocks for NEVER_FITS, live requests for QUEUE_FULL,
    tokens for the others.
    """

    @property
    def result(self) -> SubmitResult: ...
    @property
    def needed(self) -> int: ...
    @property
    def limit(self) -> int: ...

class Step:
    """One turn of the loop: R rows, decode rows first. Immutable; its arrays are read-only views
    that keep it alive.
    """

    @property
    def id(self) -> int: ...
    @property
    def digest(self) -> int:
        """64 bits, equal for equal histories of calls."""
    @property
    def num_rows(self) -> int: ...
    @property
    def num_decode_rows(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def request_ids(self) -> NDArray[np.uint64]: ...
    @property
    def slots(self) -> NDArray[np.int32]: ...
    @property
    def query_lens(self) -> NDArray[np.int32]: ...
    @property
    def context_lens(self) -> NDArray[np.int32]:
        """Tokens whose KV is cached, or computed by this or an earlier step, before the query; if
        all drafts in flight stand.
        """
    @property
    def unsure_lens(self) -> NDArray[np.int32]:
        """Of `context_lens`, drafts in flight: the device subtracts those that did not stand."""
    @property
    def samples(self) -> NDArray[np.uint8]:
        """1: the row ends its known tokens and one token is sampled."""
    @property
    def admitted(self) -> NDArray[np.uint8]:
        """1: the request takes this slot with this step; per-slot state must be rebuilt."""
    @property
    def cached_lens(self) -> NDArray[np.int32]:
        """Of an admitted row: tokens found in the prefix cache; else 0."""
    @property
    def first(self) -> NDArray[np.uint8]:
        """1: admitted for the first time; 0 for every other row."""
    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [num_tokens]; -1 where the device knows the token: the last sampled in the slot as
        the first of a row, a draft as any other.
        """
    @property
    def dirty(self) -> NDArray[np.int32]:
        """int32 [D, 3]: (slot, begin, end) of `block_tables` entries to copy before this step."""

class Deltas:
    """What a commit brought, in the order of the step's rows."""

    @property
    def request_ids(self) -> NDArray[np.uint64]: ...
    @property
    def tokens(self) -> NDArray[np.int32]:
        """-1: the request ended without a token (max_tokens = 0)."""
    @property
    def finish(self) -> NDArray[np.uint8]:
        """0: goes on, 1: stop token, 2: max_tokens reached, 3: waited longer than it may."""

class Stats:
    """Gauges and counters; reading them costs the same whatever is cached or waiting."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def slots_used(self) -> int:
        """Slots of running requests, and those fenced by a step in flight."""
    @property
    def blocks_total(self) -> int:
        """Usable blocks: used + cached + free."""
    @property
    def blocks_used(self) -> int:
        """Held by running requests, or fenced by a step in flight."""
    @property
    def blocks_cached(self) -> int:
        """Held by nobody; evicted when there is no free block."""
    @property
    def blocks_free(self) -> int: ...
    @property
    def blocks_pinned(self) -> int:
        """Shares in blocks that pins hold; such blocks count as used."""
    @property
    def blocks_quarantined(self) -> int:
        """Not reused: a transfer or a peer whose outcome nobody knows may still touch them."""
    @property
    def steps(self) -> int: ...
    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of requests admitted for the first time."""
    @property
    def cached_prompt_tokens(self) -> int:
        """Of `prompt_tokens`, those found in the prefix cache."""
    @property
    def generated_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def finished(self) -> int: ...
    @property
    def aborted(self) -> int: ...
    @property
    def expired(self) -> int:
        """Ended because they waited longer than they may."""
    @property
    def head_wait_s(self) -> float:
        """Seconds the next request in line had waited at the last `step`."""

class Scheduler:
    """Decides steps and owns requests, slots and blocks. Deterministic.

    RuntimeError from any call but `step` out of turn means a broken invariant: drop the scheduler.
    """

    def __init__(self, config: SchedulerConfig) -> None: ...
    @property
    def config(self) -> SchedulerConfig: ...
    @property
    def block_tables(self) -> NDArray[np.int32]:
        """int32 [max_running, sum(row_lengths)]: a read-only view of persistent rows.

        Rows change only inside `step`; unused entries are 0. Copy a step's `dirty` ranges before
        the next `step`.
        """
    def submit(
        self,
        request_id: int,
        tokens: NDArray[np.int32],
        max_tokens: int,
        stop_token_ids: NDArray[np.int32],
        *,
        min_tokens: int = 0,
        priority: int = 0,
        salt: bytes = b"",
        read_prefix_cache: bool = True,
        max_wait_s: float = ...,
        now: float,
    ) -> SubmitResult:
        """Queues a request. Higher `priority` goes first. A stop token counts once `min_tokens`
        were generated, itself included. `max_wait_s`: seconds that it may wait to be admitted, all
        its waits together; without end by default.

        Raises TypeError for arrays that are not int32, ValueError for negative ids or counts.
        """
    def judge(self, prompt_len: int, max_tokens: int) -> Judgement:
        """What `submit` would say now to a request of this size, but for its id."""
    def take_ended(self) -> Deltas:
        """Requests that ended without a commit since the last call: their wait was over when a
        step was made. Token -1, finish 3."""
    def abort(self, request_id: int) -> bool:
        """Ends a request in any state; no delta comes for it afterwards. False: not live."""
    def step(self, now: float) -> Step | None:
        """The next step; None when nothing can be scheduled now.

        Raises RuntimeError when more than `in_flight_depth` steps wait for their commit.
        """
    def commit(
        self, step_id: int, tokens: NDArray[np.int32], counts: NDArray[np.int32] | None = None
    ) -> Deltas:
        """Takes the tokens sampled by the oldest step in flight, row after row.

        `counts` int32 [num_samples] of them per row that samples: the drafts that stood, and one
        more. None: one each. What comes after the end of a request is dropped.

        Raises ValueError, and changes nothing, for another step, a count that no row of its width
        has, a wrong sum or negative ids.
        """
    def tokens(self, request_id: int) -> NDArray[np.int32]:
        """A copy of all known tokens: prompt and accepted. Raises ValueError when not live."""
    def stats(self) -> Stats: ...
    def check(self) -> None:
        """Audits every invariant from scratch, at the cost of everything. For tests."""
    def pin_prefix(
        self, tokens: NDArray[np.int32], *, ttl_s: float, salt: bytes = b"", now: float
    ) -> int:
        """Keeps the longest cached prefix of `tokens` until `now + ttl_s`; its length in tokens.

        Pins yield: the one that ends first is dropped before anybody waits for its blocks.
        """
    def digests_of(self, tokens: NDArray[np.int32], *, salt: bytes = b"") -> NDArray[np.uint64]:
        """uint64 [full blocks, 2]: how the prefixes of `tokens` are known in prefix events."""
    def cached_digests(self) -> NDArray[np.uint64]:
        """uint64 [N, 2]: every prefix block that can be found now, of all cache groups."""
    def take_prefix_events(self) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Digests [N, 2] and, for each, 1 (stored) or 0 (removed), since the last call.

        Replayed in order they give `cached_digests`. Empty unless `prefix_events` is set.
        """
    def reset_prefix_cache(self) -> int:
        """Forgets every cached prefix; returns how many blocks were forgotten."""
