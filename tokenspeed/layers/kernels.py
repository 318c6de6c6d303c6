"""The kernels that the plan chose, imported by name. Nothing is selected here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tokenspeed_kernels import registry

from tokenspeed.plan import KernelChoice

if TYPE_CHECKING:
    from tokenspeed_kernels.activation.op import SiluMul
    from tokenspeed_kernels.attention.op import PagedAttention
    from tokenspeed_kernels.embedding.op import Embedding
    from tokenspeed_kernels.gemm.op import Linear, LinearSiluMul
    from tokenspeed_kernels.latent.op import LatentAttention, LatentExtend, LatentKvWrite
    from tokenspeed_kernels.moe.op import Experts, Route
    from tokenspeed_kernels.norm.op import AddRmsNorm, AddRmsNormFloat8, RmsNorm
    from tokenspeed_kernels.rope.op import RopeKvWrite
    from tokenspeed_kernels.sampling.op import LogSoftmaxTopk, Sample


class LatentKernels(NamedTuple):
    """What latent attention is made of; `extend` None: every query is absorbed."""

    kv_write: LatentKvWrite
    attend: LatentAttention
    extend: LatentExtend | None


class MoeKernels(NamedTuple):
    """What a mixture of experts is made of."""

    route: Route
    experts: type[Experts]


class Kernels:
    """Kernels by op. Each call imports the one implementation that the plan names.

    Raises KeyError for an op that the plan has no choice for.
    """

    def __init__(self, choices: Sequence[KernelChoice]) -> None:
        self._names = {(choice.op, choice.variant): choice.kernel for choice in choices}
        self.fusions = Fusions(self._names)

    def linear(self, weight_format: str) -> type[Linear]:
        return cast("type[Linear]", self._load("linear", weight_format))

    def embedding(self, weight_format: str) -> type[Embedding]:
        return cast("type[Embedding]", self._load("embedding", weight_format))

    def rms_norm(self) -> RmsNorm:
        return cast("RmsNorm", self._load("rms_norm"))

    def add_rms_norm(self) -> AddRmsNorm:
        return cast("AddRmsNorm", self._load("add_rms_norm"))

    def silu_mul(self) -> SiluMul:
        return cast("SiluMul", self._load("silu_mul"))

    def rope_kv_write(self) -> RopeKvWrite:
        return cast("RopeKvWrite", self._load("rope_kv_write"))

    def paged_attention(self) -> PagedAttention:
        return cast("PagedAttention", self._load("paged_attention"))

    def has(self, op: str) -> bool:
        """Whether the plan has a kernel for an op that others can stand in for."""
        return (op, "") in self._names

    def bound(self, op: str) -> Callable[..., Any] | None:
        """The chosen kernel in the form that is bound to a shape of batch; None: it has none."""
        return registry.load_bound(self._name(op))

    def is_ordered(self, op: str) -> bool:
        """Whether the chosen kernel's sums keep one order whatever the batch."""
        return registry.is_ordered(self._name(op))

    def latent(self) -> LatentKernels:
        return LatentKernels(
            cast("LatentKvWrite", self._load("latent_kv_write")),
            cast("LatentAttention", self._load("latent_attention")),
            cast("LatentExtend", self._load("latent_extend"))
            if self.has("latent_extend")
            else None,
        )

    def moe(self, weight_format: str) -> MoeKernels:
        return MoeKernels(
            cast("Route", self._load("route")),
            cast("type[Experts]", self._load("experts", weight_format)),
        )

    def sample(self) -> Sample:
        return cast("Sample", self._load("sample"))

    def log_softmax_topk(self) -> LogSoftmaxTopk:
        return cast("LogSoftmaxTopk", self._load("log_softmax_topk"))

    def _load(self, op: str, variant: str = "") -> object:
        return registry.load(self._name(op, variant))

    def _name(self, op: str, variant: str = "") -> str:
        name = self._names.get((op, variant))
        if name is None:
            raise KeyError(f"the plan has no kernel for {op} {variant}".rstrip())
        return name


class Fusions:
    """Ops that stand for several, and kernels that do the last step of the one before them.

    `names`: kernels by op and variant."""

    def __init__(self, names: Mapping[tuple[str, str], str]) -> None:
        self._names = names

    def linear_silu_mul(self, weight_format: str) -> type[LinearSiluMul] | None:
        """None: the plan has no kernel for it."""
        name = self._names.get(("linear_silu_mul", weight_format))
        return cast("type[LinearSiluMul]", registry.load(name)) if name else None

    def add_rms_norm_float8(self) -> AddRmsNormFloat8 | None:
        """The chosen norm with its result in float8 too; None: it has no such form."""
        return registry.load_float8(self._names["add_rms_norm", ""])

    def takes_parts(self, op: str) -> bool:
        """Whether the kernel of `op` adds up the parts of its first argument."""
        return registry.takes_parts(self._names[op, ""])
