"""What the device did during a steady decode: busy share, gaps between steps, slowest kernels."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from tokenspeed.bench import decode
from tokenspeed.bench.engine import Engine

SLOWEST = 14

Span = tuple[float, float, str]  # begin and end in microseconds, name


@dataclass(frozen=True, slots=True)
class Trace:
    """`busy` is the share of the time in which a kernel or copy ran. `between_steps_us`: median
    time from a step's last kernel to the next one's first, the copies between them included;
    `gaps_us`: the longest pauses. `kernels`: (name, microseconds and launches per step), where a
    kernel that runs beside the one before it counts from that one's end."""

    batch: int
    context: int
    busy: float
    between_steps_us: float
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
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if event.device_type.name == "CUDA"
    )
    totals: defaultdict[str, list[float]] = defaultdict(list)
    busy, end, pauses = 0.0, spans[0][0], []
    # By their ends: with programmatic dependent launch a kernel begins while others still run.
    for begin, stop, name in sorted(spans, key=lambda span: span[1]):
        totals[name].append(stop - end)
        if begin > end:
            pauses.append(begin - end)
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    between = [
        begin - last
        for (last, begin) in _borders([span for span in spans if "Memset" not in span[2]])
    ]
    slowest = sorted(totals.items(), key=lambda item: -sum(item[1]))[:SLOWEST]
    return Trace(
        busy=busy / (end - spans[0][0]),
        batch=batch,
        context=context,
        between_steps_us=statistics.median(between) if between else 0.0,
        gaps_us=tuple(sorted(pauses, reverse=True)[:10]),
        kernels=tuple(
            (name[:70], sum(times) / turns, len(times) / turns) for name, times in slowest
        ),
    )


def _borders(spans: list[Span]) -> Iterator[tuple[float, float]]:
    """For each step but the first: the end of the last kernel before its copies, and when its
    first kernel begins."""
    place = 1
    while place < len(spans) - 1:
        last = place
        while last < len(spans) - 1 and _is_copy(spans[last][2]):
            last += 1
        if last > place:
            yield spans[place - 1][1], spans[last][0]
        place = last + 1


def _is_copy(name: str) -> bool:
    return "Memcpy" in name or name == "_copy"
