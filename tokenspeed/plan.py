"""The Plan: one deployment, complete and frozen. It is the only thing that runs.

`resolve` makes it from a Recipe, a ModelConfig and a Hardware. Below `resolve` there is no
"auto" and no None that means "default": a None here is a fact ("no window"). What is learnt
after start is another type (`wire.Capacity`), never a write into the plan.

Only `up` and the constructors of Server, Engine and Worker take a whole Plan; everything else
takes the part it uses.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding, half-split (NeoX) order, over the first `rotary_dim` of each head.

    `scaling` is "none", "linear", "dynamic", "llama3" or "yarn"; the factors it does not use
    are None. `truncate`: yarn rounds the ends of its ramp to whole dimensions.
    """

    theta: float
    rotary_dim: int
    scaling: str = "none"
    factor: float | None = None
    original_max_position: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool = True


class Attention(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="attention"):
    """Grouped-query attention.

    `window`: tokens that a query sees, itself included; None = all. `sinks`: a learnt logit per
    head joins the softmax. `gated`: the query product also gives a gate for the output, as wide as
    the queries. `qk_norm`: "none", "head" (over each head) or "all" (over all heads at once).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    sinks: bool = False
    gated: bool = False
    qk_norm: str = "none"
    qkv_bias: bool = False
    o_bias: bool = False


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="latent"):
    """Multi-head latent attention: the cache holds `kv_rank` + `rope_dim` values per token.

    A query head has `nope_dim` + `rope_dim` values, a value head `value_dim`. `q_rank` None: the
    queries are one product. `rotary` False: the rope part is there, but carries no position.
    `gated`: one more product gates the output of all heads. `score_factor` multiplies the scores
    beside 1 / sqrt(head): what a stretched rotary embedding asks for.
    """

    num_heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    rotary: bool = True
    gated: bool = False
    bias: bool = False
    score_factor: float = 1.0


class GatedDeltaNet(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="gated_delta"):
    """Linear attention with a state of [value_heads, key_dim, value_dim] per request, decayed per
    head, behind a causal convolution over `conv_width` tokens of queries, keys and values."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int


class ChannelDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="channel"):
    """Gated delta net whose decay is per channel (KDA). `full_gate`: the output gate is one product
    instead of two of rank `head_dim`."""

    num_heads: int
    head_dim: int
    conv_width: int
    full_gate: bool = False


Mixer: TypeAlias = Attention | LatentAttention | GatedDeltaNet | ChannelDelta


class Dense(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="dense"):
    """Gated feed-forward that every token passes."""

    inner: int
    bias: bool = False


class Moe(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="moe"):
    """`top_k` of `experts` gated feed-forwards of width `inner` for each token.

    `scoring` is "softmax" (over all, then chosen), "topk_softmax" (over the chosen) or "sigmoid".
    `renormalise`: the chosen weights are made to sum to 1, then multiplied by `scale`.
    `selection_bias`: a learnt bias takes part in the choice only. Experts lie in `groups`, of which
    `top_groups` are eligible for a token. `shared_inner`: width of what every token passes beside
    the experts, 0 for none; `shared_gate`: a product of one output scales it. `latent`: the width
    at which the experts work, None for the hidden size. `clamp`: bound of the gate's input.
    """

    experts: int
    top_k: int
    inner: int
    scoring: str
    renormalise: bool
    scale: float = 1.0
    selection_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    router_bias: bool = False
    expert_bias: bool = False
    shared_inner: int = 0
    shared_gate: bool = False
    latent: int | None = None
    latent_norm: bool = False
    clamp: float | None = None


FeedForward: TypeAlias = Dense | Moe


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A mixer, then a feed-forward, each behind a norm and added to the residual."""

    mixer: Mixer
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """`layers` one after the other, `repeat` times over."""

    repeat: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Facts of a decoder-only model. Sizes are counts of elements.

    Branch on these facts, never on `family` (which only says whose file it was).
    `max_position` is the usable context after rope scaling was applied once; `rope` None: no layer
    rotates. `activation` is that of all feed-forwards. `residual_block`: layers whose outputs are
    attended to as one, where the residual is an attention over depth; None = a plain sum.
    `draft_layers`: next-token-prediction layers that the checkpoint holds beside `layers`.
    """

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerRun, ...]
    norm_eps: float
    rope: RopeConfig | None
    max_position: int
    tie_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    activation: str = "silu"
    residual_block: int | None = None
    draft_layers: int = 0

    @property
    def num_layers(self) -> int:
        return sum(run.repeat * len(run.layers) for run in self.layers)

    def sequence(self) -> tuple[Layer, ...]:
        """Every layer in order."""
        return tuple(
            layer for run in self.layers for _ in range(run.repeat) for layer in run.layers
        )

    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Each different layer with how often it occurs, in order of first occurrence."""
        counts: dict[Layer, int] = {}
        for run in self.layers:
            for layer in run.layers:
                counts[layer] = counts.get(layer, 0) + run.repeat
        return tuple(counts.items())


class WeightFormat(StrEnum):
    """How a weight matrix is kept in memory. `linear` kernels are chosen per format.

    Q4_1: blocks of 32 along the input axis, w = d * q + m, q in 0..15, d and m in fp16.
    Q8_0: blocks of 32, w = d * q, q int8, d in fp16.
    FP8: e4m3, one float32 scale per row (that of a whole matrix is repeated); FP8_BLOCK: one per
    128 x 128.
    NVFP4: e2m1, an e4m3 scale per 16 along the input axis and one float32 scale per row (that of a
    whole matrix is repeated).
    MXFP4: e2m1, a power of two (e8m0) per 32.
    INT4: symmetric, a bfloat16 scale per 128; INT4_G32: per 32.
    """

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    Q4_1 = "q4_1"
    Q8_0 = "q8_0"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    INT4 = "int4"
    INT4_G32 = "int4_g32"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One file of a checkpoint. `sha256` is None where the source does not pin it."""

    name: str
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGroup:
    """Parts of the model that are kept in one format: parameters and bytes of the whole model,
    and bytes of the rank that holds most."""

    name: str
    format: WeightFormat
    parameters: int
    bytes: int
    rank_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """`source` as the recipe wrote it; `load` is "weights" or "dummy" (random, seeded).

    `container` is "gguf", "safetensors" or "none". `linear_format` and `embedding_format` are
    the formats kept in memory; float formats dequantise at load. `weights` is the model by parts,
    `active_parameters` what one token meets of it.
    """

    source: str
    served_names: tuple[str, ...]
    load: str
    container: str
    files: tuple[ModelFile, ...]
    config: ModelConfig
    linear_format: WeightFormat
    embedding_format: WeightFormat
    chat_template: str | None
    token: str | None = None  # where the access token is, never the token
    weights: tuple[WeightGroup, ...] = ()
    active_parameters: int = 0

    @property
    def formats(self) -> dict[str, WeightFormat]:
        """The format of each group of matrices."""
        return {group.name: group.format for group in self.weights}


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """`kind` is "cpu", "cuda" or "rocm". `threads` is compute threads per worker on a CPU, 0 on a
    GPU.

    `activations` is the dtype between operators: "float32" or "bfloat16".
    """

    kind: str
    name: str
    count: int
    threads: int
    activations: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Ranks per group. One worker process per rank; `world_size` of them.

    Attention: `attention_dp` replicas, each of `attention_tp` ranks that share the heads. Dense
    feed-forwards: groups of `dense_tp` ranks share the inner axis. Experts: dealt out whole over
    `expert_ep` ranks, each expert's inner axis shared by `expert_tp`.
    """

    attention_tp: int
    attention_dp: int
    world_size: int
    dense_tp: int = 1
    expert_tp: int = 1
    expert_ep: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """Room for blocks beyond the device. `name` is "host" or "disk"; only a disk has a `path`."""

    name: str
    bytes: int
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that keep the same on one rank.

    `kind` is "full" (keys and values of every token), "latent" (one vector per token), "window"
    (of the last `window` tokens) or "state" (one state per request). Bytes are of all `layers`
    together: `bytes_per_token` is 0 for a state, `bytes_per_request` is what does not grow with
    the context (0 for full and latent).
    """

    kind: str
    layers: int
    bytes_per_token: int
    bytes_per_request: int
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """Paged KV cache of one rank. `dtype` is "float32", "bfloat16" or "fp8" (e4m3).

    `layout` says how a token lies in it: "split" (keys and values apart), "latent" (one vector,
    all of `dtype`) or "latent_scaled" (the latent in fp8 with a float32 scale per token, its rope
    part in bfloat16). Blocks hold the full and latent groups; windows and states have
    `request_slots` of their own size besides.
    """

    dtype: str
    block_size: int
    num_blocks: int
    bytes_per_block: int
    prefix_cache: bool
    tiers: tuple[TierPlan, ...] = ()
    layout: str = "split"
    groups: tuple[CacheGroup, ...] = ()
    request_slots: int = 0

    @property
    def pool_blocks(self) -> int:
        """Blocks of the pool that windows share with what grows: `num_blocks`, and for each slot
        those that its windows hold."""
        per_slot = sum(
            -(-group.bytes_per_request // self.bytes_per_block)
            for group in self.groups
            if group.kind == "window"
        )
        return self.num_blocks + self.request_slots * per_slot


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPlan:
    """`max_step_tokens` bounds the tokens of one step, `max_mixed_tokens` the prompt tokens of one
    that also computes answers, or `max_backlog_tokens` where prompts pile up. A prompt that is all
    cached goes before others by `cache_lead_seconds`. `in_flight_depth` is 0 or 1. A worker whose
    loop is silent for `hang_seconds` is replaced. A request waits to be computed for
    `max_wait_seconds` in all, None for as long as its client does. Tokens that a grammar forces are
    computed in one row when they are `jump_ahead` or more in a row, 0 for never."""

    max_running: int
    max_waiting: int
    max_step_tokens: int
    max_mixed_tokens: int
    max_model_len: int
    chunked_prefill: bool
    in_flight_depth: int
    jump_ahead: int
    max_backlog_tokens: int = 0
    cache_lead_seconds: float = 0.0
    hang_seconds: float = 600.0
    max_wait_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionPlan:
    """Attention of rows of many tokens over keys and values made from the latents, of
    `chunk_tokens` tokens at once, in steps in which more than `least_reuse` queries on the average
    meet each token of those rows, and each of `launch_tokens` more that stand for launching it."""

    least_reuse: int
    launch_tokens: int = 0
    chunk_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationPlan:
    """`method` is "none", "ngram", "draft", "mtp" or "eagle3"; `draft` the source of the model or
    head that guesses, None where there is none."""

    method: str = "none"
    num_tokens: int = 0
    draft: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A kernel that was not taken, and the first requirement that it missed."""

    kernel: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """The kernel that runs `op`, "" where this build has none that could.

    `variant` tells apart uses of one op with different needs (for products, embedding and experts
    the weight format), "" where there is only one.
    """

    op: str
    variant: str
    kernel: str
    reason: str
    rejected: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """One line of the budget of one rank, in bytes."""

    name: str
    bytes: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """`budget` is what one rank may use of the device; the items sum to at most that."""

    device_bytes: int
    budget_bytes: int
    items: tuple[MemoryItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A factor of the prediction: at its best, as expected, and at the slow edge of the band."""

    name: str
    fast: float
    expected: float
    slow: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """A decode step with `batch` requests of `context` tokens each, on all ranks together.

    Seconds as expected and at both edges of the band. `bound` is the largest part of the expected
    time: "weights", "kv", "compute", "links" or "launches". `fits`: the cache holds the requests.
    """

    batch: int
    context: int
    fits: bool
    step_s: float
    fast_s: float
    slow_s: float
    bound: str
    tokens_per_s_user: float
    tokens_per_min_device: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionPlan:
    """Speed as far as bytes and operations decide it. Without `steps`, `note` says why."""

    steps: tuple[PredictedStep, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What a request gets for a field that it leaves out."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """`drain_seconds` is how long open requests may run on after a stop was asked for. `api_keys`
    say where keys are, never what they are; `metrics_port` None is the API's own port. `tls` is
    empty for plain HTTP, else references to the files of a certificate and its key. A request that
    takes longer than `timeout_seconds` ends with an error; None lets it. `traces` is the address of
    an OTLP collector, None for none. `fronts` is the number of processes that serve HTTP."""

    host: str
    port: int
    drain_seconds: float
    max_body_bytes: int
    max_choices: int
    log_requests: bool
    sampling: SamplingDefaults
    api_keys: tuple[str, ...] = ()
    metrics_port: int | None = None
    tls: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    traces: str | None = None
    fronts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """Something the plan needs that this build or this machine does not offer.

    Such a plan can be shown; `up` refuses it with 78 and names it.
    """

    need: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole deployment. Equal plans have equal digests.

    `graphs` are the batch sizes that get a captured graph, `token_graphs` the numbers of tokens of
    steps with prompts that do; `role` is what the instance computes:
    "both", "prefill" or "decode". Without an `expansion` latent attention absorbs every query.
    `expert_load`: the tokens that each expert is given are counted.
    """

    version: int
    name: str
    tokenspeed: str
    hardware: str
    device: DevicePlan
    model: ModelPlan
    parallel: ParallelPlan
    cache: CachePlan
    scheduler: SchedulerPlan
    kernels: tuple[KernelChoice, ...]
    memory: MemoryPlan
    serve: ServePlan
    unmet: tuple[Unmet, ...]
    speculation: SpeculationPlan = SpeculationPlan()
    graphs: tuple[int, ...] = ()
    token_graphs: tuple[int, ...] = ()
    role: str = "both"
    prediction: PredictionPlan = PredictionPlan()
    expansion: ExpansionPlan | None = None
    expert_load: bool = False

    def to_json(self) -> bytes:
        """The plan as indented JSON, keys in the order of the fields."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @staticmethod
    def from_json(data: bytes) -> Plan:
        """Raises msgspec.ValidationError when `data` is not a plan of this version."""
        return msgspec.json.decode(data, type=Plan)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hex."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def kernel(self, op: str, variant: str = "") -> KernelChoice:
        """The choice for one op; resolve made one for every op that the model uses."""
        for choice in self.kernels:
            if choice.op == op and choice.variant == variant:
                return choice
        raise KeyError(f"the plan has no kernel for {op} {variant}".rstrip())
