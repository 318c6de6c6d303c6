"""Linear layers: y = x W^T + bias, the weight bound once at load."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from tokenspeed_kernels.weight import RawWeight


class Quantised(NamedTuple):
    """`rows` [T, D]; where somebody made it, the same as `float8` (e4m3) [T, D] times float32
    `scales` [T, 1]."""

    rows: torch.Tensor
    float8: torch.Tensor | None = None
    scales: torch.Tensor | None = None


class Unnormed(NamedTuple):
    """A row whose norm its first reader makes (`NormsItself`), as `norm/op.py`'s AddRmsNorm does,
    but that the sum goes to `total`: `branch` [1, D], or its float32 parts [parts, 1, D], beside
    `residual` [1, D], by `weight` [D]. That reader leaves the norm in `rows` [1, D]."""

    branch: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor
    eps: float
    total: torch.Tensor
    rows: torch.Tensor


class Linear(Protocol):
    """Built with the weight [out, in] and a bias [out] or None; may repack and then does not
    keep the raw data. Called with `x` [T, in] gives a new [T, out] in `out_dtype`, which is the
    dtype of `x` where left out (the output projection asks for float32)."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None: ...

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor: ...


@runtime_checkable
class LinearInParts(Protocol):
    """A `Linear` that may leave the last step to the kernel that reads its result."""

    def parts(
        self, x: torch.Tensor | Quantised, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """The product as `Linear` gives it, or as float32 [parts, T, out] that are still to be
        added up, in their order."""
        ...


@runtime_checkable
class ReadsFloat8(Protocol):
    """A product whose `x` may be `Quantised` too."""

    @property
    def float8_from(self) -> int | None:
        """The fewest rows of which it has a use for that, and would else make it itself; None: it
        never has."""
        ...


@runtime_checkable
class NormsItself(Protocol):
    """A product whose `x` may be `Unnormed` too."""

    @property
    def norms_itself(self) -> bool:
        """Whether it was made for such a row."""
        ...


class LinearSiluMul(Protocol):
    """A product and its activation. Built with the weight [2 I, in], gate first, and a bias [2 I]
    or None. Called with `x` [T, in] gives a new [T, I] of its dtype: silu(gate) * up."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...
