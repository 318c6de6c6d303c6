"""Families of models as data: which mixer and which feed-forward each layer of a config.json has.

A family fixes in code what its config.json does not say; that is all that differs between them.
A new one is a row of `FAMILIES`, and a function only where a mixer is spelt anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenspeed.checkpoint.reader import ConfigReader
from tokenspeed.checkpoint.rope import mscale
from tokenspeed.plan import (
    Attention,
    ChannelDelta,
    Dense,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    Mixer,
    Moe,
)

MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Family:
    """`mixers` and `feed_forwards` give one entry per layer. `rope_dim` is the width of a head
    that rotates at most, None where nothing rotates. `text` is the key below which the language
    model's own config lies, where there is one."""

    name: str
    mixers: Callable[[ConfigReader, int], list[Mixer]]
    feed_forwards: Callable[[ConfigReader, int], list[FeedForward]]
    rope_dim: Callable[[ConfigReader], int | None]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Grouped:
    """Mixers of grouped-query attention. A bias of None means that `attention_bias` decides;
    `head_dim` None means hidden / heads."""

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    qk_norm: str = "none"
    head_dim: int | None = None
    sinks: bool = False

    def __call__(self, reader: ConfigReader, layers: int) -> list[Mixer]:
        heads = reader.count("num_attention_heads")
        kv_heads = reader.count("num_key_value_heads", default=heads)
        if heads % kv_heads:
            reader.wrong(f"{heads} query heads do not share {kv_heads} kv heads evenly")
        bias = reader.flag("attention_bias")
        return [
            Attention(
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=self.width(reader),
                window=window,
                sinks=self.sinks,
                qk_norm=self.qk_norm,
                qkv_bias=bias if self.qkv_bias is None else self.qkv_bias,
                o_bias=bias if self.o_bias is None else self.o_bias,
            )
            for window in _windows(reader, layers)
        ]

    def width(self, reader: ConfigReader) -> int:
        heads = reader.count("num_attention_heads")
        usual = self.head_dim or max(1, reader.count("hidden_size") // heads)
        return reader.count("head_dim", default=usual)


def _windows(reader: ConfigReader, layers: int) -> list[int | None]:
    """The window of each layer, None for a layer that sees everything."""
    kinds = reader.words("layer_types", layers)
    if kinds is not None:
        known = {"full_attention", "sliding_attention"}
        for kind in sorted(set(kinds) - known):
            reader.wrong(f"layer_types has {kind!r}, which is unknown")
        sliding = [kind == "sliding_attention" for kind in kinds]
    elif not reader.flag("use_sliding_window", default=True) or not reader.config.get(
        "sliding_window"
    ):
        return [None] * layers
    else:
        # Layers from max_window_layers on have the window.
        first = reader.count_or_none("max_window_layers") or 0
        sliding = [index >= first for index in range(layers)]
    window = reader.count("sliding_window") if any(sliding) else None
    return [window if slides else None for slides in sliding]


def _minimax(reader: ConfigReader, layers: int) -> list[Mixer]:
    norm = "all" if reader.flag("use_qk_norm", default=True) else "none"
    return Grouped(qkv_bias=False, o_bias=False, qk_norm=norm)(reader, layers)


def _glm(reader: ConfigReader, layers: int) -> list[Mixer]:
    norm = "head" if reader.flag("use_qk_norm") else "none"
    return Grouped(o_bias=False, qk_norm=norm)(reader, layers)


def _latent(reader: ConfigReader) -> LatentAttention:
    if not reader.flag("rope_interleave", default=True):
        reader.wrong("rope_interleave is false; rotary pairs must be adjacent")
    return LatentAttention(
        num_heads=reader.count("num_attention_heads"),
        q_rank=reader.count_or_none("q_lora_rank"),
        kv_rank=reader.count("kv_lora_rank"),
        nope_dim=reader.count("qk_nope_head_dim"),
        rope_dim=reader.count("qk_rope_head_dim"),
        value_dim=reader.count("v_head_dim"),
        rotary=not reader.flag("mla_use_nope"),
        gated=reader.flag("mla_use_output_gate"),
        bias=reader.flag("attention_bias"),
        score_factor=_score_factor(reader),
    )


def _score_factor(reader: ConfigReader) -> float:
    """The square of YaRN's factor for all dimensions, where the family spells one."""
    for key in ("rope_parameters", "rope_scaling"):
        stretched = reader.config.get(key)
        if isinstance(stretched, Mapping) and stretched.get("mscale_all_dim"):
            weight = reader.number("mscale_all_dim", 0.0, stretched)
            return mscale(reader.number("factor", 1.0, stretched), weight) ** 2
    return 1.0


def _all_latent(reader: ConfigReader, layers: int) -> list[Mixer]:
    return [_latent(reader)] * layers


def _delta_hybrid(reader: ConfigReader, layers: int) -> list[Mixer]:
    """Gated delta nets with gated full attention at every n-th layer."""
    every = reader.count("full_attention_interval", default=4)
    usual = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    kinds = reader.words("layer_types", layers) or usual
    heads = reader.count("num_attention_heads")
    bias = reader.flag("attention_bias")
    full = Attention(
        num_heads=heads,
        num_kv_heads=reader.count("num_key_value_heads", default=heads),
        head_dim=reader.count("head_dim", default=256),
        gated=True,
        qk_norm="head",
        qkv_bias=bias,
        o_bias=bias,
    )
    linear = GatedDeltaNet(
        key_heads=reader.count("linear_num_key_heads"),
        value_heads=reader.count("linear_num_value_heads"),
        key_dim=reader.count("linear_key_head_dim"),
        value_dim=reader.count("linear_value_head_dim"),
        conv_width=reader.count("linear_conv_kernel_dim"),
    )
    return [full if kind == "full_attention" else linear for kind in kinds]


def _channel_hybrid(reader: ConfigReader, layers: int) -> list[Mixer]:
    """Channel-wise delta nets with latent attention at the layers that the config lists, which
    are counted from 1."""
    linear = reader.nested("linear_attn_config")
    full = linear.indices("full_attn_layers")
    if full | linear.indices("kda_layers") != frozenset(range(1, layers + 1)):
        reader.wrong("linear_attn_config does not name each layer once")
    delta = ChannelDelta(
        num_heads=linear.count("num_heads"),
        head_dim=linear.count("head_dim"),
        conv_width=linear.count("short_conv_kernel_size"),
        full_gate=linear.flag("use_full_rank_gate"),
    )
    latent = _latent(reader)
    return [latent if index + 1 in full else delta for index in range(layers)]


def _dense(mlp_bias: bool) -> Callable[[ConfigReader, int], list[FeedForward]]:
    def read(reader: ConfigReader, layers: int) -> list[FeedForward]:
        bias = reader.flag("mlp_bias") and mlp_bias
        return [Dense(inner=reader.count("intermediate_size"), bias=bias)] * layers

    return read


def _experts(reader: ConfigReader, scoring: str, renormalise: bool, **facts: object) -> Moe:
    width = reader.first("moe_intermediate_size", "intermediate_size")
    experts = reader.first("num_experts", "num_local_experts", "n_routed_experts")
    top = reader.first("num_experts_per_tok", "num_experts_per_token")
    moe = Moe(
        experts=reader.count(experts),
        top_k=reader.count(top),
        inner=reader.count(width),
        scoring=scoring,
        renormalise=renormalise,
        **facts,  # type: ignore[arg-type]
    )
    if moe.top_k > moe.experts:
        reader.wrong(f"{top} is {moe.top_k}, of {moe.experts} experts")
    return moe


def _softmax_experts(reader: ConfigReader, layers: int) -> list[FeedForward]:
    """Softmax over all experts; dense layers where `mlp_only_layers` and the step say so."""
    shared = reader.count_or_none("shared_expert_intermediate_size")
    moe = _experts(
        reader,
        "softmax",
        reader.flag("norm_topk_prob", default=shared is not None),
        shared_inner=shared or 0,
        shared_gate=shared is not None,
    )
    step = reader.count("decoder_sparse_step", default=1)
    alone = reader.indices("mlp_only_layers")
    return [
        Dense(inner=reader.count("intermediate_size")) if i in alone or (i + 1) % step else moe
        for i in range(layers)
    ]


def _mixtral(reader: ConfigReader, layers: int) -> list[FeedForward]:
    return [_experts(reader, "topk_softmax", renormalise=True)] * layers


def _gpt_oss(reader: ConfigReader, layers: int) -> list[FeedForward]:
    clamp = reader.number("swiglu_limit", 7.0)
    facts = {"router_bias": True, "expert_bias": True, "clamp": clamp}
    return [_experts(reader, "topk_softmax", renormalise=True, **facts)] * layers


def _biased_sigmoid(reader: ConfigReader, layers: int) -> list[FeedForward]:
    return [_experts(reader, "sigmoid", renormalise=True, selection_bias=True)] * layers


def _deepseek(reader: ConfigReader, layers: int) -> list[FeedForward]:
    """The first layers dense, then experts in groups beside shared ones."""
    scoring = reader.word(reader.first("scoring_func", "moe_router_activation_func"), "")
    method = reader.word("topk_method", "")
    # Where the file says neither, it is of the generation after the one that had to say.
    biased = method == "noaux_tc" or not method
    scoring = scoring or ("sigmoid" if biased else "softmax")
    shared = reader.count_or_none(reader.first("n_shared_experts", "num_shared_experts")) or 0
    groups = reader.first("n_group", "num_expert_group")
    moe = _experts(
        reader,
        scoring,
        reader.flag(reader.first("norm_topk_prob", "moe_renormalize")),
        scale=reader.number("routed_scaling_factor", 1.0),
        selection_bias=biased,
        # A greedy choice is among all experts, whatever groups the file names.
        groups=1 if method == "greedy" else reader.count(groups, default=1),
        top_groups=reader.count("topk_group", default=1),
        shared_inner=shared * reader.count("moe_intermediate_size"),
        latent=reader.count_or_none("routed_expert_hidden_size"),
        latent_norm=reader.flag("latent_moe_use_norm"),
    )
    first = reader.count_or_none("first_k_dense_replace") or 0
    every = reader.count("moe_layer_freq", default=1)
    dense = Dense(inner=reader.count("intermediate_size"))
    return [dense if i < first or i % every else moe for i in range(layers)]


def _hybrid_feeds(reader: ConfigReader, layers: int) -> list[FeedForward]:
    if reader.config.get("num_experts"):
        return _softmax_experts(reader, layers)
    return _dense(mlp_bias=False)(reader, layers)


def _rope_head(reader: ConfigReader) -> int | None:
    return None if reader.flag("mla_use_nope") else reader.count("qk_rope_head_dim")


_LLAMA = Grouped()
_QWEN2 = Grouped(qkv_bias=True, o_bias=False)
_QWEN3 = Grouped(qk_norm="head", head_dim=128)
_GPT_OSS = Grouped(sinks=True)
_PLAIN = Grouped(qkv_bias=False, o_bias=False)
_WIDE = Grouped(head_dim=256)

FAMILIES = {
    "llama": Family("llama", _LLAMA, _dense(mlp_bias=True), _LLAMA.width),
    "qwen2": Family("qwen2", _QWEN2, _dense(mlp_bias=False), _QWEN2.width),
    "qwen3": Family("qwen3", _QWEN3, _dense(mlp_bias=False), _QWEN3.width),
    "qwen3_moe": Family("qwen3_moe", _QWEN3, _softmax_experts, _QWEN3.width),
    "qwen3_next": Family("qwen3_next", _delta_hybrid, _softmax_experts, _WIDE.width),
    "qwen3_5": Family("qwen3_5", _delta_hybrid, _hybrid_feeds, _WIDE.width, "text_config"),
    "qwen3_5_text": Family("qwen3_5", _delta_hybrid, _hybrid_feeds, _WIDE.width),
    "qwen3_5_moe": Family("qwen3_5_moe", _delta_hybrid, _hybrid_feeds, _WIDE.width, "text_config"),
    "qwen3_5_moe_text": Family("qwen3_5_moe", _delta_hybrid, _hybrid_feeds, _WIDE.width),
    "mixtral": Family("mixtral", _PLAIN, _mixtral, _PLAIN.width),
    "deepseek_v2": Family("deepseek_v2", _all_latent, _deepseek, _rope_head),
    "deepseek_v3": Family("deepseek_v3", _all_latent, _deepseek, _rope_head),
    "kimi_k2": Family("kimi_k2", _all_latent, _deepseek, _rope_head),
    "kimi_k25": Family("kimi_k25", _all_latent, _deepseek, _rope_head, "text_config"),
    "kimi_linear": Family("kimi_linear", _channel_hybrid, _deepseek, _rope_head),
    "kimi_k3": Family("kimi_k3", _channel_hybrid, _deepseek, _rope_head, "text_config"),
    "gpt_oss": Family("gpt_oss", _GPT_OSS, _gpt_oss, _GPT_OSS.width),
    "minimax_m2": Family("minimax_m2", _minimax, _biased_sigmoid, _PLAIN.width),
    "glm4_moe": Family("glm4_moe", _glm, _deepseek, _LLAMA.width),
}
