"""What a request must satisfy before it may touch the loop.

The front checks the same at its edge and words it for the client; here it is the last line, so
that nothing in a single request can end the loop for everybody.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenspeed.request import Constraints, Request, SamplingParams

MAX_LOGPROBS = 20
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of this worker that the scheduler does not know, and the one that it shares:
    `max_request_tokens` counts prompt and answer."""

    vocab_size: int
    max_request_tokens: int


def refusal(result: str, prompt_tokens: int, max_tokens: int, needed: int, limit: int) -> str:
    """A sentence for a `SubmitResult` of that name, with the figures of its `Judgement`."""
    asked = f"{prompt_tokens} prompt tokens and up to {max_tokens} new ones"
    return {
        "DUPLICATE": "the request is open already",
        "EMPTY": "the prompt is empty",
        "TOO_LONG": f"{asked} exceed the context of {limit} tokens",
        "NEVER_FITS": f"{asked} need {needed} blocks, and the cache has {limit}",
        "EXCEEDS_STEP": f"chunked prefill is off and {prompt_tokens} prompt tokens exceed "
        f"the {limit} of a step",
        "QUEUE_FULL": f"the queue is full: {limit} requests run or wait already",
    }[result]


def mistake_in(request: Request, limits: Limits) -> str:
    """The first thing wrong with the request, "" when it may run."""
    return next(_mistakes(request, limits), "")


def _mistakes(request: Request, limits: Limits) -> Iterator[str]:
    if not request.tokens or len(request.tokens) % 4:
        yield "the prompt must be at least one int32 token"
        return
    tokens = np.frombuffer(request.tokens, dtype="<i4")
    if tokens.min() < 0 or tokens.max() >= limits.vocab_size:
        yield f"a prompt token lies outside the vocabulary of {limits.vocab_size}"
    if request.max_tokens < 0:
        yield "max_tokens is negative"
    if len(tokens) + request.max_tokens > limits.max_request_tokens:
        total, most = len(tokens) + request.max_tokens, limits.max_request_tokens
        yield refusal("TOO_LONG", len(tokens), request.max_tokens, total, most)
    constraints = request.constraints or Constraints()
    if any(not 0 <= token < limits.vocab_size for token in constraints.allowed_token_ids):
        yield f"allowed_token_ids names a token outside the vocabulary of {limits.vocab_size}"
    thinking = constraints.thinking
    if thinking is not None:
        if any(not 0 <= token < limits.vocab_size for token in thinking.closing):
            yield f"thinking ends in a token outside the vocabulary of {limits.vocab_size}"
        if not (thinking.begin and thinking.end and thinking.closing):
            yield "thinking lacks its marks"
    numbers = (*request.stop_token_ids, request.min_tokens, abs(request.priority))
    if any(not 0 <= number <= _INT32_MAX for number in numbers):
        yield "stop_token_ids, min_tokens and priority must fit into 32 bits"
    yield from _sampling_mistakes(request.sampling, limits)


def _sampling_mistakes(params: SamplingParams, limits: Limits) -> Iterator[str]:
    floats = (
        params.temperature, params.top_p, params.min_p, params.repetition_penalty,
        params.presence_penalty, params.frequency_penalty,
        *(value for _, value in params.logit_bias),
    )  # fmt: skip
    if not all(map(math.isfinite, floats)):
        yield "a sampling parameter is not a finite number"
    if params.temperature < 0 or params.top_k < 0:
        yield "temperature and top_k must not be negative"
    if not 0 < params.top_p <= 1 or not 0 <= params.min_p <= 1:
        yield "top_p must lie in (0, 1], min_p in [0, 1]"
    if params.repetition_penalty <= 0:
        yield "repetition_penalty must be positive"
    if any(not 0 <= token < limits.vocab_size for token, _ in params.logit_bias):
        yield f"logit_bias names a token outside the vocabulary of {limits.vocab_size}"
    for name, count in (
        ("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs),
    ):  # fmt: skip
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            yield f"{name} must lie between 0 and {MAX_LOGPROBS}"
