"""Submits the sequences of one HTTP request and hands on their pieces.

`n` choices of each of several prompts are as many engine requests. Choice `p * n + k` is
sibling k of prompt p.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from tokenspeed.engine import Answer, EngineUnavailable, Hold
from tokenspeed.request import Constraints, Delta, Request
from tokenspeed.server.openai.choice import Choice, Piece
from tokenspeed.server.openai.errors import bad_request, context_too_long, unavailable
from tokenspeed.server.openai.types import Options
from tokenspeed.server.parsers.answer import Parser
from tokenspeed.server.service import Service
from tokenspeed.server.tracing import SequenceTrace
from tokenspeed.wire import Capacity

ANSWERING = "tokenspeed.answering"  # its place in the scope of the HTTP request
Take: TypeAlias = "Callable[[Choice, Piece], Hold]"


@dataclass(frozen=True, slots=True)
class Prompt:
    """`packed` holds the ids as little-endian int32, which is how they travel: a conversation of
    50,000 tokens never becomes as many objects. `text` is what an echo shows; `parser` makes the
    parser of one answer, None for raw text. `constraints` is what its answers are held to."""

    packed: bytes
    text: str = ""
    parser: Callable[[], Parser] | None = None
    constraints: Constraints | None = None

    @classmethod
    def of(cls, ids: Sequence[int], text: str = "") -> Prompt:
        return cls(np.asarray(ids, dtype="<i4").tobytes(), text)

    def __len__(self) -> int:
        return len(self.packed) // 4

    def ids(self, last: int = 0) -> list[int]:
        """The ids; with `last`, at most so many from the end."""
        packed = self.packed[-4 * last :] if last else self.packed
        ids: list[int] = np.frombuffer(packed, "<i4").tolist()
        return ids


class Answering:
    """The sequences of one request: built, checked against the limits, then run once."""

    def __init__(
        self,
        service: Service,
        options: Options,
        prompts: Sequence[Prompt],
        *,
        capacity: Capacity,
        arrived: float,
        param: str,
    ) -> None:
        """`param` names the prompt's field in errors. Raises ApiError 400 when a prompt does
        not fit."""
        self.prompts = prompts
        self.options = options
        self.service = service
        self._arrived = arrived
        self._submitted = arrived
        self._first = 0.0  # when the first piece came
        limit, step = service.context_limit(capacity), service.prompt_limit()
        longest = max(map(len, prompts))
        if step is not None and longest > step:
            message = f"Prompts may have {step} tokens here, not {longest}: they are not cut."
            raise bad_request(message, param, "context_length_exceeded")
        self._budgets = [_answer_budget(len(prompt), options, limit, param) for prompt in prompts]
        vocab = service.limits.vocab_size
        if any(np.frombuffer(prompt.packed, "<i4").max() >= vocab for prompt in prompts):
            raise bad_request(f"The prompt has ids beyond the model's {vocab} tokens.", param)
        self.choices = [self._choice(index) for index in range(len(prompts) * options.n)]

    def _choice(self, index: int) -> Choice:
        service, prompt = self.service, self.prompt_of(index)
        return Choice(
            index,
            service.text,
            self.options,
            begin=len(prompt.text) if self.options.echo else 0,
            parser=None if prompt.parser is None else prompt.parser(),
            shown=frozenset() if prompt.parser is None else service.shown_ids,
        )

    def seconds_left(self) -> float | None:
        """Until the request is out of time; None where it may take as long as it likes."""
        seconds = self.service.plan.serve.timeout_seconds
        return None if seconds is None else self._arrived + seconds - time.monotonic()

    def traces(self) -> tuple[SequenceTrace, ...]:
        """What became of its sequences; one that was broken off ended now."""
        now = time.monotonic()
        return tuple(
            SequenceTrace(
                submitted=self._submitted,
                queued_seconds=choice.queued_seconds,
                first_token=choice.first_token,
                ended=choice.ended or now,
                prompt_tokens=len(self.prompt_of(choice.index)),
                cached_tokens=choice.cached_tokens,
                completion_tokens=choice.completion_tokens,
                finish=choice.finish or "error",
            )
            for choice in self.choices
        )

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[index // self.options.n]

    def usage(self) -> dict[str, Any]:
        """Each prompt counts once, however many choices it has."""
        prompt = sum(map(len, self.prompts))
        completion = sum(choice.completion_tokens for choice in self.choices)
        cached = sum(choice.cached_tokens for choice in self.choices[:: self.options.n])
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if self.service.dialect.reasoning is not None and self.prompts[0].parser is not None:
            reasoning = sum(choice.reasoning_tokens for choice in self.choices)
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        return usage

    async def run(self, take: Take) -> None:
        """Submits everything at once, and hands each piece to `take` as it comes, until every
        choice has ended. Leaving early aborts what has not.

        Raises ApiError when the engine takes no requests or fails, and what `take` raises.
        """
        self._submitted = time.monotonic()
        answers: list[Answer] = []
        try:
            for choice in self.choices:
                try:
                    answers.append(self.service.engine.generate(self._request(choice.index)))
                except EngineUnavailable as error:
                    raise unavailable(error) from error
            pairs = zip(self.choices, answers, strict=True)
            deliveries = [self._deliver(choice, answer, take) for choice, answer in pairs]
            await (deliveries[0] if len(deliveries) == 1 else _together(deliveries))
        finally:
            for answer in answers:
                answer.close()
        self._measure()

    async def _deliver(self, choice: Choice, answer: Answer, take: Take) -> None:
        def pass_on(delta: Delta) -> Hold:
            piece = choice.push(delta)
            if not self._first:
                self._first = time.monotonic()
                self.service.metrics.first_token_seconds.observe(self._first - self._arrived)
            if piece.finish is not None:
                choice.ended, choice.finish = time.monotonic(), piece.finish
                # A stop string ends the choice before the engine knows.
                answer.close()
            return take(choice, piece)

        await answer.deliver(pass_on)

    def _measure(self) -> None:
        metrics, end = self.service.metrics, time.monotonic()
        metrics.request_seconds.observe(end - self._arrived)
        if len(self.choices) == 1 and self.choices[0].completion_tokens > 1:
            per_token = (end - self._first) / (self.choices[0].completion_tokens - 1)
            metrics.token_seconds.observe(per_token)

    def _request(self, index: int) -> Request:
        options = self.options
        prompt = index // options.n
        ends = () if options.ignore_eos else self.service.text.eos_token_ids
        sampling = options.sampling_of(index % options.n)
        if options.echo and sampling.logprobs is not None:
            most = max(sampling.logprobs, sampling.prompt_logprobs or 0)
            sampling = replace(sampling, prompt_logprobs=most)
        return Request(
            request_id=self.service.engine.next_request_id(),
            tokens=self.prompts[prompt].packed,
            max_tokens=self._budgets[prompt],
            sampling=sampling,
            stop_token_ids=tuple(dict.fromkeys((*options.stop_token_ids, *ends))),
            min_tokens=options.min_tokens,
            priority=options.priority,
            salt=options.salt,
            constraints=self.prompts[prompt].constraints,
        )


async def _together(deliveries: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Until all have ended; the first that fails ends the others."""
    tasks = [asyncio.create_task(delivery) for delivery in deliveries]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _answer_budget(prompt: int, options: Options, limit: int, param: str) -> int:
    """Tokens the answer may have: what was asked for, or else the room that is left."""
    asked = options.max_tokens
    least = 1 if asked is None else asked
    if prompt + least > limit:
        raise context_too_long(limit, prompt, least, param)
    budget = limit - prompt if asked is None else asked
    if options.min_tokens > budget:
        message = f"'min_tokens' is {options.min_tokens}, but the answer has {budget} at most."
        raise bad_request(message, "min_tokens")
    return budget
