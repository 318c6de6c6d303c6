"""Mixture of experts: which experts a token goes to, and what they compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tokenspeed_kernels.weight import RawWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How `top_k` of the experts are chosen from a token's logits.

    `scoring`: "softmax" over all experts, "topk_softmax" over the chosen ones alone, or "sigmoid".
    The choice is by score plus the bias, where there is one; a weight is the score alone.
    Experts lie in `groups`; only those of the `top_groups` best are eligible, a group being as
    good as its best expert, or where there is a bias as its best two together. `renormalise`: the
    weights are made to sum to 1; then all are multiplied by `scale`.
    """

    top_k: int
    scoring: str
    renormalise: bool
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1


class Route(Protocol):
    """`logits` float32 [T, E], for a kernel that adds them up also parts of them [parts, T, E], and
    `bias` float32 [E] or None to weights float32 [T, k] and the experts' indexes int32 [T, k], the
    best first."""

    def __call__(
        self, logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


@dataclass(frozen=True, slots=True)
class Shared:
    """What every token passes beside its experts: `compute` makes a new [T, D] of `x` [T, D]. It is
    down(silu(gate(x)) * up(x)) with `gate_up` [2 S, D], gate first, and `down` [D, S], which a
    kernel may read itself instead."""

    gate_up: RawWeight
    down: RawWeight
    compute: Callable[[torch.Tensor], torch.Tensor]


class Experts(Protocol):
    """The experts of a layer: y = sum_k w_k down_k(act(gate_k(x), up_k(x))) + shared(x).

    Built with `gate_up` [E * 2 I, D], for each expert its gate rows and then its up rows, `down`
    [E * D, I], and biases [E * 2 I], [E * D] or None; may repack and then does not keep the raw
    data. act(g, u) = silu(g) u; with a `clamp` c it is (min(max(u, -c), c) + 1) g' sigmoid(1.702
    g') for g' = min(g, c). Called with `x` [T, D] and what `Route` gave, makes a new [T, D].
    """

    def __init__(
        self,
        gate_up: RawWeight,
        down: RawWeight,
        num_experts: int,
        gate_up_bias: torch.Tensor | None,
        down_bias: torch.Tensor | None,
        clamp: float | None,
        shared: Shared | None = None,
    ) -> None: ...

    def __call__(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor: ...


@runtime_checkable
class ExpertsInParts(Protocol):
    """`Experts` that may leave the last step to the kernel that reads their result."""

    def parts(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """The same as a new [T, D] of the dtype of `x`, or as float32 [parts, T, D] that are still
        to be added up, in their order."""
        ...
