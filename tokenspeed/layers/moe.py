"""A mixture of experts: route, compute the chosen experts, add what every token passes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tokenspeed_kernels.gemm.op import Unnormed
from tokenspeed_kernels.moe.op import ExpertsInParts, Routing, Shared

from tokenspeed import plan
from tokenspeed.layers.expert_load import ExpertLoad
from tokenspeed.layers.kernels import Kernels
from tokenspeed.layers.linear import linear_before, norms_itself
from tokenspeed.layers.mlp import Mlp
from tokenspeed.weights.parameter import Weights


class Moe:
    """The mixture of experts of one layer, bound to its weights. `load` hears what is chosen."""

    float8_from = None

    def __init__(
        self,
        facts: plan.Moe,
        weights: Weights,
        prefix: str,
        kernels: Kernels,
        load: ExpertLoad | None = None,
    ) -> None:
        gate_up = weights.take(f"{prefix}experts.gate_up")
        self._router = linear_before("route", weights, f"{prefix}router", kernels)
        self.norms_itself = norms_itself(self._router)
        self._route, experts = kernels.moe(gate_up.format)
        self._load = load
        self._selection_bias = weights.vectors.get(f"{prefix}selection.bias")
        self._routing = Routing(
            top_k=facts.top_k,
            scoring=facts.scoring,
            renormalise=facts.renormalise,
            scale=facts.scale,
            groups=facts.groups,
            top_groups=facts.top_groups,
        )
        shared = None
        if facts.shared_inner:
            name = f"{prefix}shared."
            shared = Shared(
                weights.matrices[f"{name}gate_up"],
                weights.matrices[f"{name}down"],
                Mlp(weights, name, kernels),
            )
        made = experts(
            gate_up,
            weights.take(f"{prefix}experts.down"),
            facts.experts,
            weights.vectors.get(f"{prefix}experts.gate_up.bias"),
            weights.vectors.get(f"{prefix}experts.down.bias"),
            facts.clamp,
            shared,
        )
        self._experts: Callable[..., torch.Tensor] = made
        if isinstance(made, ExpertsInParts) and kernels.fusions.takes_parts("add_rms_norm"):
            self._experts = made.parts

    def __call__(self, x: torch.Tensor | Unnormed) -> torch.Tensor:
        """[T, hidden] to [T, hidden], or to parts of it that `add_rms_norm` adds up."""
        logits = self._router(x, out_dtype=torch.float32)
        if isinstance(x, Unnormed):
            x = x.rows
        weights, experts = self._route(logits, self._selection_bias, self._routing)
        if self._load is not None:
            self._load.chose(experts)
        return self._experts(x, weights, experts)
