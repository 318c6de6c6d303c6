"""Times on a CUDA device: medians of graph replays over rotated, random data."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Of the best streams found on one H200: of what is read, and of what is read and written.
READ_GBS = 4665.0
COPY_GBS = 4244.0
# Data between two uses of the same bytes: several times the 60 MB of L2.
ROTATED_BYTES = 256 << 20
REPEATS = 25


def microseconds(calls: Sequence[Callable[[], object]], least_us: float = 3000.0) -> float:
    """Median time of one call. `calls` use different data, in turn; they are captured in one
    graph, repeated until a replay lasts `least_us`, so that neither the host shows nor the start
    of a graph, which takes about 4 us."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        stream.synchronize()
        once = _replay_us(_capture(calls, 1, stream), stream, 3)
        turns = max(1, round(least_us / max(once, 1.0)))
        graph = _capture(calls, turns, stream)
        return _replay_us(graph, stream, REPEATS) / (turns * len(calls))


def _capture(
    calls: Sequence[Callable[[], object]], turns: int, stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(turns):
            for call in calls:
                call()
    return graph


def _replay_us(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, repeats: int) -> float:
    times: list[float] = []
    for _ in range(2):
        graph.replay()
    for _ in range(repeats):
        begin, end = _event(), _event()
        begin.record(stream)
        graph.replay()
        end.record(stream)
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def sets_for(size: int, most: int = 64) -> int:
    """How many data sets of `size` bytes to rotate."""
    return max(1, min(most, -(-ROTATED_BYTES // size)))
