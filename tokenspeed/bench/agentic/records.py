"""What was seen of each turn, and the figures made of it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """One answered turn. `user` is whose place the session had, `turn` counts from 0. Tokens:
    of the `prompt`, found `cached`, what an unlimited cache would hold of it (`ideal`), and the
    answer's. Seconds on one clock: asked, first token seen, last token seen."""

    user: int
    turn: int
    prompt: int
    cached: int
    ideal: int
    output: int
    asked_s: float
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Level:
    """Figures of one number of users at once.

    `tps_user`: tokens per second of an answer that has begun. Rates are per device: `output_s` of
    answers, `prefill_s` of prompt tokens that were computed, and per minute of all tokens with
    (`tpm`) and without (`tpm_computed`) those found in the cache. TTFT in seconds, (p50, p95), of
    first turns (None where none began) and of later ones. `delay`: seconds that steps with answers
    took longer for the prompts in them, (p95, longest); None where nobody looked into the steps.
    """

    users: int
    turns: int
    seconds: float
    tps_user: float
    output_s: float
    prefill_s: float
    tpm: float
    tpm_computed: float
    ttft_first: tuple[float, float] | None
    ttft_later: tuple[float, float] | None
    hit_rate: float
    ideal_hit_rate: float
    delay: tuple[float, float] | None = None


def summarise(records: Sequence[Record], users: int, devices: int) -> Level:
    """A user's rate is that of whole turns, from the first asked to the last answered; users run
    beside each other, so their rates add up. Raises ValueError without records."""
    if not records:
        raise ValueError("no turn was answered in the time given")
    by_user: defaultdict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_user[record.user].append(record)

    def rate(count: Iterable[tuple[int, Record]]) -> float:
        sums: defaultdict[int, int] = defaultdict(int)
        for tokens, record in count:
            sums[record.user] += tokens
        return sum(sums[user] / _seconds(mine) for user, mine in by_user.items()) / devices

    output = rate((record.output, record) for record in records)
    computed = rate((record.prompt - record.cached, record) for record in records)
    prompts = rate((record.prompt, record) for record in records)
    going = [record for record in records if record.output > 1]
    prompt_tokens = sum(record.prompt for record in records)
    return Level(
        users=users,
        turns=len(records),
        seconds=_seconds(records),
        tps_user=_ratio(
            sum(record.output - 1 for record in going),
            sum(record.last_s - record.first_s for record in going),
        ),
        output_s=output,
        prefill_s=computed,
        tpm=60 * (prompts + output),
        tpm_computed=60 * (computed + output),
        ttft_first=_waits(record for record in records if record.turn == 0),
        ttft_later=_waits(record for record in records if record.turn > 0),
        hit_rate=sum(record.cached for record in records) / prompt_tokens,
        ideal_hit_rate=sum(record.ideal for record in records) / prompt_tokens,
    )


def _seconds(records: Sequence[Record]) -> float:
    return max(record.last_s for record in records) - min(record.asked_s for record in records)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _waits(records: Iterable[Record]) -> tuple[float, float] | None:
    waits = sorted(record.first_s - record.asked_s for record in records)
    if not waits:
        return None
    return statistics.median(waits), waits[min(len(waits) - 1, int(0.95 * len(waits)))]
