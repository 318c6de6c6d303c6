"""Bodies of the OpenAI endpoints: what each field means, its range, and what is refused.

Answers use these defaults: those of the plan (`serve.sampling`) for sampling; without
max_tokens a chat may use all the room left, a completion 16 tokens. `max_completion_tokens`
wins over `max_tokens`. Several text parts of one message are joined by a newline. The role
"developer" is read as "system".
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_options
from typing import Any

from msgspec.structs import replace

from tokenspeed.plan import SamplingDefaults
from tokenspeed.request import SamplingParams
from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.fields import Fields, are_ids
from tokenspeed.server.openai.form import Form, read_form
from tokenspeed.server.openai.messages import read_messages
from tokenspeed.server.openai.tools import ToolUse, read_tools

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 64
MAX_BIASES = 1024
MAX_ALLOWED_IDS = 4096
MAX_TOP_LOGPROBS = 20
MAX_SALT = 128
MAX_INT = 2**31 - 1
COMPLETION_TOKENS = 16
# Word -> most tokens of reasoning, for models whose template is told no word. None: no limit.
EFFORTS: Mapping[str, int | None] = {
    "none": 0,
    "minimal": 512,
    "low": 2048,
    "medium": 8192,
    "high": None,
    "xhigh": None,
    "max": None,
}
# The engine wants a share above 0; like 0 at OpenAI, this leaves the likeliest token alone.
_LEAST_TOP_P = 1e-9
# Devices divide by these in float32. A temperature below leaves the likeliest token alone too, and
# would make infinite numbers of logits, as smaller penalties would.
_LEAST_TEMPERATURE = 1e-5
_LEAST_PENALTY = 0.01
_THINKING = ("enabled", "adaptive", "auto", "between_tools", "disabled")
_GOLDEN = 0x9E3779B97F4A7C15

# Meaning would change without a word: these are refused unless null or the value given here.
# Several are what other servers call ways of sampling that this one does not have.
_REFUSED: Mapping[str, Collection[Any]] = {
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "bad_words": (),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (),
    "skip_special_tokens": (True,),
    "lora_path": (),
    "moderation": (),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "no_repeat_ngram_size": (0,),
    "repeat_penalty": (1,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "grammar": ("",),
    "n_predict": (-1,),
}
REFUSED_CHAT: Mapping[str, Collection[Any]] = {
    "functions": (),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "documents": (),
    "echo": (False,),
    "best_of": (1,),
}
# Fields of other endpoints, and what chats and completions have for them.
_ELSEWHERE_CHAT: Mapping[str, str] = {
    **dict.fromkeys(("prompt", "input", "instructions", "system"), "messages"),
    "max_output_tokens": "max_completion_tokens",
    "stop_sequences": "stop",
}
_ELSEWHERE_COMPLETION: Mapping[str, str] = {
    **dict.fromkeys(("messages", "input", "instructions", "system"), "prompt"),
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
}
# What Responses and Messages take under the names of chats, beside their own fields.
SHARED = (
    *("model", "temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "stream"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens"),
    *("stop_token_ids", "ignore_eos", "include_stop_str_in_output", "allowed_token_ids"),
    *("priority", "cache_salt"),
)
# Fields of chats that would change those endpoints' answers, and that have no name there.
REFUSED_THERE: Mapping[str, Collection[Any]] = {
    **_REFUSED,
    **dict.fromkeys(("structured_outputs", "json_schema", "regex", "ebnf"), ()),
    **dict.fromkeys(("chat_template_kwargs", "thinking_token_budget", "prompt_logprobs"), ()),
    "n": (1,),
    "logprobs": (False,),
    "return_token_ids": (False,),
}
_REFUSED_COMPLETION: Mapping[str, Collection[Any]] = {
    "suffix": ("",),
    "prompt_embeds": (),
}


def _may_say(message: object) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the deployment allows, for checking a request before it costs anything."""

    vocab_size: int
    max_choices: int
    defaults: SamplingDefaults
    template_reads: frozenset[str] = frozenset()  # variables that the chat template asks for
    reasons: bool = False  # the model's reasoning can be told from its answer
    says_control: Callable[[object], bool] = _may_say  # whether a message does, see `literal`

    @property
    def switches(self) -> frozenset[str]:
        """The variables by which the template is told whether to think, as far as it asks."""
        return self.template_reads & {"enable_thinking", "thinking"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What both endpoints take. `max_tokens` None: not said. `logprobs` is in `sampling`.

    `form`: what the answer must be, where that is asked for. `budget`: most tokens of reasoning.
    """

    model: str
    n: int
    max_tokens: int | None
    min_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    include_stop: bool
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    priority: int
    salt: bytes
    stream: bool
    include_usage: bool
    return_token_ids: bool
    form: Form | None
    allowed_token_ids: tuple[int, ...]
    budget: int | None
    form_field: str = "tools"  # what to call the client's grammar in errors
    echo: bool = False  # the answer begins with the prompt
    calls_named: bool = False  # the answer is the call that the client named: it ends in "stop"

    def thinking(self, budget: int | None) -> Options:
        """The same with at most so many tokens of reasoning."""
        return replace_options(self, budget=budget)

    def salted(self, tenant: bytes) -> Options:
        """The same, reading and writing only the prefix cache of this tenant."""
        return replace_options(self, salt=tenant + self.salt) if tenant else self

    def sampling_of(self, sibling: int) -> SamplingParams:
        """Sibling 0 gets the seed itself, the others far ones: equal requests repeat as a set."""
        if sibling == 0:
            return self.sampling
        seed = (self.sampling.seed + sibling * _GOLDEN) % 2**63
        return replace(self.sampling, seed=seed)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`tools` None: the model is shown none and its answer is not searched for calls. `plain`: no
    message says a control token."""

    options: Options
    messages: tuple[dict[str, Any], ...]
    plain: bool
    template_variables: Mapping[str, Any]
    tools: ToolUse | None
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """`prompts` are texts or lists of ids, at least one."""

    options: Options
    prompts: tuple[str | list[int], ...]
    ignored: tuple[str, ...]


def read_chat(body: object, limits: Limits) -> ChatRequest:
    """Raises ApiError 400 naming the first field that is wrong."""
    fields = Fields(body)
    fields.refuse(REFUSED_CHAT)
    fields.elsewhere(_ELSEWHERE_CHAT)
    logprobs = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
    options = read_options(fields, limits, (top or 0) if logprobs else None, 1)
    read = read_messages(fields, limits.says_control)
    tools, unused = read_tools(fields)
    effort = read_effort(fields, "reasoning_effort", limits)
    thinks, budget = _read_thinking(fields, limits)
    switched = {} if thinks is None else dict.fromkeys(limits.switches, thinks)
    options = options.thinking(effort.budget if budget is None else budget)
    named = tools is not None and tools.named is not None
    return ChatRequest(
        options=replace_options(options, calls_named=named),
        messages=read.messages,
        plain=read.plain,
        template_variables={**effort.variables, **switched, **read_variables(fields, limits)},
        tools=tools,
        ignored=(*fields.unread(), *read.ignored, *unused),
    )


def read_completion(body: object, limits: Limits) -> CompletionRequest:
    """Raises ApiError 400 naming the first field that is wrong."""
    fields = Fields(body)
    fields.refuse(_REFUSED_COMPLETION)
    fields.elsewhere(_ELSEWHERE_COMPLETION)
    echo = fields.boolean("echo")
    logprobs = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    options = read_options(fields, limits, logprobs, 0)
    if options.max_tokens == 0 and not echo:
        raise bad_request("'max_tokens' may be 0 only with 'echo': true.", "max_tokens")
    best_of = fields.integer("best_of", 1, MAX_INT)
    if best_of is not None and best_of != options.n:
        raise bad_request("'best_of' is not supported unless it equals 'n'.", "best_of")
    prompts = _prompts(fields, limits.vocab_size)
    options = replace_options(options, echo=echo)
    return CompletionRequest(options, prompts, tuple(fields.unread()))


def read_options(fields: Fields, limits: Limits, logprobs: int | None, least: int) -> Options:
    """What all endpoints take; `least` is the lowest max_tokens. Raises ApiError 400."""
    fields.refuse(_REFUSED)
    model = fields.text("model", 1000)
    if not model:
        raise bad_request("'model' is required.", "model", "missing_required_parameter")
    stream = fields.boolean("stream")
    if stream and fields.take("prompt_logprobs") is not None:
        raise bad_request("'prompt_logprobs' cannot be streamed.", "prompt_logprobs")
    stream_options = fields.object("stream_options")
    if stream_options is not None and not stream:
        raise bad_request("'stream_options' needs 'stream': true.", "stream_options")
    form = read_form(fields)
    allowed = fields.token_ids("allowed_token_ids", limits.vocab_size, MAX_ALLOWED_IDS)
    if form is not None and (allowed or fields.boolean("ignore_eos")):
        other = "allowed_token_ids" if allowed else "ignore_eos"
        raise bad_request(f"{other!r} and {form.field!r} exclude each other.", other)
    newer = fields.integer("max_completion_tokens", least, MAX_INT)
    older = fields.integer("max_tokens", least, MAX_INT)
    return Options(
        model=model,
        n=_choices(fields, limits.max_choices),
        max_tokens=older if newer is None else newer,
        min_tokens=fields.integer("min_tokens", 0, MAX_INT) or 0,
        sampling=_sampling(fields, limits, logprobs),
        stop=read_stops(fields, "stop", alone=True),
        include_stop=fields.boolean("include_stop_str_in_output"),
        stop_token_ids=fields.token_ids("stop_token_ids", limits.vocab_size, MAX_STOP_IDS),
        ignore_eos=fields.boolean("ignore_eos"),
        priority=fields.integer("priority", -MAX_INT, MAX_INT) or 0,
        salt=(fields.text("cache_salt", MAX_SALT) or "").encode(),
        stream=stream,
        include_usage=stream_options is not None and stream_options.boolean("include_usage"),
        return_token_ids=fields.boolean("return_token_ids"),
        form=form,
        form_field="tools" if form is None else form.field,
        allowed_token_ids=allowed,
        budget=None,
    )


def _choices(fields: Fields, most: int) -> int:
    chosen = fields.integer("n", 1, most)
    return 1 if chosen is None else chosen


def _sampling(fields: Fields, limits: Limits, logprobs: int | None) -> SamplingParams:
    defaults = limits.defaults

    def number(name: str, low: float, high: float, default: float) -> float:
        value = fields.number(name, low, high)
        return default if value is None else value

    top_k = fields.integer("top_k", -1, MAX_INT)
    seed = fields.integer("seed", -(2**63), 2**63 - 1)
    temperature = number("temperature", 0.0, 100.0, defaults.temperature)
    penalty = defaults.repetition_penalty
    return SamplingParams(
        temperature=0.0 if temperature < _LEAST_TEMPERATURE else temperature,
        top_p=max(number("top_p", 0.0, 1.0, defaults.top_p), _LEAST_TOP_P),
        # -1 is how several clients write "all".
        top_k=defaults.top_k if top_k is None else max(top_k, 0),
        min_p=number("min_p", 0.0, 1.0, defaults.min_p),
        seed=secrets.randbits(63) if seed is None else seed % 2**63,
        repetition_penalty=number("repetition_penalty", _LEAST_PENALTY, 10.0, penalty),
        presence_penalty=number("presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=number("frequency_penalty", -2.0, 2.0, 0.0),
        logit_bias=_biases(fields, limits.vocab_size),
        logprobs=logprobs,
        prompt_logprobs=fields.integer("prompt_logprobs", 0, MAX_TOP_LOGPROBS),
    )


def _biases(fields: Fields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    given = fields.object("logit_bias")
    if given is None:
        return ()
    entries = given.items()
    if len(entries) > MAX_BIASES:
        raise bad_request(f"'logit_bias' may have {MAX_BIASES} entries at most.", "logit_bias")
    biases = []
    for key, _ in entries:
        # Spelt in one way only: "01" beside "1" would be two biases of one token.
        if not re.fullmatch("0|[1-9][0-9]{0,18}", key) or int(key) >= vocab_size:
            message = f"'logit_bias' has the key {key[:40]!r}; keys are token ids from 0 to "
            raise bad_request(f"{message}{vocab_size - 1}.", "logit_bias")
        value = given.number(key, -100.0, 100.0)
        if value:
            biases.append((int(key), value))
    return tuple(biases)


def read_stops(fields: Fields, name: str, *, alone: bool) -> tuple[str, ...]:
    """Strings that end an answer; `alone`: one need not be in a list. Raises ApiError 400."""
    value = fields.take(name)
    stops = [] if value is None else [value] if alone and isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops)
    ):
        expected = f"up to {MAX_STOPS} strings of 1 to {MAX_STOP_CHARACTERS} characters"
        raise fields.fail(name, expected)
    return tuple(stops)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a model may think: `variables` tell its template, `budget` is a limit in tokens."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    budget: int | None = None


def read_effort(fields: Fields, name: str, limits: Limits) -> Effort:
    """Of an effort word. It goes to a template that asks for it; others are told whether to think
    at all, if they ask for that, and the rest is a budget. Reported as unread where the model does
    not reason. Raises ApiError 400."""
    word = fields.choice(name, EFFORTS)
    if word is None:
        return Effort()
    if "reasoning_effort" in limits.template_reads:
        return Effort({"reasoning_effort": word})
    variables = dict.fromkeys(limits.switches, word != "none")
    budget = EFFORTS[word] if limits.reasons else None
    if not variables and not limits.reasons:
        fields.forget(name)
    return Effort(variables, budget)


def read_budget(fields: Fields, limits: Limits) -> int | None:
    """`thinking_token_budget`, under vLLM's name. Raises ApiError 400."""
    budget = fields.integer("thinking_token_budget", 0, MAX_INT)
    if not limits.reasons:
        fields.forget("thinking_token_budget")
    return budget


def read_thinking(fields: Fields, limits: Limits) -> tuple[bool | None, int | None]:
    """`thinking`, as Anthropic and several vendors of chats have it: whether to think, None where
    that is not said, and the most tokens of it. Raises ApiError 400."""
    thinking = fields.object("thinking")
    if thinking is None:
        return None, None
    # Between tools, too, is without: what a model says there would only come as another block.
    off = thinking.choice("type", _THINKING) in ("disabled", "between_tools")
    if thinking.take("type") is None:
        raise thinking.fail("type", "one of " + ", ".join(_THINKING))
    budget = thinking.integer("budget_tokens", 1, MAX_INT)
    if not limits.reasons:
        thinking.forget("budget_tokens")
        if not off and not limits.switches:
            thinking.forget("type")
    return not off, 0 if off else budget


def _read_thinking(fields: Fields, limits: Limits) -> tuple[bool | None, int | None]:
    """Whether a chat says to think, and the most tokens of it: as vLLM, then as others call it."""
    thinks, budget = read_thinking(fields, limits)
    switch = fields.boolean("enable_thinking")
    if fields.take("enable_thinking") is not None:
        thinks = switch
        budget = budget if thinks else 0
        if thinks and not limits.reasons and not limits.switches:
            fields.forget("enable_thinking")
    said = read_budget(fields, limits)
    return thinks, budget if said is None else said


def read_variables(fields: Fields, limits: Limits) -> Mapping[str, Any]:
    """`chat_template_kwargs`; those that the template does not ask for are reported as unread.
    Raises ApiError 400."""
    given = fields.object("chat_template_kwargs")
    if given is None:
        return {}
    variables = dict(given.items())
    for name, value in variables.items():
        if not isinstance(value, str | int | float | bool | None):
            raise given.fail(name, "a string, a number or a boolean")
        if name not in limits.template_reads:
            given.forget(name)
    return variables


def _prompts(fields: Fields, vocab_size: int) -> tuple[str | list[int], ...]:
    value = fields.take("prompt")
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(entry, str) for entry in value):
            return tuple(value)
        if are_ids(value, vocab_size):
            return (value,)
        if all(isinstance(part, list) and part and are_ids(part, vocab_size) for part in value):
            return tuple(value)
    expected = (
        f"a string, a list of strings, a list of token ids from 0 to {vocab_size - 1}, "
        "or a list of such lists; none of them empty"
    )
    raise fields.fail("prompt", expected)
