"""What goes into the engine and what comes out: Request in, Deltas out.

Plain values that cross the process border (see `wire`): token ids, never text. Text belongs to
the front: templates and tokenisation before a Request, detokenisation and stop strings after.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a request ended. The last Delta of every request carries exactly one."""

    STOP = "stop"  # an end-of-sequence or stop token id was sampled
    LENGTH = "length"  # max_tokens or the context limit was reached
    ABORT = "abort"  # the client went away, or the front stopped it
    ERROR = "error"  # the engine could not go on; Delta.error says why
    FULL = "full"  # the worker has no place for it to wait in; Delta.error says which
    EXPIRED = "expired"  # it waited to be computed for longer than it may
    INVALID = "invalid"  # its grammar cannot be used; Delta.error tells the client why


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn from the logits, in this order: repetition, presence and
    frequency penalties, bias, temperature, top-k, min-p, top-p, draw.

    `seed` decides every draw together with the token's position, so the result depends neither
    on the batch nor on chunking. `temperature == 0` is greedy. `top_k == 0` means all.
    `logprobs` is None for none, else how many alternatives to report beside the drawn token
    (0 to 20); the values are taken from the model's own distribution, before any of the above.
    `prompt_logprobs` is the same for each prompt token but the first.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """A limit to the reasoning at the beginning of an answer.

    It stands between `begin` and `end`; `opened`: the prompt ends in `begin`. After `max_tokens`
    of its tokens the answer goes on with the tokens `closing` (at least one), whatever the model
    would have said.
    """

    begin: str
    end: str
    opened: bool
    max_tokens: int
    closing: tuple[int, ...]


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer is held to beside its sampling parameters.

    `grammar` is for `grammar.compiler`, "" for none; it covers the answer from its first token to
    its end. `allowed_token_ids` are all that may be drawn, () for no limit.
    """

    grammar: str = ""
    thinking: Thinking | None = None
    allowed_token_ids: tuple[int, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to continue. `n > 1` at the API is n of these.

    `tokens` holds the prompt as little-endian int32 (at least one token). `max_tokens` counts
    new tokens and may be 0, which computes the prompt and ends. `stop_token_ids` end the request
    when sampled; they include the model's own end tokens unless the client asked to ignore those.
    Before `min_tokens` tokens none of them is drawn. `salt` separates prefix caches: blocks are
    shared only between equal salts. `request_id` is unique within one front.
    """

    request_id: int
    tokens: bytes
    max_tokens: int
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    priority: int = 0
    salt: bytes = b""
    constraints: Constraints | None = None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of a token and of the likeliest alternatives, natural logarithm."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of an answer. Every request ends with exactly one Delta whose
    `finish_reason` is set, whatever happened.

    `cached_tokens` (prompt tokens served from the prefix cache), `queued_seconds` (from its arrival
    at the worker until it was first computed) and `prompt_logprobs` (one entry per prompt token,
    the first None) are set on the request's first Delta and only there.
    """

    request_id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    queued_seconds: float | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    error: str = ""
