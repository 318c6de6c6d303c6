"""One rank's share of a model: its tensors, and their bytes in the formats that are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tokenspeed.checkpoint.formats import matrix_bytes
from tokenspeed.checkpoint.inventory import (
    ATTENTION,
    DENSE,
    EMBEDDING,
    EXPERTS,
    GROUPS,
    ROUTER,
    SHARED,
    VECTORS,
    Tensor,
    model_tensors,
)
from tokenspeed.plan import (
    Attention,
    ModelConfig,
    ParallelPlan,
    WeightFormat,
    WeightGroup,
)

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1}
# Groups whose products are the op `linear`.
LINEAR_GROUPS = (ATTENTION, DENSE, SHARED)


@dataclass(frozen=True, slots=True)
class Formats:
    """The format of each group of matrices; vectors are in `vectors`, a dtype."""

    groups: tuple[tuple[str, WeightFormat], ...]
    vectors: str

    @staticmethod
    def of(
        linear: WeightFormat, embedding: WeightFormat, vectors: str, **other: WeightFormat
    ) -> Formats:
        """`linear` wherever nothing else is said; `other` by the first word of a group's name."""
        groups = dict.fromkeys(GROUPS[:-1], linear) | {EMBEDDING: embedding}
        groups[ROUTER] = WeightFormat(vectors)
        groups |= {group: other[word] for group in groups if (word := group.split()[0]) in other}
        return Formats(tuple(groups.items()), vectors)

    def __getitem__(self, group: str) -> WeightFormat:
        return dict(self.groups)[group]

    @property
    def linear(self) -> WeightFormat:
        return self[ATTENTION]

    @property
    def embedding(self) -> WeightFormat:
        return self[EMBEDDING]

    def bytes(self, tensor: Tensor) -> int:
        if tensor.vector:
            return tensor.elements * DTYPE_BYTES["float32" if tensor.exact else self.vectors]
        return tensor.copies * matrix_bytes(self[tensor.group], tensor.out, tensor.width)


@dataclass(frozen=True, slots=True)
class Shard:
    """The rank that holds most of `config` under `parallel`."""

    config: ModelConfig
    parallel: ParallelPlan

    @staticmethod
    def over(config: ModelConfig, tp: int) -> Shard:
        """Everything split over `tp` ranks."""
        parallel = ParallelPlan(
            attention_tp=tp, attention_dp=1, world_size=tp, dense_tp=tp, expert_tp=tp
        )
        return Shard(config, parallel)

    def share(self, tensor: Tensor) -> Tensor:
        """What this rank holds of a tensor of the model."""
        parallel = self.parallel
        if tensor.group in (DENSE, SHARED):
            return tensor.share(parallel.dense_tp)
        if tensor.group == EXPERTS:
            return tensor.share(parallel.expert_tp, parallel.expert_ep)
        return tensor.share(parallel.attention_tp)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.share(tensor) for tensor in model_tensors(self.config))

    def attentions(self) -> tuple[Attention, ...]:
        """The different grouped-query mixers, in order of first occurrence."""
        found = [layer.mixer for layer, _ in self.config.kinds()]
        return tuple(dict.fromkeys(mixer for mixer in found if isinstance(mixer, Attention)))

    def input_widths(self) -> tuple[int, ...]:
        """Input axes of the layers' products on this rank, ascending, each once."""
        widths = {t.width for t in self.tensors() if t.group in LINEAR_GROUPS and not t.vector}
        return tuple(sorted(widths))


def weight_groups(shard: Shard, formats: Formats) -> tuple[WeightGroup, ...]:
    """The model by parts, with exact bytes."""
    groups: dict[str, WeightGroup] = {}
    for tensor in model_tensors(shard.config):
        name = VECTORS if tensor.vector else tensor.group
        kept = WeightFormat(formats.vectors) if tensor.vector else formats[name]
        known = groups.get(name) or WeightGroup(
            name=name, format=kept, parameters=0, bytes=0, rank_bytes=0
        )
        groups[name] = replace(
            known,
            parameters=known.parameters + tensor.elements,
            bytes=known.bytes + formats.bytes(tensor),
            rank_bytes=known.rank_bytes + formats.bytes(shard.share(tensor)),
        )
    return tuple(groups[name] for name in GROUPS if name in groups)


def weight_bytes(shard: Shard, formats: Formats) -> int:
    """Exact bytes of the weights of one rank."""
    return sum(formats.bytes(tensor) for tensor in shard.tensors())
