"""Bytes of everything that one rank keeps on its device beside weights and blocks."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed_kernels.gemm.specs import WIDENED_BYTES

from tokenspeed.checkpoint.inventory import EXPERTS, draft_tensors
from tokenspeed.plan import (
    Attention,
    CacheGroup,
    ChannelDelta,
    Dense,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    MemoryItem,
    ModelConfig,
    WeightFormat,
)
from tokenspeed.resolve.shard import DTYPE_BYTES, Formats, Shard

# Sampling keeps, per row and vocabulary entry: the logits and their sorted copy (float32 each)
# and the order (int64).
LOGIT_BYTES = 4 + 4 + 8
# A prompt whose tokens are scored takes the logits and their logarithms (float32 each), of so many
# rows at once.
SCORED_BYTES, SCORED_ROWS = 4 + 4, 256
# What changes logits, per request and vocabulary entry, for as long as the worker runs: whether the
# prompt has it and how often the answer (int16 for both), and its bias (float32).
EDIT_BYTES = 2 + 4
# The interpreter with torch and its workspaces: resident, before any weight (CPU); the CUDA
# context, library workspaces and the allocator's rounding (GPU).
RUNTIME_BYTES = {"cpu": 512 * 2**20, "cuda": 1536 * 2**20, "rocm": 1536 * 2**20}
# A front beside the first one: 63 MB of interpreter and libraries; 64 MiB of remembered messages,
# 64 of ids and 32 of prompts (server/bodies.py, tokenizer/segments.py, engine/shipping.py); the
# rest for a tokenizer with a large vocabulary. It is the host's memory, so it counts where that is
# the device.
FRONT_BYTES = {"cpu": 320 * 2**20, "cuda": 0, "rocm": 0}
# A node of a captured graph with its parameters, and kernels of a layer: from what 28 graphs of 32
# layers took of one H200, on the high side.
GRAPH_NODE_BYTES = 48 * 2**10
GRAPH_LAYER_NODES = 16
# Buffers of a communicator (NCCL's default channels on eight ranks).
COMMUNICATOR_BYTES = 256 * 2**20
# Recurrent states are summed up in float32 whatever the activations are.
STATE_BYTES = 4
# The busiest rank's share of the tokens' experts, over an even one.
EXPERT_SKEW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a step is sized for."""

    device: str
    activations: str
    step_tokens: int
    max_running: int
    max_model_len: int
    graphs: tuple[int, ...]
    token_graphs: tuple[int, ...]
    draft: bool
    further_fronts: int = 0


def layer_cache(
    layer: Layer, shard: Shard, dtype: str, layout: str
) -> tuple[str, int | None, int, int]:
    """(kind, window, bytes per token, bytes per request) of one layer on one rank."""
    mixer, tp = layer.mixer, shard.parallel.attention_tp
    element = DTYPE_BYTES[dtype]
    if isinstance(mixer, Attention):
        per_token = 2 * max(1, mixer.num_kv_heads // tp) * mixer.head_dim * element
        return ("full" if mixer.window is None else "window"), mixer.window, per_token, 0
    if isinstance(mixer, LatentAttention):
        # Every rank needs the whole latent: it has no heads to split.
        if layout == "latent_scaled":
            return "latent", None, mixer.kv_rank + 4 + 2 * mixer.rope_dim, 0
        return "latent", None, (mixer.kv_rank + mixer.rope_dim) * element, 0
    return "state", None, 0, state_bytes(mixer, tp)


def state_bytes(mixer: GatedDeltaNet | ChannelDelta, tp: int) -> int:
    """The recurrent state and the tail of the convolution of one request, on one rank."""
    if isinstance(mixer, GatedDeltaNet):
        keys, values = -(-mixer.key_heads // tp), -(-mixer.value_heads // tp)
        state = values * mixer.key_dim * mixer.value_dim
        channels = 2 * keys * mixer.key_dim + values * mixer.value_dim
    else:
        heads = -(-mixer.num_heads // tp)
        state, channels = heads * mixer.head_dim**2, 3 * heads * mixer.head_dim
    return state * STATE_BYTES + channels * (mixer.conv_width - 1) * DTYPE_BYTES["bfloat16"]


def cache_groups(shard: Shard, dtype: str, layout: str, block_size: int) -> tuple[CacheGroup, ...]:
    """Layers that keep the same, together. A window holds whole blocks, and one more while it
    moves on. In a model of windows alone their blocks are the paged ones."""
    kinds = shard.config.kinds()
    paged = {layer_cache(layer, shard, dtype, layout)[0] for layer, _ in kinds}
    windows_only = "window" in paged and not paged & {"full", "latent"}
    found: dict[tuple[str, int | None], tuple[int, int, int]] = {}
    for layer, count in kinds:
        kind, window, per_token, per_request = layer_cache(layer, shard, dtype, layout)
        if windows_only and kind == "window":
            kind, window = "full", None
        if window is not None:
            per_request = (-(-window // block_size) + 1) * block_size * per_token
        layers, tokens, requests = found.get((kind, window), (0, 0, 0))
        found[kind, window] = (
            layers + count,
            tokens + count * per_token,
            requests + count * per_request,
        )
    return tuple(
        CacheGroup(
            kind=kind,
            layers=layers,
            bytes_per_token=tokens,
            bytes_per_request=requests,
            window=window,
        )
        for (kind, window), (layers, tokens, requests) in found.items()
    )


def paged_token_bytes(groups: tuple[CacheGroup, ...]) -> int:
    """Bytes of one token in the layers whose cache grows with the context."""
    return sum(group.bytes_per_token for group in groups if group.kind in ("full", "latent"))


def activation_bytes(shard: Shard, step_tokens: int, activations: str) -> int:
    """Peak of the values that live at once while a step runs through one layer: the residual and
    the normed input, and the larger half of the widest layer."""
    element = DTYPE_BYTES[activations]
    widest = max(
        max(_mixer_width(layer, shard), _feed_width(layer, shard))
        for layer, _ in shard.config.kinds()
    )
    return step_tokens * (2 * shard.config.hidden_size + widest) * element


def _mixer_width(layer: Layer, shard: Shard) -> int:
    """Values per token: what the products give, the queries again, and the result."""
    mixer, tp = layer.mixer, shard.parallel.attention_tp
    if isinstance(mixer, Attention):
        query = mixer.num_heads // tp * mixer.head_dim
        kv = 2 * max(1, mixer.num_kv_heads // tp) * mixer.head_dim
        return query * (4 if mixer.gated else 3) + kv
    if isinstance(mixer, LatentAttention):
        heads, latent = mixer.num_heads // tp, mixer.kv_rank + mixer.rope_dim
        query = heads * (mixer.nope_dim + mixer.rope_dim)
        # Queries in the latent space, and what they collect there, before it is projected back.
        return query + latent + heads * (latent + mixer.kv_rank + mixer.value_dim)
    if isinstance(mixer, GatedDeltaNet):
        keys = 2 * mixer.key_heads // tp * mixer.key_dim
        return 2 * keys + 4 * mixer.value_heads // tp * mixer.value_dim
    return 8 * mixer.num_heads // tp * mixer.head_dim


def _feed_width(layer: Layer, shard: Shard) -> int:
    """Values per token: gate and up, and their product; for experts with the gathered inputs and
    outputs of the busiest rank."""
    feed, parallel = layer.feed_forward, shard.parallel
    if isinstance(feed, Dense):
        return 3 * (feed.inner // parallel.dense_tp)
    rows = min(feed.top_k, -(-EXPERT_SKEW * feed.top_k // parallel.expert_ep))
    width = feed.latent or shard.config.hidden_size
    routed = rows * (2 * width + 3 * (feed.inner // parallel.expert_tp))
    return routed + 3 * (feed.shared_inner // parallel.dense_tp)


def logit_bytes(config: ModelConfig, load: Load) -> int:
    """Of sampling, or of scoring prompts: one follows the other."""
    scored = min(SCORED_ROWS, load.step_tokens) * SCORED_BYTES
    return config.vocab_size * max(load.max_running * LOGIT_BYTES, scored)


def rope_table_bytes(config: ModelConfig, max_model_len: int) -> int:
    """cos and sin of every position, float32."""
    return 0 if config.rope is None else max_model_len * config.rope.rotary_dim * 4


def graph_bytes(shard: Shard, load: Load) -> int:
    """The nodes of every captured graph, and the values of the largest, which all of them share:
    what steps without a graph use goes back to the allocator, this does not."""
    count = len(load.graphs) + len(load.token_graphs)
    if not count:
        return 0
    config = shard.config
    nodes = count * config.num_layers * GRAPH_LAYER_NODES * GRAPH_NODE_BYTES
    tokens = min(max((*load.graphs, *load.token_graphs)), load.step_tokens)
    logits = load.max_running * config.vocab_size * DTYPE_BYTES["float32"]
    return nodes + activation_bytes(shard, tokens, load.activations) + logits


def communication_bytes(shard: Shard, load: Load) -> int:
    """Communicators of the groups with more than one rank, and a buffer for a step's values in
    and one out."""
    parallel = shard.parallel
    groups = {
        size
        for size in (
            parallel.attention_tp,
            parallel.dense_tp,
            parallel.expert_tp * parallel.expert_ep,
            parallel.world_size,
        )
        if size > 1
    }
    if not groups:
        return 0
    values = 2 * load.step_tokens * shard.config.hidden_size * DTYPE_BYTES[load.activations]
    return len(groups) * COMMUNICATOR_BYTES + values


def widened_bytes(present: set[str], formats: Formats, load: Load) -> int:
    """What products of 4-bit floats with many rows take for a moment, of the matrices in the groups
    `present`. Graphs keep theirs to themselves."""
    packed = WeightFormat.NVFP4 in {formats[group] for group in present - {EXPERTS}}
    slices = 1 + bool(load.graphs or load.token_graphs)
    return WIDENED_BYTES * slices if packed and load.device != "cpu" else 0


def draft_bytes(shard: Shard, formats: Formats) -> int:
    return sum(formats.bytes(shard.share(tensor)) for tensor in draft_tensors(shard.config))


def fixed_items(shard: Shard, formats: Formats, weights: int, load: Load) -> tuple[MemoryItem, ...]:
    """Everything but what requests keep and the headroom. What the model does not need is left
    out."""
    config = shard.config
    present = {tensor.group for tensor in shard.tensors() if not tensor.vector}
    kinds = sorted({str(formats[group]) for group in present})
    named = f"products {formats.linear}, embedding {formats.embedding}"
    others = [kind for kind in kinds if kind not in (formats.linear, formats.embedding)]
    note = named + (f", also {', '.join(others)}" if others else "")
    items = [
        MemoryItem(name="weights", bytes=weights, note=note),
        MemoryItem(
            name="draft weights",
            bytes=draft_bytes(shard, formats) if load.draft else 0,
            note=f"{config.draft_layers} layers that draft the next tokens",
        ),
        MemoryItem(
            name="activations",
            bytes=activation_bytes(shard, load.step_tokens, load.activations),
            note=f"peak of one layer at {load.step_tokens} tokens a step, {load.activations}",
        ),
        MemoryItem(
            name="logits",
            bytes=logit_bytes(config, load),
            note=f"{load.max_running} rows of {config.vocab_size} with a sorted copy, or a "
            "prompt's with log-probabilities",
        ),
        MemoryItem(
            name="sampling state",
            bytes=load.max_running * config.vocab_size * EDIT_BYTES,
            note=f"token counts and logit biases of {load.max_running} requests",
        ),
        MemoryItem(
            name="rope table",
            bytes=rope_table_bytes(config, load.max_model_len),
            note=f"{load.max_model_len} positions, float32",
        ),
        MemoryItem(
            name="dequantised weights",
            bytes=widened_bytes(present, formats, load),
            note="a slice of an nvfp4 matrix for many tokens, and one held by graphs",
        ),
        MemoryItem(
            name="graphs",
            bytes=graph_bytes(shard, load),
            note=f"{len(load.graphs)} batch sizes, {len(load.token_graphs)} token counts",
        ),
        MemoryItem(
            name="communication",
            bytes=communication_bytes(shard, load),
            note=f"buffers between {shard.parallel.world_size} ranks",
        ),
        MemoryItem(
            name="runtime",
            bytes=RUNTIME_BYTES[load.device],
            note="device context, libraries and their workspaces",
        ),
        MemoryItem(
            name="further fronts",
            bytes=load.further_fronts * FRONT_BYTES[load.device],
            note=f"{load.further_fronts} more HTTP processes beside the first",
        ),
    ]
    return tuple(item for item in items if item.bytes)
