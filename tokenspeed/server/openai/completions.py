"""POST /v1/completions: raw prompts, as text or as token ids; echo; scoring."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

from tokenspeed.server.constraints import text_constraints
from tokenspeed.server.exchange import Exchange
from tokenspeed.server.openai.answering import Answering, Prompt
from tokenspeed.server.openai.choice import Choice, Piece
from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.logprobs import Scored, completion_logprobs, prompt_logprobs
from tokenspeed.server.openai.respond import send_events, send_whole
from tokenspeed.server.openai.stream import ChunkFrames, json_line
from tokenspeed.server.openai.types import (
    COMPLETION_TOKENS,
    CompletionRequest,
    Limits,
    Options,
    read_completion,
)
from tokenspeed.server.service import Service
from tokenspeed.tokenizer import TextError, TextModel

# A text shorter than this is tokenised faster than a thread takes over.
_INLINE_CHARACTERS = 2000


class Completions:
    """See `endpoint.Api`."""

    param = "prompt"

    def read(self, body: object, limits: Limits) -> CompletionRequest:
        return read_completion(body, limits)

    def sequences(self, request: CompletionRequest) -> int:
        return request.options.n * len(request.prompts)

    async def prepare(
        self, service: Service, request: CompletionRequest, options: Options, most: int
    ) -> tuple[Options, list[Prompt]]:
        constraints = text_constraints(service.text, options)
        prompts = [
            replace(await _prompt(service, prompt, options.echo), constraints=constraints)
            for prompt in request.prompts
        ]
        if options.max_tokens is None:
            room = most - max(map(len, prompts))
            default = service.limits.defaults.max_tokens or COMPLETION_TOKENS
            options = replace(options, max_tokens=max(1, min(default, room)))
        return options, prompts

    async def answer(
        self, answering: Answering, request: CompletionRequest, exchange: Exchange
    ) -> None:
        shape = _CompletionShape(answering.service, request)
        answer = send_events if request.options.stream else send_whole
        await answer(answering, shape, exchange)


async def _prompt(service: Service, prompt: str | list[int], echo: bool) -> Prompt:
    text = service.text
    if isinstance(prompt, list):
        return Prompt.of(prompt, text.decode(prompt) if echo else "")
    try:
        if len(prompt) <= _INLINE_CHARACTERS:
            return Prompt.of(text.encode(prompt), prompt)
        return Prompt.of(await service.in_thread(text.encode, prompt), prompt)
    except TextError as error:
        raise bad_request(str(error), "prompt") from None


class _CompletionShape:
    def __init__(self, service: Service, request: CompletionRequest) -> None:
        self._text = service.text
        self._options = request.options
        self._echo = request.options.echo
        self._top = request.options.sampling.logprobs
        self._answering: Answering | None = None
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.options.model,
            "system_fingerprint": service.fingerprint,
        }

    def whole(self, answering: Answering, pieces: list[list[Piece]]) -> dict[str, Any]:
        choices = []
        for choice, parts in zip(answering.choices, pieces, strict=True):
            prompt = answering.prompt_of(choice.index)
            text = "".join(piece.text for piece in parts)
            body: dict[str, Any] = {
                "index": choice.index,
                "text": prompt.text + text if self._echo else text,
                "logprobs": self._logprobs(
                    [
                        *self._echoed(choice, prompt),
                        *(entry for piece in parts for entry in piece.scored),
                    ]
                ),
                "finish_reason": parts[-1].finish,
                "stop_reason": parts[-1].stop_reason,
            }
            wanted = self._options.sampling.prompt_logprobs
            if wanted is not None:
                entries = choice.prompt_logprobs
                body["prompt_logprobs"] = prompt_logprobs(self._text, entries, wanted)
            if self._options.return_token_ids:
                body["prompt_token_ids"] = prompt.ids()
                body["token_ids"] = [token for piece in parts for token in piece.tokens]
            choices.append(body)
        return {**self._head, "choices": choices, "usage": answering.usage()}

    def _echoed(self, choice: Choice, prompt: Prompt) -> list[Scored]:
        if not self._echo or self._top is None:
            return []
        return _scored_prompt(self._text, prompt, choice)

    def _logprobs(self, scored: list[Scored]) -> dict[str, Any] | None:
        return None if self._top is None else completion_logprobs(self._text, scored, self._top)

    def frames(self, answering: Answering) -> ChunkFrames:
        self._answering = answering
        return ChunkFrames(self._head, usage=self._options.include_usage)

    def opening(self, frames: ChunkFrames, choice: Choice) -> bytes:
        assert self._answering is not None
        prompt = self._answering.prompt_of(choice.index)
        if not self._echo and not self._options.return_token_ids:
            return b""
        content = b'"text":' + json_line(prompt.text if self._echo else "")
        if self._options.return_token_ids:
            content += b',"prompt_token_ids":' + json_line(prompt.ids())
        logprobs = self._logprobs(self._echoed(choice, prompt)) if self._echo else None
        return frames.chunk(choice.index, content, logprobs=logprobs)

    def piece(self, frames: ChunkFrames, choice: Choice, piece: Piece) -> bytes:
        if not (piece.text or piece.scored or piece.tokens or piece.finish):
            return b""
        return frames.chunk(
            choice.index,
            b'"text":' + json_line(piece.text),
            logprobs=self._logprobs(piece.scored),
            finish=piece.finish,
            stop_reason=piece.stop_reason,
            tokens=piece.tokens,
        )


def _scored_prompt(text: TextModel, prompt: Prompt, choice: Choice) -> list[Scored]:
    """Log-probabilities of the prompt's tokens; nothing predicts the first."""
    decoder, begin, scored = text.stream(), 0, []
    for token, values in zip(prompt.ids(), choice.prompt_logprobs, strict=True):
        scored.append(Scored(token, values, begin))
        begin += len(decoder.push(token))
    return scored
