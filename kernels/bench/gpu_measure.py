"""Times on a CUDA device: medians of graph replays over rotated, random data."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

# Measured on one H200 with the best stream found; see the README beside this.
READ_GBS = 4665.0
COPY_GBS = 4244.0
# Data between two uses of the same bytes: several times the 60 MB of L2.
ROTATED_BYTES = 256 << 20
REPEATS = 25


@dataclass(frozen=True)
class Result:
    """One line. `rate` in `unit` (GB/s, TFLOP/s); `fraction` of the ceiling; `floor_us` is the
    time at that ceiling."""

    op: str
    kernel: str
    case: str
    us: float
    rate: float
    unit: str
    floor_us: float
    fraction: float

    def __str__(self) -> str:
        return (
            f"{self.op:13} {self.case:22} {self.us:9.1f} us  floor {self.floor_us:8.1f}"
            f"  {self.rate:8.1f} {self.unit:7} {self.fraction:5.0%}  {self.kernel}"
        )

    def row(self) -> dict[str, object]:
        return asdict(self)


def memory(op: str, kernel: str, case: str, us: float, size: int, ceiling: float) -> Result:
    """A result whose limit is moving `size` bytes at `ceiling` GB/s."""
    floor = size / ceiling / 1e3
    return Result(op, kernel, case, us, size / us / 1e3, "GB/s", floor, floor / us)


def arithmetic(op: str, kernel: str, case: str, us: float, flops: float, ceiling: float) -> Result:
    """A result whose limit is `flops` operations at `ceiling` TFLOP/s."""
    floor = flops / ceiling / 1e6
    return Result(op, kernel, case, us, flops / us / 1e6, "TFLOP/s", floor, floor / us)


def microseconds(calls: Sequence[Callable[[], object]], least_us: float = 300.0) -> float:
    """Median time of one call. `calls` use different data, in turn; they are captured in one
    graph, repeated until a replay lasts `least_us`, so that the host does not show."""
    stream = torch.cuda.Stream()
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
    times = []
    for _ in range(2):
        graph.replay()
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        graph.replay()
        end.record(stream)
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def sets_for(size: int, most: int = 64) -> int:
    """How many data sets of `size` bytes to rotate."""
    return max(1, min(most, -(-ROTATED_BYTES // size)))
