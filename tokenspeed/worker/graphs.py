"""Captured graphs of steps: from the uploaded arrays to the sampled tokens in one launch.

One graph per batch size for steps in which everybody decodes, one per number of tokens for those
with prompts beside or instead; a step takes the smallest that holds it, padded. All read the same
upload buffer and share one pool of memory: they run one after the other, and of what they compute
only the logits and the tokens are read afterwards, before the next step.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch

from tokenspeed.scheduler import Step
from tokenspeed.worker.inputs import Shape

# One step of a fixed shape, its inputs in place: logits float32 [S, V].
FixedStep = Callable[[], torch.Tensor]
Outcome = TypeVar("Outcome")
# Runs the steps once and returns when all their kernels are compiled.
CompileAll: TypeAlias = Callable[[Iterable[FixedStep]], Outcome]


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph and where it leaves its logits: valid until any graph runs again. `step` owns the
    memory that the graph uses besides."""

    graph: torch.cuda.CUDAGraph
    step: FixedStep
    logits: torch.Tensor

    def replay(self) -> None:
        self.graph.replay()


class Graphs:
    """The graphs by shape; none of them before `capture`.

    `batch_sizes` of steps that decode, `token_counts` of the others, `max_running` rows at most.
    """

    def __init__(
        self, batch_sizes: Sequence[int], token_counts: Sequence[int], max_running: int
    ) -> None:
        self._decodes = [Shape(size, 0, size, size) for size in sorted(batch_sizes)]
        self._others = [
            Shape(max_running, max_running, count, max_running) for count in sorted(token_counts)
        ]
        self._captured: dict[Shape, Captured] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._decodes) + len(self._others)

    def compile(
        self,
        prepare: Callable[[Shape], FixedStep],
        compile_all: CompileAll[Outcome],
        besides: Sequence[Callable[[], FixedStep]] = (),
    ) -> Outcome:
        """Compiles what the graphs launch, all of it at once. The steps are those of `prepare`;
        `besides` give more of them."""
        steps = (prepare(shape) for shape in (*self._others, *self._decodes))
        return compile_all(itertools.chain(steps, (give() for give in besides)))

    def capture(
        self,
        prepare: Callable[[Shape], FixedStep],
        warm_up: Callable[[Shape], FixedStep],
        progress: Callable[[int, int], None],
    ) -> None:
        """Captures the step that `prepare` gives for every shape, the largest first: the others
        fit into its memory.

        What `warm_up` gives is run once before each, so that libraries are set up and kernels on
        the device: it launches all that the step does.
        """
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        shapes = sorted((*self._decodes, *self._others), key=lambda shape: -shape.tokens)
        for done, shape in enumerate(shapes, start=1):
            self._captured[shape] = _captured(prepare(shape), warm_up(shape), stream, pool)
            progress(done, len(shapes))
        torch.cuda.synchronize()
        # The runs before the captures had memory of their own.
        torch.cuda.empty_cache()
        self.bytes = max(0, before - torch.cuda.mem_get_info()[0])

    def shape(self, step: Step) -> Shape | None:
        """That of the graph for this step; None where it must be launched kernel by kernel, for
        it has too many tokens."""
        if step.num_samples == step.num_tokens == step.num_rows:
            place = bisect_left(self._decodes, step.num_rows, key=lambda shape: shape.tokens)
            if place < len(self._decodes):
                return self._decodes[place]
        place = bisect_left(self._others, step.num_tokens, key=lambda shape: shape.tokens)
        return self._others[place] if place < len(self._others) else None

    def __getitem__(self, shape: Shape) -> Captured:
        return self._captured[shape]


def _captured(
    step: FixedStep, warm_up: FixedStep, stream: torch.cuda.Stream, pool: Any
) -> Captured:
    # Not by torch.cuda.graph, which gives all free memory back to the driver each time.
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        warm_up()
        stream.synchronize()
        graph.capture_begin(pool=pool)
        try:
            logits = step()
        finally:
            graph.capture_end()
    return Captured(graph, step, logits)
