"""Captured graphs of decode steps: from the uploaded arrays to the sampled tokens in one launch.

One graph per batch size of the plan; a step takes the smallest that holds its rows, padded. All
read the same upload buffer and share one pool of memory: they run one after the other, and of what
they compute only the logits and the tokens are read afterwards, before the next step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tokenspeed.scheduler import Step

# One step of a fixed size, its inputs in place: logits float32 [B, V] and tokens int32 [B].
DecodeStep = Callable[[], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph and where it leaves its results: valid until any graph runs again. `step` owns the
    memory that the graph uses besides."""

    graph: torch.cuda.CUDAGraph
    step: DecodeStep
    logits: torch.Tensor
    tokens: torch.Tensor

    def replay(self) -> None:
        self.graph.replay()


class DecodeGraphs:
    """The graphs by batch size; none of them before `capture`."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sorted(sizes)
        self._captured: dict[int, Captured] = {}
        self.bytes = 0

    def capture(
        self, prepare: Callable[[int], DecodeStep], progress: Callable[[int, int], None]
    ) -> None:
        """Captures the step that `prepare` gives for every size, the largest first: the
        others fit into its memory.

        Each is run twice before, so that kernels are compiled and libraries set up.
        """
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        for done, size in enumerate(reversed(self._sizes), start=1):
            step = prepare(size)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                for _ in range(2):
                    step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                logits, tokens = step()
            self._captured[size] = Captured(graph, step, logits, tokens)
            progress(done, len(self._sizes))
        torch.cuda.synchronize()
        self.bytes = max(0, before - torch.cuda.mem_get_info()[0])

    def bucket(self, step: Step) -> int | None:
        """The size of the graph for this step; None where it must be launched kernel by kernel:
        a row is not one token that is followed by a sampled one, or there are too many."""
        if not step.num_samples == step.num_tokens == step.num_rows:
            return None
        place = bisect_left(self._sizes, step.num_rows)
        return self._sizes[place] if place < len(self._sizes) else None

    def __getitem__(self, size: int) -> Captured:
        return self._captured[size]
