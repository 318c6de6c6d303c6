"""Sessions against the worker's own loop in this process: token ids, no text, random weights.

A level begins in the middle: each user's first session is at a turn drawn for it, and its past is
taken as present without being computed. So the first turns are not all prompts, and the figures
are steady from the start.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

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
        return np.resize(np.roll(self._ids, -begin)[:count], count)


class _Session:
    """One conversation, which grows by turns. The times and `cached` are those of the last turn."""

    def __init__(self, user: int, script: Script, ids: Ids) -> None:
        self.user = user
        self._script, self._ids = script, ids
        self.turn = -1
        self.prompt = ids.system(script.system)
        self.ideal = script.system
        self.output: list[int] = []
        self._given = False  # the past was given as one prompt, and so computed to its end
        self.cached = 0
        self.asked_s = self.first_s = self.last_s = 0.0

    @property
    def turns(self) -> int:
        return len(self._script.turns)

    def somewhere(self) -> int:
        """A turn that follows from the session alone."""
        return random.Random(f"begin {self._script.number}").randrange(self.turns)

    @property
    def generated(self) -> int:
        """Tokens of this turn's answer."""
        return self._script.turns[self.turn].generated

    @property
    def answered(self) -> bool:
        return len(self.output) >= self.generated

    def next(self) -> np.ndarray:
        """The prompt of the next turn."""
        if self.turn >= 0:
            # The last token of an answer was sampled and never computed.
            self.ideal = len(self.prompt) + len(self.output) - (not self._given)
            self._given = False
        self.turn += 1
        said = self._ids.said(self._script, self.turn)
        self.prompt = np.concatenate((self.prompt, np.array(self.output, dtype=np.int32), said))
        self.output = []
        return self.prompt

    def take(self, delta: Delta, now: float) -> None:
        if delta.cached_tokens is not None:
            self.cached, self.first_s = delta.cached_tokens, now
        self.output.extend(delta.tokens)
        self.last_s = now

    def pretend(self, turns: int) -> np.ndarray:
        """Everything said in that many turns, as if it had been."""
        for _ in range(turns):
            self.next()
            self.output = [0] * self.generated
        self._given = turns > 0
        return np.concatenate((self.prompt, np.array(self.output, dtype=np.int32)))

    def record(self) -> Record:
        return Record(
            user=self.user,
            turn=self.turn,
            prompt=len(self.prompt),
            cached=self.cached,
            ideal=self.ideal,
            output=len(self.output),
            asked_s=self.asked_s,
            first_s=self.first_s,
            last_s=self.last_s,
        )


def run_level(
    engine: Turns,
    workload: Workload,
    corpus: Corpus,
    users: int,
    seconds: float,
    each: Iterator[Script],
) -> list[Record]:
    """Takes its sessions from `each`. No turn is asked for once `seconds` are over; those begun are
    finished and counted. Leaves nothing cached."""
    ids = Ids(corpus, engine.plan.model.config.vocab_size)
    open_: dict[int, _Session] = {}
    records: list[Record] = []
    sessions = [_begun(engine, _Session(user, next(each), ids)) for user in range(users)]
    end = engine.clock() + seconds
    for session in sessions:
        _ask(engine, session, open_)
    while open_:
        deltas = engine.deltas()
        now = engine.clock()
        for delta in deltas:
            session = open_[delta.request_id]
            session.take(delta, now)
            if not session.answered:
                continue
            records.append(session.record())
            del open_[delta.request_id]
            if session.turn + 1 == session.turns:
                session = _Session(session.user, next(each), ids)
            if now < end:
                _ask(engine, session, open_)
    engine.finish(set())
    return records


def _begun(engine: Turns, session: _Session) -> _Session:
    """At a turn of its own, its past, the system prompt at least, taken as present."""
    past = session.pretend(session.somewhere())
    with engine.pretending():
        engine.until_first_tokens({engine.submit(past, 1)})
    return session


def _ask(engine: Turns, session: _Session, open_: dict[int, _Session]) -> None:
    prompt = session.next()
    session.asked_s = engine.clock()
    open_[engine.submit(prompt, session.generated)] = session
