"""Submits the sequences of one HTTP request and gathers their pieces.

`n` choices of each of several prompts are as many engine requests. Choice `p * n + k` is
sibling k of prompt p.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from tokenspeed.engine import Answer, EngineUnavailable
from tokenspeed.request import Guidance, Request
from tokenspeed.server.openai.choice import Choice, Piece
from tokenspeed.server.openai.errors import bad_request, context_too_long, unavailable
from tokenspeed.server.openai.types import Options
from tokenspeed.server.parsers.answer import Parser
from tokenspeed.server.service import Service
from tokenspeed.server.tracing import SequenceTrace
from tokenspeed.wire import Capacity

GENERATION = "tokenspeed.generation"  # its place in the scope of the HTTP request
ChoicePiece: TypeAlias = "tuple[Choice, Piece]"


@dataclass(frozen=True, slots=True)
class Prompt:
    """`packed` holds the ids as little-endian int32, which is how they travel: a conversation of
    50,000 tokens never becomes as many objects. `text` is what an echo shows; `parser` makes the
    parser of one answer, None for raw text. `guidance` is what its answers are held to."""

    packed: bytes
    text: str = ""
    parser: Callable[[], Parser] | None = None
    guidance: Guidance | None = None

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


class Generation:
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

    @asynccontextmanager
    async def run(self) -> AsyncIterator[AsyncIterator[ChoicePiece]]:
        """Submits everything at once. Leaving early aborts what has not ended.

        The iterator raises ApiError when the engine fails; entering raises it when the engine
        takes no requests.
        """
        self._submitted = time.monotonic()
        async with AsyncExitStack() as stack:
            answers = []
            for choice in self.choices:
                try:
                    answer = self.service.engine.generate(self._request(choice.index))
                except EngineUnavailable as error:
                    raise unavailable(error) from error
                stack.push_async_callback(answer.aclose)
                answers.append(answer)
            yield await stack.enter_async_context(aclosing(self._timed(answers)))

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
            guidance=self.prompts[prompt].guidance,
        )

    async def _timed(self, answers: Sequence[Answer]) -> AsyncGenerator[ChoicePiece]:
        metrics = self.service.metrics
        first = 0.0
        single = len(answers) == 1
        pieces = _pieces(self.choices[0], answers[0]) if single else _merged(self.choices, answers)
        async with aclosing(pieces):
            async for entry in pieces:
                if not first:
                    first = time.monotonic()
                    metrics.first_token_seconds.observe(first - self._arrived)
                yield entry
        end = time.monotonic()
        metrics.request_seconds.observe(end - self._arrived)
        if single and self.choices[0].completion_tokens > 1:
            per_token = (end - first) / (self.choices[0].completion_tokens - 1)
            metrics.token_seconds.observe(per_token)


async def _pieces(choice: Choice, answer: Answer) -> AsyncGenerator[ChoicePiece]:
    async for delta in answer:
        piece = choice.push(delta)
        yield choice, piece
        if piece.finish is not None:
            choice.ended, choice.finish = time.monotonic(), piece.finish
            # A stop string ends the choice before the engine knows.
            await answer.aclose()
            return


async def _merged(
    choices: Sequence[Choice], answers: Sequence[Answer]
) -> AsyncGenerator[ChoicePiece]:
    """The pieces of all choices as they come; a slow client holds all of them back."""
    queue: asyncio.Queue[ChoicePiece | BaseException | None] = asyncio.Queue(maxsize=len(choices))

    async def forward(choice: Choice, answer: Answer) -> None:
        try:
            async with aclosing(_pieces(choice, answer)) as pieces:
                async for entry in pieces:
                    await queue.put(entry)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [
        asyncio.create_task(forward(choice, answer))
        for choice, answer in zip(choices, answers, strict=True)
    ]
    try:
        running = len(tasks)
        while running:
            entry = await queue.get()
            if entry is None:
                running -= 1
            elif isinstance(entry, BaseException):
                raise entry
            else:
                yield entry
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
