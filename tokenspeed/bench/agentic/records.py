"""What was seen of each turn, and the figures made of it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """What was seen of one turn. `user` is whose place the session had, `turn` counts from 0.
    Tokens: of the `prompt`, found `cached`, what an unlimited cache would hold of it (`ideal`), and
    of the answer as far as it was seen. Seconds on one clock: asked, first token seen, last token
    seen. `begun`: the answer began while somebody looked; else its prompt was paid for before, and
    `first_s` is when the looking began."""

    user: int
    turn: int
    prompt: int
    cached: int
    ideal: int
    output: int
    asked_s: float
    first_s: float
    last_s: float
    begun: bool = True


@dataclass(frozen=True, slots=True)
class Level:
    """Figures of one number of users at once.

    `turns`: answers that began. `tps_user`: tokens per second of an answer that has begun. Rates
    are per device: `output_s` of answers, `prefill_s` of prompt tokens that were computed, and per
    minute of all tokens with (`tpm`) and without (`tpm_computed`) those found in the cache. TTFT in
    seconds, (p50, p95), of first turns (None where none began) and of later ones. `delay`: seconds
    that steps with answers took longer for the prompts in them, (p95, longest); None where nobody
    looked into the steps. `experts_read`: different ones of a layer in a step of answers alone, on
    average; None without experts.
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
    experts_read: float | None = None


def summarise(
    records: Sequence[Record], users: int, devices: int, seconds: float | None = None
) -> Level:
    """`seconds`: everything that was seen in so long. Where it is None the records are whole turns,
    and a user's rate is that from the first asked to the last answered; users run beside each
    other, so their rates add up. Raises ValueError where no answer began."""
    begun = [record for record in records if record.begun]
    if not begun:
        raise ValueError("no turn was answered in the time given")
    by_user: defaultdict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_user[record.user].append(record)

    def rate(count: Iterable[tuple[int, Record]]) -> float:
        sums: defaultdict[int, int] = defaultdict(int)
        for tokens, record in count:
            sums[record.user] += tokens
        return sum(sums[user] / (seconds or _seconds(by_user[user])) for user in sums) / devices

    output = rate((record.output, record) for record in records)
    computed = rate((record.prompt - record.cached, record) for record in begun)
    prompts = rate((record.prompt, record) for record in begun)
    going = [record for record in records if record.output > record.begun]
    prompt_tokens = sum(record.prompt for record in begun)
    return Level(
        users=users,
        turns=len(begun),
        seconds=seconds or _seconds(records),
        tps_user=_ratio(
            sum(record.output - record.begun for record in going),
            sum(record.last_s - record.first_s for record in going),
        ),
        output_s=output,
        prefill_s=computed,
        tpm=60 * (prompts + output),
        tpm_computed=60 * (computed + output),
        ttft_first=_waits(record for record in begun if record.turn == 0),
        ttft_later=_waits(record for record in begun if record.turn > 0),
        hit_rate=sum(record.cached for record in begun) / prompt_tokens,
        ideal_hit_rate=sum(record.ideal for record in begun) / prompt_tokens,
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
