"""Typed face of the C++ core. `step`, `commit`, `submit` and the rest run without the GIL and
one at a time, so threads may share a Scheduler.
"""

from collections.abc import Sequence
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

class SchedulerConfig:
    """What the scheduler needs to know of the deployment. Counts are of blocks or tokens.

    `num_blocks` includes block 0, the null block, which is never handed out. `max_step_tokens`
    is at least `max_running * (1 + max_draft_tokens)`. `ageing_s`: seconds of waiting that outweigh
    one priority class.
    `groups`: cache groups as (kind, window): ("full", 0), ("window", tokens) or ("state", 0).
    `max_mixed_tokens` bounds the prompt tokens of a step that also decodes. Where prompts fill such
    steps on and on, they get twice as many after every `backlog_steps` of them, up to
    `max_backlog_tokens` (0: never more). A prompt that must not
    be cut and finds no room beside decodes for `patience_steps` steps gets one without them.
    `cache_lead_s`: seconds that a wholly cached prompt goes before others of its class.
    `max_waiting`: live requests beyond `max_running`; more are refused. `max_draft_tokens`:
    guesses of the device that a decode row carries at most, to be verified by the step. Without
    `overcommit` the worst remaining needs of all admitted requests are covered at any time, and
    nobody is ever preempted. `min_tail_tokens`: the shortest tail that is worth a copy, 0: tails
    are not shared.

    `role`: "fused", or "prefill" and "decode" for engines that share requests. `num_host_blocks`:
    of the host tier, its null block included; 0: there is none. `disk`, `remote`: stores below it.
    `transfer_credits`: blocks that transfers which nobody must have move at once.
    `transfer_timeout_s`: of a transfer that can begin, then it is lost. `peer_timeout_s`: of a peer
    that shows no sign of work. `absent_s`: how long a store is not asked again for what it lacks.
    `layers_per_transfer`: layers that go to a peer in one piece, 0: all at once.
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
        max_backlog_tokens: int = 0,
        backlog_steps: int = 8,
        patience_steps: int = 32,
        cache_lead_s: float = 0.0,
        max_waiting: int = 2**31 - 1,
        max_draft_tokens: int = 0,
        role: str = "fused",
        num_host_blocks: int = 0,
        disk: bool = False,
        remote: bool = False,
        transfer_credits: int = 256,
        transfer_timeout_s: float = 30.0,
        peer_timeout_s: float = 120.0,
        absent_s: float = 10.0,
        layers_per_transfer: int = 0,
        overcommit: bool = True,
        min_tail_tokens: int = 0,
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
    def max_backlog_tokens(self) -> int: ...
    @property
    def backlog_steps(self) -> int: ...
    @property
    def patience_steps(self) -> int: ...
    @property
    def cache_lead_s(self) -> float: ...
    @property
    def max_waiting(self) -> int: ...
    @property
    def max_draft_tokens(self) -> int: ...
    @property
    def num_host_blocks(self) -> int: ...
    @property
    def overcommit(self) -> bool: ...
    @property
    def min_tail_tokens(self) -> int: ...
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
    QUEUE_FULL (max_running + max_waiting requests are live), PEER_IN_USE (another hand-over has
    this peer id, or one that is not through yet).
    """

    ACCEPTED = 0
    DUPLICATE = 1
    EMPTY = 2
    TOO_LONG = 3
    NEVER_FITS = 4
    EXCEEDS_STEP = 5
    QUEUE_FULL = 6
    PEER_IN_USE = 7

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

class Tier(IntEnum):
    """Where blocks are. NONE as a destination: the source is only asked what it has."""

    NONE = 0
    DEVICE = 1
    HOST = 2
    DISK = 3
    REMOTE = 4
    PEER = 5

class Guard(IntEnum):
    """What keeps the source of a transfer as it is.

    PINNED: nobody writes source or destination before the acknowledgement. ORDERED: the transfer
    must read its source before any row of its step writes, in the order of steps; the step's commit
    frees the source, and the acknowledgement is about the destination.
    """

    PINNED = 0
    ORDERED = 1

class Word(IntEnum):
    """What goes to a peer beside blocks. HAND_OVER: all blocks are there, this is the first token.
    ABANDON: this side gives up, and touches no block of the other again.
    """

    NONE = 0
    HAND_OVER = 1
    ABANDON = 2

class Transfers:
    """The transfers that a step starts: T transfers of M blocks together, in the order in which a
    mover should take them up. Each ends in one TransferDone or TransferLost.
    """

    def __len__(self) -> int: ...
    @property
    def tickets(self) -> NDArray[np.uint64]: ...
    @property
    def sources(self) -> NDArray[np.uint8]:
        """A Tier for each transfer."""
    @property
    def destinations(self) -> NDArray[np.uint8]:
        """A Tier for each transfer."""
    @property
    def guards(self) -> NDArray[np.uint8]:
        """A Guard for each transfer."""
    @property
    def words(self) -> NDArray[np.uint8]:
        """A Word for each transfer."""
    @property
    def peers(self) -> NDArray[np.uint64]:
        """The hand-over that a transfer is part of, 0 for none."""
    @property
    def after(self) -> NDArray[np.uint64]:
        """The step that must have run before the transfer begins; 0: it may begin at once."""
    @property
    def tokens(self) -> NDArray[np.int32]:
        """The first token of a HAND_OVER, else -1."""
    @property
    def prefix_lens(self) -> NDArray[np.int32]:
        """Of a transfer from a peer: leading tokens that this side has already."""
    @property
    def prompt_lens(self) -> NDArray[np.int32]: ...
    @property
    def layers(self) -> NDArray[np.int32]:
        """Layers that go to or come from a peer in one piece; 0: all at once."""
    @property
    def begins(self) -> NDArray[np.int32]:
        """[T + 1], empty without transfers: the blocks of transfer i are
        `moves[begins[i] : begins[i + 1]]`.
        """
    @property
    def moves(self) -> NDArray[np.int32]:
        """int32 [M, 4]: group, column, source block, destination block; -1 where a tier has no
        block ids. A transfer from a peer lists where the peer is to write.
        """
    @property
    def digests(self) -> NDArray[np.uint64]:
        """uint64 [M, 2]: how disk and remote know a block; zeros where nobody is to find it."""

class TransferDone:
    """A transfer touches nothing any more. `results`, uint8 [blocks]: 1 is success, said for each
    block; of a question, 1 is "here". Also said of a lost transfer that is found.
    """

    def __init__(self, ticket: int, results: NDArray[np.uint8]) -> None: ...

class TransferLost:
    """Nobody can say whether a transfer still touches its blocks: they go into quarantine."""

    def __init__(self, ticket: int) -> None: ...

class PeerReady:
    """To the prefill role: where the peer wants a prompt, as its Transfers from PEER say it.

    `blocks`: int32 [K, 3] of group, column, block of the peer.
    """

    def __init__(
        self, peer: int, *, prefix_len: int, prompt_len: int, blocks: NDArray[np.int32]
    ) -> None: ...

class PeerProgress:
    """To the decode role: the peer is at work; its timer starts anew."""

    def __init__(self, peer: int) -> None: ...

class PeerDelivered:
    """To the decode role: all blocks are written and will not be touched again; the first token."""

    def __init__(self, peer: int, token: int) -> None: ...

class PeerGone:
    """The peer gave up or cannot be reached. `quiet`: it touches nothing here again, which may also
    be said later of a peer that is gone already. Without it its blocks go into quarantine.
    """

    def __init__(self, peer: int, *, quiet: bool = False) -> None: ...

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
    @property
    def copies(self) -> NDArray[np.int32]:
        """int32 [C, 3]: (source, destination, tokens), blocks of which the first tokens are to be
        copied: behind every earlier step, before the rows of this one. The rest of a destination
        may be overwritten; no destination is a source.
        """
    @property
    def transfers(self) -> Transfers:
        """What to copy beside the rows. A step may have transfers and no rows: commit it too."""

class Deltas:
    """What a commit brought, in the order of the step's rows."""

    @property
    def request_ids(self) -> NDArray[np.uint64]: ...
    @property
    def tokens(self) -> NDArray[np.int32]:
        """-1: the request ended without a token (max_tokens = 0)."""
    @property
    def finish(self) -> NDArray[np.uint8]:
        """0: goes on, 1: stop token, 2: max_tokens reached, 3: waited longer than it may, 4: handed
        over to its peer, 5: its peer failed, 6: quarantine left too little room for it.
        """

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
    def failed(self) -> int:
        """Ended because a peer failed, or because quarantine left too little room."""
    @property
    def host_blocks_total(self) -> int:
        """Usable blocks of the host tier, as on the device."""
    @property
    def host_blocks_used(self) -> int: ...
    @property
    def host_blocks_cached(self) -> int: ...
    @property
    def host_blocks_free(self) -> int: ...
    @property
    def host_blocks_quarantined(self) -> int: ...
    @property
    def transfers_in_flight(self) -> int:
        """Without the lost ones."""
    @property
    def transfers_lost(self) -> int:
        """Transfers whose outcome is still unknown."""
    @property
    def transfers_failed(self) -> int:
        """Transfers so far of which a block failed."""
    @property
    def peers(self) -> int:
        """Hand-overs that are not through on this side."""
    @property
    def host_blocks_loaded(self) -> int:
        """Cached blocks that came from the host tier for admitted requests."""
    @property
    def images_stored(self) -> int:
        """Retracted requests whose image is complete in the host tier, so far."""
    @property
    def images_restored(self) -> int: ...
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
        peer: int = 0,
        now: float,
    ) -> SubmitResult:
        """Queues a request. Higher `priority` goes first. A stop token counts once `min_tokens`
        were generated, itself included. `max_wait_s`: seconds that it may wait to be admitted, all
        its waits together; without end by default.

        Raises TypeError for arrays that are not int32, ValueError for negative ids or counts.
        """
    def judge(self, prompt_len: int, max_tokens: int) -> Judgement:
        """What `submit` would say now to a request of this size, but for its id."""
    def apply(
        self,
        reports: Sequence[
            TransferDone | TransferLost | PeerReady | PeerProgress | PeerDelivered | PeerGone
        ],
        now: float,
    ) -> Deltas:
        """Takes what movers and peers report: all of it, or nothing.

        Raises ValueError that names the report, and changes nothing, when one of them cannot be: an
        unknown ticket, a wrong number of results, a manifest that does not fit, two reports of one
        transfer or peer. What comes late, for a request that ended or from a peer that is not known
        any more, is dropped.
        """
    def take_ended(self) -> Deltas:
        """Requests that ended since the last call in a `step`, or at its time: their wait was over,
        a peer's time was, or there is too little room. Token -1, finish 3, 5 or 6.
        """
    def abort(self, request_id: int) -> bool:
        """Ends a request in any state; no delta comes for it afterwards. False: not live."""
    def step(self, now: float) -> Step | None:
        """The next step; None when nothing can be scheduled now.

        Raises RuntimeError when more than `in_flight_depth` steps wait for their commit.
        """
    def commit(
        self,
        step_id: int,
        tokens: NDArray[np.int32],
        counts: NDArray[np.int32] | None = None,
        forced: NDArray[np.int32] | None = None,
    ) -> Deltas:
        """Takes the tokens sampled by the oldest step in flight, row after row.

        `counts` int32 [num_samples] of them per row that samples: the drafts that stood, and one
        more. None: one each. What comes after the end of a request is dropped. `forced` int32
        [num_samples]: of a row's tokens the last ones, which were not sampled but must follow; the
        next step computes them in one row. The token that a step in flight samples of such a
        request is one of them: its result is dropped.

        Raises ValueError, and changes nothing, for another step, a count that no row of its width
        has, a wrong sum or negative ids, and for forced tokens in the prefill role or, with
        `in_flight_depth` 1, beside drafts.
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
