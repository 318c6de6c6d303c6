"""Which experts a measurement reads: recorded, and evenly chosen where it asks for that.

With random weights some experts are chosen far more often than others, and not by every engine
alike; how many different ones a step reads decides what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenspeed_kernels.moe.op import Route, Routing

from tokenspeed.errors import Problem, UsageError
from tokenspeed.layers.kernels import Kernels, MoeKernels
from tokenspeed.plan import KernelChoice, Moe, Plan

# Rows of random scores from one layer's first to the next one's.
_APART = 131


class Routes:
    """Stands between the layers and the kernel that chooses experts. `uniform`: the choice follows
    random scores instead of the router's, the same for a row in every step, among the first so many
    experts of a layer, 0 for all; None for the router's. Raises UsageError where a token passes
    more."""

    def __init__(self, plan: Plan, uniform: int | None) -> None:
        layers = [layer.feed_forward for layer in plan.model.config.sequence()]
        experts = [feed.experts for feed in layers if isinstance(feed, Moe)]
        self._scores: torch.Tensor | None = None
        if uniform is not None and experts:
            least = max(feed.top_k for feed in layers if isinstance(feed, Moe))
            if 0 < uniform < least:
                message = f"a token passes {least} experts: --uniform-experts {uniform} is too few"
                raise UsageError(Problem(code="TS-B003", message=message, hint=f"{least} or more"))
            rows = plan.scheduler.max_step_tokens + _APART * len(experts)
            self._scores = torch.rand(rows, max(experts), device=torch.device(plan.device.kind))
            if uniform:
                # Scores are 0 to 1.
                self._scores[:, uniform:] = -1.0
        self._chosen: list[dict[int, torch.Tensor]] = []

    def kernels(self, choices: Sequence[KernelChoice]) -> Kernels:
        return _Recorded(choices, self)

    def recorded(self, route: Route) -> Route:
        """`route` for one layer more."""
        layer = len(self._chosen)
        chosen: dict[int, torch.Tensor] = {}
        self._chosen.append(chosen)

        def routed(
            logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
        ) -> tuple[torch.Tensor, torch.Tensor]:
            if self._scores is not None:
                first, (rows, experts) = layer * _APART, logits.shape[-2:]
                logits, bias = self._scores[first : first + rows, :experts].contiguous(), None
            weights, experts_of = route(logits, bias, routing)
            # Of a captured graph the tensor that each replay fills.
            if not experts_of.is_cuda or torch.cuda.is_current_stream_capturing():
                chosen[len(experts_of)] = experts_of
            return weights, experts_of

        return routed

    def read(self, rows: int) -> float | None:
        """Different experts that the last step of so many rows (with padding) read, averaged over
        the layers; None where nothing was recorded."""
        if not self._chosen:
            return None
        counts = []
        for chosen in self._chosen:
            sizes = [size for size in chosen if size >= rows]
            if not sizes:
                return None
            counts.append(len(set(chosen[min(sizes)].flatten().tolist())))
        return sum(counts) / len(counts)


class _Recorded(Kernels):
    def __init__(self, choices: Sequence[KernelChoice], routes: Routes) -> None:
        super().__init__(choices)
        self._routes = routes

    def moe(self, weight_format: str) -> MoeKernels:
        route, experts = super().moe(weight_format)
        return MoeKernels(self._routes.recorded(route), experts)
