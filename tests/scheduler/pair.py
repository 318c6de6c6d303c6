"""A prefill and a decode engine, and the wire between them: late, out of order, broken at times."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.scheduler.engine import Chaos, Engine, Groups, Life, Longs, Transfer
from tokenspeed.scheduler import (
    PeerDelivered,
    PeerGone,
    PeerProgress,
    PeerReady,
    SchedulerConfig,
    Tier,
    Word,
)


class Side(Engine):
    """One of the two. `heard`: words that got through, since a lost one may be repeated."""

    other: Side

    def __init__(
        self,
        config: SchedulerConfig,
        groups: Groups,
        rng: random.Random,
        chaos: Chaos,
        depth: int,
        role: str,
    ) -> None:
        super().__init__(config, groups, rng, chaos, depth, role)
        self.rooms: set[int] = set()  # hand-overs that this side was told of
        self.parted: set[int] = set()  # and to which it said good-bye
        self.heard: set[tuple[int, Word]] = set()

    def _write(
        self, transfer: Transfer, block: int, digest: tuple[int, int], data: Longs, good: bool
    ) -> None:
        if transfer.destination == Tier.PEER:
            assert block > 0
            self.other.memory.device[block] = data
        else:
            super()._write(transfer, block, digest, data, good)

    def moved(self, transfer: Transfer) -> None:
        peer, mail = transfer.peer, self.other.mail
        if transfer.source == Tier.PEER and all(transfer.results):
            if peer in self.other.parted:
                self.mail.append((peer, PeerGone(peer, quiet=True)))
            elif (peer, Word.NONE) not in self.heard:
                self.heard.add((peer, Word.NONE))
                ready = PeerReady(
                    peer,
                    prefix_len=transfer.prefix_len,
                    prompt_len=transfer.prompt_len,
                    blocks=transfer.moves[:, [0, 1, 3]].copy(),
                )
                mail.append((peer, ready))
        if transfer.word == Word.NONE or (peer, transfer.word) in self.heard:
            return
        self.heard.add((peer, transfer.word))
        if transfer.word == Word.HAND_OVER:
            mail.append((peer, PeerDelivered(peer, transfer.token)))
        else:
            self.parted.add(peer)
            mail.append((peer, PeerGone(peer, quiet=self.role == "prefill")))


class Pair:
    """Both engines. A request goes to both at once, with a name for the hand-over."""

    def __init__(
        self,
        make_config: Callable[[str], SchedulerConfig],
        groups: Groups,
        rng: random.Random,
        chaos: Chaos,
        depth: int = 0,
    ) -> None:
        self.rng = rng
        sides = [
            Side(make_config(role), groups, rng, chaos, depth, role)
            for role in ("prefill", "decode")
        ]
        self.prefill, self.decode = sides
        self.prefill.other, self.decode.other = self.decode, self.prefill
        self.next_room = 1

    def submit(self, request_id: int, lives: tuple[Life, Life], **options: object) -> None:
        room, self.next_room = self.next_room, self.next_room + 1
        for side, life in zip((self.prefill, self.decode), lives, strict=True):
            side.submit(request_id, life, peer=room, **options)  # type: ignore[arg-type]
            side.rooms.add(room)

    def disturb(self) -> None:
        """The wire breaks for one hand-over, as one side sees it; or shows that it works."""
        room = self.rng.randrange(max(1, self.next_room - 12), self.next_room)
        if self.rng.random() < 0.5:
            self.decode.mail.append((room, PeerProgress(room)))
        else:
            side = self.rng.choice([self.prefill, self.decode])
            side.mail.append((room, PeerGone(room)))

    def turn(self) -> None:
        for side in self.rng.sample([self.prefill, self.decode], 2):
            side.turn()

    def settle(self) -> None:
        sides = (self.prefill, self.decode)
        quiet = 0
        for turn in range(20_000):
            busy = any(s.live or s.flights or s.pending or s.mail for s in sides)
            quiet = 0 if busy else quiet + 1
            if quiet == 20:
                break
            for side in sides:
                for transfer in side.pending:
                    transfer.lost = False
                if turn % 50 == 49:
                    side.now += 1000.0
            self.turn()
        assert quiet == 20, [(side.role, len(side.live), len(side.pending)) for side in sides]
        for side in sides:
            side.audit_end()


def config_for(role: str, **changes: object) -> SchedulerConfig:
    fields: dict[str, object] = {
        "num_blocks": 41,
        "block_size": 4,
        "max_running": 5,
        "max_step_tokens": 16,
        "max_model_len": 64,
        "prefix_cache": True,
        "chunked_prefill": True,
        "in_flight_depth": 0,
        "digest_key": (1, 2),
        "role": role,
    }
    return SchedulerConfig(**{**fields, **changes})  # type: ignore[arg-type]
