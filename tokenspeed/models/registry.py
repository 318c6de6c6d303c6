"""Every parameter of the one decoder, joined from the parts of the model.

How a container spells the parts is in `checkpoint.tensors`: a new family of known shape is a line
there, not a class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenspeed.checkpoint.inventory import (
    ATTENTION,
    DENSE,
    EMBEDDING,
    EXPERTS,
    HEAD,
    ROUTER,
    SHARED,
)
from tokenspeed.checkpoint.tensors import Names, layer_parts, named_tensors, names_of
from tokenspeed.plan import Attention, LatentAttention, Layer, ModelConfig, Moe, WeightFormat
from tokenspeed.weights.parameter import Matrix, Parameter, Part, Vector

Shape = tuple[int, ...]
Kept = Mapping[str, WeightFormat]

# Families whose q and k rows a GGUF file stores as adjacent rotary pairs.
_GGUF_PAIRED = frozenset({"llama"})
# Each matrix of a layer: its group, and the parts whose rows it joins.
_JOINED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "qkv": (ATTENTION, ("q", "k", "v")),
    "qkv_a": (ATTENTION, ("q_a", "kv_a")),
    "q_b": (ATTENTION, ("q_b",)),
    "kv_b": (ATTENTION, ("kv_b",)),
    "o": (ATTENTION, ("o",)),
    "gate_up": (DENSE, ("gate", "up")),
    "down": (DENSE, ("down",)),
    "router": (ROUTER, ("router",)),
    "experts.gate_up": (EXPERTS, ("expert_gate", "expert_up")),
    "experts.down": (EXPERTS, ("expert_down",)),
    "shared.gate_up": (SHARED, ("shared_gate", "shared_up")),
    "shared.down": (SHARED, ("shared_down",)),
}
_STACKED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "experts.gate_up": (EXPERTS, ("experts_gate_up",)),
    "experts.down": (EXPERTS, ("experts_down",)),
}
_VECTORS = {
    "attn_norm": "attn_norm.weight", "mlp_norm": "mlp_norm.weight", "q_norm": "q_norm.weight",
    "k_norm": "k_norm.weight", "q_a_norm": "q_a_norm.weight", "kv_a_norm": "kv_a_norm.weight",
    "sinks": "sinks.weight", "selection.bias": "selection.bias",
}  # fmt: skip
# A choice of experts hangs on differences that bfloat16 would round away.
_EXACT = frozenset({"selection.bias"})


def parameters(config: ModelConfig, container: str, formats: Kept) -> tuple[Parameter, ...]:
    """Every parameter of the decoder, in the order in which layers run.

    `formats` has the format of each group of matrices that the model has. A tied output
    projection is the embedding itself; an untied one is a linear layer like the others.
    """
    names = names_of(container, config.family)
    shapes = named_tensors(config, names)
    whole: list[Parameter] = [
        Matrix("embedding", _parts(shapes, f"{names.embedding}.weight"), formats[EMBEDDING])
    ]
    paired = container == "gguf" and config.family in _GGUF_PAIRED
    for index, layer in enumerate(config.sequence()):
        whole.extend(_Layer(layer, index, names, shapes, paired).parameters(config, formats))
    whole.append(Vector("final_norm", _parts(shapes, f"{names.final_norm}.weight")))
    if not config.tie_embeddings:
        whole.append(Matrix("head", _parts(shapes, f"{names.head}.weight"), formats[HEAD]))
    return tuple(whole)


class _Layer:
    """One layer's parameters, from its parts in one spelling."""

    def __init__(
        self,
        layer: Layer,
        index: int,
        names: Names,
        shapes: Mapping[str, Shape],
        paired: bool,
    ) -> None:
        self._layer = layer
        self._index = index
        self._names = names
        self._shapes = shapes
        self._paired = paired

    def parameters(self, config: ModelConfig, formats: Kept) -> Iterator[Parameter]:
        ours = f"layers.{self._index}."
        present = dict(layer_parts(self._layer, config.hidden_size, self._names.stacked))
        for name, part in _VECTORS.items():
            if part in present:
                yield Vector(ours + name, self._files((part,)), name in _EXACT)
        for name, (group, stems) in self._joined().items():
            for kind in ("weight", "bias"):
                parts = tuple(f"{stem}.{kind}" for stem in stems)
                if parts[0] not in present:
                    continue
                if kind == "weight":
                    yield Matrix(ours + name, self._files(parts), formats[group])
                else:
                    yield Vector(f"{ours}{name}.bias", self._files(parts))

    def _joined(self) -> Mapping[str, tuple[str, tuple[str, ...]]]:
        joined = {**_JOINED, **_STACKED} if self._names.stacked else dict(_JOINED)
        mixer = self._layer.mixer
        if isinstance(mixer, LatentAttention):
            del joined["qkv"]
            if mixer.q_rank is None:
                joined["qkv_a"] = (ATTENTION, ("q", "kv_a"))
        return joined

    def _files(self, parts: tuple[str, ...]) -> tuple[Part, ...]:
        """The tensors of the parts in turn; of experts, all of the first one, then the next's."""
        names = [self._names.of(self._index, part) for part in parts]
        copies = 1
        if "{}" in names[0]:
            assert isinstance(self._layer.feed_forward, Moe)
            copies = self._layer.feed_forward.experts
        return tuple(
            self._file(name.replace("{}", str(copy)), part)
            for copy in range(copies)
            for name, part in zip(names, parts, strict=True)
        )

    def _file(self, tensor: str, part: str) -> Part:
        heads, rows = self._pairs(part.split(".")[0])
        return Part(tensor, self._shapes[tensor], heads, rows)

    def _pairs(self, stem: str) -> tuple[int, int]:
        """Heads of a part that hold adjacent pairs, and how many of the last rows of each do
        (0: all)."""
        mixer, feed = self._layer.mixer, self._layer.feed_forward
        if isinstance(mixer, LatentAttention):
            heads = {"q": mixer.num_heads, "q_b": mixer.num_heads, "kv_a": 1}
            if stem in heads:
                return heads[stem], mixer.rope_dim
        elif self._paired and isinstance(mixer, Attention):
            heads = {"q": mixer.num_heads, "k": mixer.num_kv_heads}
            if stem in heads:
                return heads[stem], 0
        if stem == "experts_gate_up" and isinstance(feed, Moe):
            return feed.experts, 0
        return 0, 0


def _parts(shapes: Mapping[str, Shape], tensor: str) -> tuple[Part, ...]:
    return (Part(tensor, shapes[tensor]),)
