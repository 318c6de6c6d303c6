"""Which tensors a model needs, by the names that each container gives them.

The loader and the check before it use the same list, so nothing can be loaded that was not
expected and nothing expected can be left out. A part is what a tensor is to the model ("q.weight",
"router.bias"); a container spells each of them its own way, for some families in another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenspeed.checkpoint.kv_scales import scales_attention
from tokenspeed.errors import Problem, Where, some_of
from tokenspeed.plan import Attention, Dense, LatentAttention, Layer, Mixer, ModelConfig, Moe

Shape = tuple[int, ...]

# What checkpoints carry although it is computed: rotary tables of old Llama exports.
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class Names:
    """How a container spells parts. `layer` takes the layer's index. `parts` has whole parts
    ("router.bias") where one is spelt its own way, else what stands before the kind ("router");
    {} in it is the index of an expert. `stacked`: the experts of a layer share one tensor,
    [experts, in, out], the columns of gate and up in turn.
    """

    embedding: str
    final_norm: str
    head: str
    layer: str
    parts: Mapping[str, str]
    stacked: bool = False

    def of(self, index: int, part: str) -> str:
        """The tensor of one layer; {} is left where it has one for each expert."""
        stem, kind = part.rsplit(".", 1)
        return self.layer.format(index) + (self.parts.get(part) or f"{self.parts[stem]}.{kind}")


_HF_PARTS = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    "sinks.weight": "self_attn.sinks",
    "q_a": "self_attn.q_a_proj", "q_a_norm": "self_attn.q_a_layernorm",
    "q_b": "self_attn.q_b_proj", "kv_a": "self_attn.kv_a_proj_with_mqa",
    "kv_a_norm": "self_attn.kv_a_layernorm", "kv_b": "self_attn.kv_b_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "router": "mlp.gate", "selection.bias": "mlp.gate.e_score_correction_bias",
    "expert_gate": "mlp.experts.{}.gate_proj", "expert_up": "mlp.experts.{}.up_proj",
    "expert_down": "mlp.experts.{}.down_proj",
    "shared_gate": "mlp.shared_experts.gate_proj", "shared_up": "mlp.shared_experts.up_proj",
    "shared_down": "mlp.shared_experts.down_proj",
}  # fmt: skip
HF = Names("model.embed_tokens", "model.norm", "lm_head", "model.layers.{}.", _HF_PARTS)
_HF_FAMILIES: Mapping[str, tuple[Mapping[str, str], bool]] = {
    "mixtral": (
        {
            "router": "block_sparse_moe.gate",
            "expert_gate": "block_sparse_moe.experts.{}.w1",
            "expert_up": "block_sparse_moe.experts.{}.w3",
            "expert_down": "block_sparse_moe.experts.{}.w2",
        },
        False,
    ),
    "gpt_oss": (
        {
            "router": "mlp.router",
            "experts_gate_up.weight": "mlp.experts.gate_up_proj",
            "experts_gate_up.bias": "mlp.experts.gate_up_proj_bias",
            "experts_down.weight": "mlp.experts.down_proj",
            "experts_down.bias": "mlp.experts.down_proj_bias",
        },
        True,
    ),
}
GGUF = Names(
    "token_embd", "output_norm", "output", "blk.{}.",
    {
        "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate",
        "up": "ffn_up", "down": "ffn_down", "attn_norm": "attn_norm", "mlp_norm": "ffn_norm",
        "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    },
)  # fmt: skip


def names_of(container: str, family: str) -> Names:
    """The spelling of a family in a container. A model without files has that of safetensors."""
    if container == "gguf":
        return GGUF
    parts, stacked = _HF_FAMILIES.get(family, ({}, False))
    return Names(HF.embedding, HF.final_norm, HF.head, HF.layer, {**HF.parts, **parts}, stacked)


def hf_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor of a Hugging Face style checkpoint; matrices are [out, in]."""
    return named_tensors(config, names_of("safetensors", config.family))


def gguf_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor of a GGUF file."""
    return named_tensors(config, GGUF)


def named_tensors(config: ModelConfig, names: Names) -> dict[str, Shape]:
    """Name -> shape of every tensor that the model needs, in that spelling."""
    tensors: dict[str, Shape] = {
        f"{names.embedding}.weight": (config.vocab_size, config.hidden_size),
        f"{names.final_norm}.weight": (config.hidden_size,),
    }
    if not config.tie_embeddings:
        tensors[f"{names.head}.weight"] = (config.vocab_size, config.hidden_size)
    per_kind = {
        layer: tuple(layer_parts(layer, config.hidden_size, names.stacked))
        for layer, _ in config.kinds()
    }
    for index, layer in enumerate(config.sequence()):
        for part, shape in per_kind[layer]:
            name = names.of(index, part)
            copies = _experts(layer) if "{}" in name else 1
            tensors |= {name.replace("{}", str(copy)): shape for copy in range(copies)}
    return tensors


def has_known_names(config: ModelConfig) -> bool:
    """Whether this build knows the tensors of such a model by name."""
    return all(
        _known_mixer(layer.mixer)
        and (isinstance(layer.feed_forward, Dense) or _known_experts(layer.feed_forward))
        for layer, _ in config.kinds()
    )


def _known_mixer(mixer: Mixer) -> bool:
    if isinstance(mixer, LatentAttention):
        return mixer.rotary and not mixer.gated
    return isinstance(mixer, Attention) and not mixer.gated and mixer.qk_norm != "all"


def _known_experts(feed: Moe) -> bool:
    return feed.latent is None and not feed.shared_gate


def _experts(layer: Layer) -> int:
    assert isinstance(layer.feed_forward, Moe)
    return layer.feed_forward.experts


def layer_parts(layer: Layer, hidden: int, stacked: bool) -> Iterator[tuple[str, Shape]]:
    """The parts of a layer with their shapes in the files; those of one expert stand for all."""
    mixer, feed = layer.mixer, layer.feed_forward
    if isinstance(mixer, LatentAttention):
        yield from _latent(mixer, hidden)
    else:
        assert isinstance(mixer, Attention), "has_known_names was not asked"
        yield from _grouped(mixer, hidden)
    yield "attn_norm.weight", (hidden,)
    yield "mlp_norm.weight", (hidden,)
    if isinstance(feed, Dense):
        yield from _gated("", feed.inner, hidden, feed.bias)
    else:
        yield from _moe(feed, hidden, stacked)


def _product(part: str, out: int, width: int, bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{part}.weight", (out, width)
    if bias:
        yield f"{part}.bias", (out,)


def _grouped(mixer: Attention, hidden: int) -> Iterator[tuple[str, Shape]]:
    query, kv = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
    yield from _product("q", query, hidden, mixer.qkv_bias)
    yield from _product("k", kv, hidden, mixer.qkv_bias)
    yield from _product("v", kv, hidden, mixer.qkv_bias)
    yield from _product("o", hidden, query, mixer.o_bias)
    if mixer.qk_norm == "head":
        yield "q_norm.weight", (mixer.head_dim,)
        yield "k_norm.weight", (mixer.head_dim,)
    if mixer.sinks:
        yield "sinks.weight", (mixer.num_heads,)


def _latent(mixer: LatentAttention, hidden: int) -> Iterator[tuple[str, Shape]]:
    heads, query = mixer.num_heads, mixer.num_heads * (mixer.nope_dim + mixer.rope_dim)
    if mixer.q_rank is None:
        yield from _product("q", query, hidden, bias=False)
    else:
        yield from _product("q_a", mixer.q_rank, hidden, mixer.bias)
        yield "q_a_norm.weight", (mixer.q_rank,)
        yield from _product("q_b", query, mixer.q_rank, bias=False)
    yield from _product("kv_a", mixer.kv_rank + mixer.rope_dim, hidden, mixer.bias)
    yield "kv_a_norm.weight", (mixer.kv_rank,)
    yield from _product("kv_b", heads * (mixer.nope_dim + mixer.value_dim), mixer.kv_rank, False)
    yield from _product("o", hidden, heads * mixer.value_dim, mixer.bias)


def _gated(prefix: str, inner: int, hidden: int, bias: bool) -> Iterator[tuple[str, Shape]]:
    yield from _product(f"{prefix}gate", inner, hidden, bias)
    yield from _product(f"{prefix}up", inner, hidden, bias)
    yield from _product(f"{prefix}down", hidden, inner, bias)


def _moe(feed: Moe, hidden: int, stacked: bool) -> Iterator[tuple[str, Shape]]:
    yield from _product("router", feed.experts, hidden, feed.router_bias)
    if feed.selection_bias:
        yield "selection.bias", (feed.experts,)
    if stacked:
        yield "experts_gate_up.weight", (feed.experts, hidden, 2 * feed.inner)
        yield "experts_down.weight", (feed.experts, feed.inner, hidden)
        if feed.expert_bias:
            yield "experts_gate_up.bias", (feed.experts, 2 * feed.inner)
            yield "experts_down.bias", (feed.experts, hidden)
    else:
        yield from _gated("expert_", feed.inner, hidden, feed.expert_bias)
    if feed.shared_inner:
        yield from _gated("shared_", feed.shared_inner, hidden, bias=False)


def is_ignored(name: str, config: ModelConfig) -> bool:
    """Whether a tensor that the model does not need may lie in its files: computed tables, the
    output matrix of a model whose output is tied to the embedding, scales of a float8 cache, and
    layers that draft."""
    tied = config.tie_embeddings and name == "lm_head.weight"
    beside = name.endswith(IGNORED_SUFFIXES) or scales_attention(name)
    return tied or beside or _drafts(name, config)


def _drafts(name: str, config: ModelConfig) -> bool:
    found = re.match(r"model\.layers\.(\d+)\.", name)
    first = config.num_layers
    return found is not None and first <= int(found[1]) < first + config.draft_layers


def compare(
    expected: Mapping[str, Shape], found: Mapping[str, Shape], config: ModelConfig, where: Where
) -> list[Problem]:
    """Every difference between what the model needs and what its files hold."""
    lost = sorted(set(expected) - set(found))
    extra = sorted(name for name in set(found) - set(expected) if not is_ignored(name, config))
    problems: list[Problem] = []
    if lost:
        message = f"the files lack {len(lost)} of {len(expected)} tensors: {some_of(lost)}"
        problems.append(Problem(code="TS-W040", message=message, where=where, hint=_HINT))
    if extra:
        message = f"the files hold tensors that the model has no place for: {some_of(extra)}"
        problems.append(Problem(code="TS-W041", message=message, where=where, hint=_HINT))
    for name in sorted(set(expected) & set(found)):
        if expected[name] != found[name]:
            message = (
                f"tensor {name} is {list(found[name])}, the config makes it {list(expected[name])}"
            )
            problems.append(Problem(code="TS-W042", message=message, where=where, hint=_HINT))
    return problems


_HINT = "config and weights are of different models or revisions; fetch both again"
