"""What the device did during a steady decode: busy share, time between replays, slowest kernels."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from tokenspeed.bench import decode
from tokenspeed.bench.engine import Engine

SLOWEST = 14
# Kernels of one launch, at least, that make it the replay of a step's graph.
_LEAST_KERNELS = 8


class Span(NamedTuple):
    """A kernel or copy on the device. Microseconds; `launch`: one for all of a replayed graph."""

    begin: float
    end: float
    name: str
    launch: int


@dataclass(frozen=True, slots=True)
class Trace:
    """`busy` is the share of the time in which a kernel or copy ran, from the first replay's start
    to the last one's end. `between_replays_us`: median time from the end of a step's graph to the
    start of the next one's, of which `busy_between_us` something ran; `longest_between_us`: the
    longest. `gaps_us`: the longest pauses. `kernels`: (name, microseconds and launches per step),
    where a kernel that runs beside the one before it counts from that one's end."""

    batch: int
    context: int
    busy: float
    between_replays_us: float
    busy_between_us: float
    longest_between_us: float
    gaps_us: tuple[float, ...]
    kernels: tuple[tuple[str, float, float], ...]


def trace(engine: Engine, batch: int, context: int, turns: int = 16) -> Trace:
    """Some steps of a steady decode under the profiler."""
    requests, _ = decode.start(engine, batch, context, turns)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(turns):
            engine.turn()
        torch.cuda.synchronize()
    engine.finish(requests)
    spans = [
        Span(event.time_range.start, event.time_range.end, event.name, event.id)
        for event in profiler.events()
        if event.device_type.name == "CUDA"
    ]
    return summary(spans, batch, context)


def summary(spans: Sequence[Span], batch: int, context: int) -> Trace:
    """Raises ValueError where less than two replays are among the spans."""
    by_launch: defaultdict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_launch[span.launch].append(span)
    replays = sorted(
        (min(span.begin for span in group), max(span.end for span in group))
        for group in by_launch.values()
        if len(group) >= _LEAST_KERNELS
    )
    if len(replays) < 2:
        raise ValueError("no steady decode: less than two replays of a graph were traced")
    start, stop = replays[0][0], replays[-1][1]
    inside = [span for span in spans if span.begin >= start and span.end <= stop]
    totals: defaultdict[str, list[float]] = defaultdict(list)
    busy, end = 0.0, start
    pauses: list[tuple[float, float]] = []
    # By their ends: with programmatic dependent launch a kernel begins while others still run.
    for span in sorted(inside, key=lambda span: span.end):
        totals[span.name].append(span.end - end)
        if span.begin > end:
            pauses.append((end, span.begin))
        busy += max(0.0, span.end - max(span.begin, end))
        end = max(end, span.end)
    borders = [(last, begin) for (_, last), (begin, _) in itertools.pairwise(replays)]
    between = [begin - last for last, begin in borders]
    idle = [
        sum(max(0.0, min(until, begin) - max(since, last)) for since, until in pauses)
        for last, begin in borders
    ]
    slowest = sorted(totals.items(), key=lambda item: -sum(item[1]))[:SLOWEST]
    longest = sorted((until - since for since, until in pauses), reverse=True)
    return Trace(
        batch=batch,
        context=context,
        busy=busy / (stop - start),
        between_replays_us=statistics.median(between),
        busy_between_us=statistics.median(
            whole - pause for whole, pause in zip(between, idle, strict=True)
        ),
        longest_between_us=max(between),
        gaps_us=tuple(longest[:10]),
        kernels=tuple(
            (name[:70], sum(times) / len(replays), len(times) / len(replays))
            for name, times in slowest
        ),
    )
