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

import msgspec

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding, half-split (NeoX) order, over the first `rotary_dim` of each head.

    `scaling` is "none", "linear", "dynamic", "llama3" or "yarn"; the factors it does not use
    are None.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Facts of a dense decoder-only model. Sizes are counts of elements.

    Branch on these facts, never on `family` (which only says whose file it was).
    `max_position` is the usable context after rope scaling was applied once.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    max_position: int
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


class WeightFormat(StrEnum):
    """How a weight matrix is kept in memory. `linear` kernels are chosen per format.

    Q4_1: blocks of 32 along the input axis, w = d * q + m, q in 0..15, d and m in fp16.
    Q8_0: blocks of 32, w = d * q, q int8, d in fp16.
    """

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    Q4_1 = "q4_1"
    Q8_0 = "q8_0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One file of a checkpoint. `sha256` is None where the source does not pin it."""

    name: str
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """`source` as the recipe wrote it; `load` is "weights" or "dummy" (random, seeded).

    `container` is "gguf", "safetensors" or "none". `linear_format` and `embedding_format` are
    the formats kept in memory; float formats dequantise at load.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """`kind` is "cpu" or "cuda". `threads` is compute threads per worker on a CPU, 0 on a GPU.

    `activations` is the dtype between operators: "float32" or "bfloat16".
    """

    kind: str
    name: str
    count: int
    threads: int
    activations: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Ranks per group. One worker process per rank; `world_size` of them."""

    attention_tp: int
    attention_dp: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """Room for blocks beyond the device. `name` is "host" or "disk"; only a disk has a `path`."""

    name: str
    bytes: int
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """Paged KV cache of one rank. `dtype` is "float32" or "bfloat16"."""

    dtype: str
    block_size: int
    num_blocks: int
    bytes_per_block: int
    prefix_cache: bool
    tiers: tuple[TierPlan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPlan:
    """`max_step_tokens` bounds the tokens of one step; `in_flight_depth` is 0 or 1."""

    max_running: int
    max_waiting: int
    max_step_tokens: int
    max_model_len: int
    chunked_prefill: bool
    in_flight_depth: int


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
    """The kernel that runs `op`. `variant` tells apart uses of one op with different needs
    (for `linear` and `embedding` the weight format), "" where there is only one."""

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
    say where keys are, never what they are; `metrics_port` None is the API's own port."""

    host: str
    port: int
    drain_seconds: float
    max_body_bytes: int
    max_choices: int
    log_requests: bool
    sampling: SamplingDefaults
    api_keys: tuple[str, ...] = ()
    metrics_port: int | None = None


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

    `graphs` are the batch sizes that get a captured graph; `role` is what the instance computes:
    "both", "prefill" or "decode".
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
    role: str = "both"

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
