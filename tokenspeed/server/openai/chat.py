"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from typing import Any

from tokenspeed.server.exchange import Exchange
from tokenspeed.server.openai.answering import Answering, Prompt
from tokenspeed.server.openai.choice import Choice, Piece
from tokenspeed.server.openai.logprobs import chat_logprobs, prompt_logprobs
from tokenspeed.server.openai.respond import send_events, send_whole
from tokenspeed.server.openai.stream import ChunkFrames, json_line
from tokenspeed.server.openai.types import ChatRequest, Limits, Options, read_chat
from tokenspeed.server.parsers.parts import Call, Part, Reasoning, Text
from tokenspeed.server.prompt import chat_prompt
from tokenspeed.server.service import Service


class ChatCompletions:
    """See `endpoint.Api`."""

    param = "messages"

    def read(self, body: object, limits: Limits) -> ChatRequest:
        return read_chat(body, limits)

    def sequences(self, request: ChatRequest) -> int:
        return request.options.n

    async def prepare(
        self, service: Service, request: ChatRequest, options: Options, most: int
    ) -> tuple[Options, list[Prompt]]:
        prompt = await chat_prompt(
            service,
            request.messages,
            request.template_variables,
            request.tools,
            options,
            plain=request.plain,
        )
        return options, [prompt]

    async def answer(self, answering: Answering, request: ChatRequest, exchange: Exchange) -> None:
        shape = _ChatShape(answering.service, request)
        answer = send_events if request.options.stream else send_whole
        await answer(answering, shape, exchange)


class _ChatShape:
    def __init__(self, service: Service, request: ChatRequest) -> None:
        self._text = service.text
        self._options = request.options
        self._top = request.options.sampling.logprobs
        self._beside_opening = b""
        self._calls: Counter[int] = Counter()  # tool calls so far, by choice
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.options.model,
            "system_fingerprint": service.fingerprint,
        }

    def whole(self, answering: Answering, pieces: list[list[Piece]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            **self._head,
            "choices": [self._choice(index, parts) for index, parts in enumerate(pieces)],
            "usage": answering.usage(),
        }
        wanted = self._options.sampling.prompt_logprobs
        if wanted is not None:
            entries = answering.choices[0].prompt_logprobs
            body["prompt_logprobs"] = prompt_logprobs(self._text, entries, wanted)
        if self._options.return_token_ids:
            body["prompt_token_ids"] = answering.prompts[0].ids()
        return body

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "message": _message([part for piece in pieces for part in piece.parts]),
            "logprobs": self._logprobs(pieces),
            "finish_reason": pieces[-1].finish,
            "stop_reason": pieces[-1].stop_reason,
        }
        if self._options.return_token_ids:
            choice["token_ids"] = [token for piece in pieces for token in piece.tokens]
        return choice

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any] | None:
        if self._top is None:
            return None
        scored = [entry for piece in pieces for entry in piece.scored]
        return chat_logprobs(self._text, scored, self._top)

    def frames(self, answering: Answering) -> ChunkFrames:
        head: dict[str, Any] = {**self._head, "object": "chat.completion.chunk"}
        if self._options.return_token_ids:
            tokens = json_line(answering.prompts[0].ids())
            self._beside_opening = b',"prompt_token_ids":' + tokens
        return ChunkFrames(head, usage=self._options.include_usage)

    def opening(self, frames: ChunkFrames, choice: Choice) -> bytes:
        delta = b'"delta":{"role":"assistant","content":""}'
        return frames.chunk(choice.index, delta, beside=self._beside_opening)

    def piece(self, frames: ChunkFrames, choice: Choice, piece: Piece) -> bytes:
        deltas = [delta for part in piece.parts for delta in self._deltas(choice.index, part)]
        if not deltas and (piece.scored or piece.tokens):
            deltas = [b'{"content":""}']
        logprobs, tokens = self._logprobs([piece]), piece.tokens
        chunks = b""
        for delta in deltas:
            content = b'"delta":' + delta
            chunks += frames.chunk(choice.index, content, logprobs=logprobs, tokens=tokens)
            # Once per piece: its tokens are those of all its deltas.
            logprobs, tokens = None, ()
        if piece.finish is not None:
            chunks += frames.chunk(
                choice.index,
                b'"delta":{}',
                finish=piece.finish,
                stop_reason=piece.stop_reason,
            )
        return chunks

    def _deltas(self, index: int, part: Part) -> list[bytes]:
        match part:
            case Text(text):
                return [b'{"content":' + json_line(text) + b"}"]
            case Reasoning(text):
                line = json_line(text)
                return [b'{"reasoning":' + line + b',"reasoning_content":' + line + b"}"]
            case Call():
                place = self._calls[index]
                self._calls[index] += 1
                begin = {"index": place, **_call(part, arguments="")}
                rest = {"index": place, "function": {"arguments": part.arguments}}
                return [b'{"tool_calls":' + json_line([delta]) + b"}" for delta in (begin, rest)]


def _message(parts: list[Part]) -> dict[str, Any]:
    """Both names of the reasoning are in use among clients. A field of an empty list of calls
    makes some of them wait for one."""
    text = "".join(part.text for part in parts if isinstance(part, Text))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = [_call(part, part.arguments) for part in parts if isinstance(part, Call)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text if text or not calls else None,
        "refusal": None,
    }
    if reasoning:
        message |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return message | {"tool_calls": calls} if calls else message


def _call(call: Call, arguments: str) -> dict[str, Any]:
    return {
        "id": call.call_id or f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
