"""Which tensors a model needs, by the names that each container gives them.

The loader and the check before it use the same list, so nothing can be loaded that was not
expected and nothing expected can be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenspeed.errors import Problem, Where
from tokenspeed.plan import Attention, Dense, Layer, ModelConfig

Shape = tuple[int, ...]

# What checkpoints carry although it is computed: rotary tables of old Llama exports.
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)


def hf_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor of a Hugging Face style checkpoint; matrices are [out, in]."""
    tensors: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tie_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    names = {
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
        "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
        "down": "mlp.down_proj", "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    }  # fmt: skip
    return tensors | _layers(config, "model.layers.{}.", names)


def gguf_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor of a GGUF file."""
    tensors: dict[str, Shape] = {
        "token_embd.weight": (config.vocab_size, config.hidden_size),
        "output_norm.weight": (config.hidden_size,),
    }
    if not config.tie_embeddings:
        tensors["output.weight"] = (config.vocab_size, config.hidden_size)
    names = {
        "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate",
        "up": "ffn_up", "down": "ffn_down", "attn_norm": "attn_norm", "ffn_norm": "ffn_norm",
        "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    }  # fmt: skip
    return tensors | _layers(config, "blk.{}.", names)


def _layers(config: ModelConfig, prefix: str, names: Mapping[str, str]) -> dict[str, Shape]:
    per_kind = {layer: tuple(_layer(layer, config.hidden_size)) for layer, _ in config.kinds()}
    return {
        f"{prefix.format(index)}{names[part]}.{kind}": shape
        for index, layer in enumerate(config.sequence())
        for (part, kind), shape in per_kind[layer]
    }


def has_known_names(config: ModelConfig) -> bool:
    """Whether this build knows the tensors of such a model by name."""
    return all(
        isinstance(layer.mixer, Attention)
        and isinstance(layer.feed_forward, Dense)
        and not (layer.mixer.sinks or layer.mixer.gated or layer.mixer.qk_norm == "all")
        for layer, _ in config.kinds()
    )


def _layer(layer: Layer, hidden: int) -> Iterator[tuple[tuple[str, str], Shape]]:
    mixer, feed = layer.mixer, layer.feed_forward
    assert isinstance(mixer, Attention), "has_known_names was not asked"
    assert isinstance(feed, Dense), "has_known_names was not asked"
    query = mixer.num_heads * mixer.head_dim
    kv = mixer.num_kv_heads * mixer.head_dim
    matrices = {
        "q": ((query, hidden), mixer.qkv_bias),
        "k": ((kv, hidden), mixer.qkv_bias),
        "v": ((kv, hidden), mixer.qkv_bias),
        "o": ((hidden, query), mixer.o_bias),
        "gate": ((feed.inner, hidden), feed.bias),
        "up": ((feed.inner, hidden), feed.bias),
        "down": ((hidden, feed.inner), feed.bias),
    }
    for part, (shape, bias) in matrices.items():
        yield (part, "weight"), shape
        if bias:
            yield (part, "bias"), shape[:1]
    yield ("attn_norm", "weight"), (hidden,)
    yield ("ffn_norm", "weight"), (hidden,)
    if mixer.qk_norm == "head":
        yield ("q_norm", "weight"), (mixer.head_dim,)
        yield ("k_norm", "weight"), (mixer.head_dim,)


def is_ignored(name: str, config: ModelConfig) -> bool:
    """Whether a tensor that the model does not need may lie in its files: computed tables, and
    the output matrix of a model whose output is tied to the embedding."""
    tied = config.tie_embeddings and name == "lm_head.weight"
    return tied or name.endswith(IGNORED_SUFFIXES)


def compare(
    expected: Mapping[str, Shape], found: Mapping[str, Shape], config: ModelConfig, where: Where
) -> list[Problem]:
    """Every difference between what the model needs and what its files hold."""
    lost = sorted(set(expected) - set(found))
    extra = sorted(name for name in set(found) - set(expected) if not is_ignored(name, config))
    problems: list[Problem] = []
    if lost:
        message = f"the files lack {len(lost)} of {len(expected)} tensors: {_some(lost)}"
        problems.append(Problem(code="TS-W040", message=message, where=where, hint=_HINT))
    if extra:
        message = f"the files hold tensors that the model has no place for: {_some(extra)}"
        problems.append(Problem(code="TS-W041", message=message, where=where, hint=_HINT))
    for name in sorted(set(expected) & set(found)):
        if expected[name] != found[name]:
            message = (
                f"tensor {name} is {list(found[name])}, the config makes it {list(expected[name])}"
            )
            problems.append(Problem(code="TS-W042", message=message, where=where, hint=_HINT))
    return problems


_HINT = "config and weights are of different models or revisions; fetch both again"


def _some(names: list[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
