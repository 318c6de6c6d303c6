"""Rounds of faults under load, and what each did."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.appliance.chaos.clients import ANSWERED, CLOSED, LEFT, Clients
from tests.appliance.chaos.faults import FAULTS, Fault
from tests.appliance.chaos.world import World

CLIENTS = 6


@dataclass(slots=True)
class Tally:
    """Of one fault: seconds from its end to the first right answer, and how requests ended."""

    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


def choose(seed: int, rounds: int, only: str = "") -> Iterator[Fault]:
    """Each fault as often as the others, in an order that the seed decides."""
    draw = random.Random(seed)
    bag: list[Fault] = []
    wanted = [f for f in FAULTS if only in f.name]
    for _ in range(rounds):
        bag = bag or draw.sample(wanted, len(wanted))
        yield bag.pop()


def run(
    scratch: Path,
    seed: int,
    rounds: int,
    only: str = "",
    libfaketime: Path | None = None,
    tell: Callable[[str], None] = print,
) -> dict[str, Tally]:
    """Raises AssertionError at the first round after which anything is wrong, and says which."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    with World(scratch, libfaketime) as world:
        clients = Clients(world.port, CLIENTS, seed)
        try:
            for number, fault in enumerate(choose(seed, rounds, only)):
                try:
                    seconds, outcomes = one(
                        world, clients, fault, random.Random(f"{seed}/{number}")
                    )
                except BaseException as error:
                    error.add_note(
                        f"round {number} of seed {seed}: {fault.name}\n"
                        f"the front printed last:\n{world.front.output[-6000:]}"
                    )
                    raise
                tally = tallies[fault.name]
                tally.seconds.append(seconds)
                tally.outcomes += outcomes
                tell(f"{number:4d}  {fault.name:52s} {seconds:6.2f} s  {dict(outcomes)}")
        finally:
            clients.close()
    return tallies


def one(
    world: World, clients: Clients, fault: Fault, draw: random.Random
) -> tuple[float, Counter[str]]:
    """One round: seconds to recover, and how the requests of it ended."""
    clients.begin()
    fault.inject(world, draw)
    over = time.monotonic()
    world.recover()
    seconds = time.monotonic() - over
    outcomes = clients.pause()
    suffered = sum(count for name, count in outcomes.items() if name not in (ANSWERED, LEFT))
    assert not (fault.gentle and suffered), f"requests suffered: {outcomes}"
    world.check_leaks()
    world.set_clock(0)
    return seconds, outcomes


def table(tallies: dict[str, Tally]) -> str:
    """Markdown, a line for each fault. Of the requests, `told` were refused or ended with an error;
    those counted as answered include the ones that their client left."""
    columns = ("rounds", "recovery, median", "longest", "requests", "answered", "told", "closed")
    rows = [f"| fault | {' | '.join(columns)} |", "|---" + "|---:" * len(columns) + "|"]
    for name in (fault.name for fault in FAULTS if fault.name in tallies):
        tally = tallies[name]
        count = tally.outcomes
        told = count["refused"] + count["failed"]
        rows.append(
            f"| {name} | {len(tally.seconds)} | {statistics.median(tally.seconds):.2f} s | "
            f"{max(tally.seconds):.2f} s | {count.total()} | {count[ANSWERED] + count[LEFT]} | "
            f"{told} | {count[CLOSED]} |"
        )
    total: Sequence[int] = [tally.outcomes.total() for tally in tallies.values()]
    rounds = sum(len(tally.seconds) for tally in tallies.values())
    return "\n".join([*rows, "", f"{rounds} rounds, {sum(total)} requests, each ended once."])
