"""Sessions against the worker's own loop in this process: token ids, no text, random weights.

A level begins in the middle: the users' first sessions are at ages spread evenly over their turns,
each amid an answer, and their past is taken as present without being computed. Some seconds later
the looking begins, and everything that happens from then on is counted until it ends, of turns
that began before or end after as much as was seen. So few seconds show the steady state.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenspeed.bench.agentic.records import Record
from tokenspeed.bench.agentic.workload import Corpus, Script, Workload
from tokenspeed.bench.turns import Turns
from tokenspeed.request import Delta


class Ids:
    """Token ids of real text: its words, numbered as they first occur."""

    def __init__(self, corpus: Corpus, vocab_size: int) -> None:
        numbers: dict[str, int] = {}
        words = corpus.words(corpus.size, 0)
        order = [numbers.setdefault(word, len(numbers)) for word in words]
        self._ids = (np.array(order, dtype=np.int64) % vocab_size).astype(np.int32)
        self._vocab_size = vocab_size

    def system(self, count: int) -> np.ndarray:
        """The same for all sessions."""
        return self._from(0, count)

    def said(self, script: Script, turn: int) -> np.ndarray:
        """What turn `turn` of a session adds; its first word is the session's own."""
        begin = random.Random(f"{script.number} {turn}").randrange(len(self._ids))
        ids = self._from(begin, script.turns[turn].added)
        ids[0] = (7919 * script.number + turn) % self._vocab_size
        return ids

    def _from(self, begin: int, count: int) -> np.ndarray:
        return self._ids.take(np.arange(begin, begin + count), mode="wrap")


# What the first prompt of a session takes, in turns: near that where some users share a device.
_FIRST = 0.5


class _Session:
    """One conversation, which grows by turns. The times and `cached` are those of the last turn,
    of whose answer so many tokens were `pretended`."""

    def __init__(self, user: int, script: Script, ids: Ids) -> None:
        self.user = user
        self._script, self._ids = script, ids
        self.turn = -1
        self.prompt = ids.system(script.system)
        self.ideal = script.system
        self.output: list[int] = []
        self.pretended = 0
        self.cached = 0
        self.asked_s = self.first_s = self.last_s = 0.0

    @property
    def turns(self) -> int:
        return len(self._script.turns)

    @property
    def missing(self) -> int:
        """Tokens of this turn's answer that are still to come."""
        return self._script.turns[self.turn].generated - len(self.output)

    @property
    def said(self) -> np.ndarray:
        """The conversation so far."""
        return np.concatenate((self.prompt, np.array(self.output, dtype=np.int32)))

    def next(self) -> None:
        """On to the prompt of the next turn."""
        if self.turn >= 0:
            # The last token of an answer was sampled and never computed.
            self.ideal = len(self.prompt) + len(self.output) - 1
        self.turn += 1
        said = self._ids.said(self._script, self.turn)
        self.prompt, self.output = np.concatenate((self.said, said)), []
        self.pretended = 0

    def grow(self, age: float) -> np.ndarray:
        """To this share of its life, from 0 to below 1: what is cached of it by then. The first
        prompt takes a part of that life beside the turns, and may be computed in part."""
        turns, of_turn = divmod(age * (self.turns + _FIRST) - _FIRST, 1.0)
        system = len(self.prompt)
        self.next()
        if turns < 0:
            computed = age * (self.turns + _FIRST) / _FIRST
            self.ideal = system + int(computed * (len(self.prompt) - system))
            return self.prompt[: self.ideal]
        for _ in range(int(turns)):
            self.output = [0] * self.missing
            self.next()
        self.pretended = int(of_turn * self.missing)
        self.output = [0] * self.pretended
        return self.said

    def take(self, delta: Delta, now: float) -> None:
        if delta.cached_tokens is not None:
            self.cached, self.first_s = delta.cached_tokens, now
        self.output.extend(delta.tokens)
        self.last_s = now

    def record(self, begin_s: float, before: int) -> Record:
        """As seen since `begin_s`, when `before` tokens of its answer had been seen."""
        # An answer amid which the session came to life began before, though its next token did not.
        begun = self.first_s >= begin_s and not self.pretended
        return Record(
            user=self.user,
            turn=self.turn,
            prompt=len(self.prompt),
            cached=self.cached,
            ideal=self.ideal,
            output=len(self.output) - (0 if begun else before),
            asked_s=self.asked_s,
            first_s=max(self.first_s, begin_s),
            last_s=self.last_s,
            begun=begun,
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """`records` of everything that happened in `seconds`."""

    records: list[Record]
    seconds: float


def run_level(
    engine: Turns,
    workload: Workload,
    ids: Ids,
    users: int,
    warm_up: float,
    seconds: float,
    each: Iterator[Script],
) -> Seen:
    """Looks for `seconds` after `warm_up` seconds. Takes its sessions from `each`, and leaves
    nothing cached."""
    sessions = [_Session(user, next(each), ids) for user in range(users)]
    open_: dict[int, _Session] = {}
    for session in sessions:
        past = session.grow((session.user + 0.5) / users)
        with engine.pretending():
            engine.until_first_tokens({engine.submit(past, 1)})
    # Answers were under way before the prompts beside them came.
    for session in sorted(sessions, key=lambda one: not one.pretended):
        _ask(engine, session, open_)
    start = engine.clock()
    for _ in _answered(engine, open_, each, ids, start + warm_up):
        pass
    begin = engine.clock()
    before = {session.user: len(session.output) for session in open_.values()}
    records = []
    for session in _answered(engine, open_, each, ids, begin + seconds):
        records.append(session.record(begin, before.get(session.user, 0)))
    end = engine.clock()
    # Who still waits for a first token was not answered.
    cut = (session for session in open_.values() if session.last_s > max(begin, session.asked_s))
    records.extend(session.record(begin, before.get(session.user, 0)) for session in cut)
    engine.finish(set(open_))
    return Seen(records, end - begin)


def _answered(
    engine: Turns, open_: dict[int, _Session], each: Iterator[Script], ids: Ids, until: float
) -> Iterator[_Session]:
    """Turns the engine until then. Whose answer is whole is yielded, and then asks on; the next
    session takes the place of one that ends."""
    while engine.clock() < until:
        deltas = engine.deltas()
        now = engine.clock()
        for delta in deltas:
            session = open_[delta.request_id]
            session.take(delta, now)
            if session.missing:
                continue
            del open_[delta.request_id]
            yield session
            if session.turn + 1 == session.turns:
                session = _Session(session.user, next(each), ids)
            session.next()
            _ask(engine, session, open_)


def _ask(engine: Turns, session: _Session, open_: dict[int, _Session]) -> None:
    """For what is missing of the turn's answer."""
    session.asked_s = engine.clock()
    open_[engine.submit(session.said, session.missing)] = session
