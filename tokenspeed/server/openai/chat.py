"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from typing import Any

from starlette.types import Receive, Scope, Send

from tokenspeed.server.exchange import ignored_header, read_json
from tokenspeed.server.keys import tenant_of
from tokenspeed.server.openai.choice import Choice, Piece
from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.generation import Generation, Prompt
from tokenspeed.server.openai.logprobs import chat_logprobs
from tokenspeed.server.openai.respond import send_events, send_whole
from tokenspeed.server.openai.stream import ChunkFrames, json_line
from tokenspeed.server.openai.types import ChatRequest, read_chat
from tokenspeed.server.service import Service
from tokenspeed.tokenizer import TextError


class ChatCompletions:
    """The endpoint as an ASGI application."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, arrived = self._service, time.monotonic()
        body = await read_json(scope, receive, service.plan.serve.max_body_bytes)
        request = read_chat(body, service.limits)
        service.require_model(request.options.model)
        capacity = service.require_capacity()
        with service.admission.hold(request.options.n, capacity.max_running):
            generation = Generation(
                service,
                request.options.salted(tenant_of(scope)),
                [await self._prompt(request)],
                capacity=capacity,
                arrived=arrived,
                param="messages",
            )
            shape = _ChatShape(service, request)
            answer = send_events if request.options.stream else send_whole
            await answer(generation, shape, receive, send, ignored_header(request.ignored))

    async def _prompt(self, request: ChatRequest) -> Prompt:
        text = self._service.text
        try:
            tokens = await self._service.in_thread(
                text.encode_chat, request.messages, request.template_variables
            )
        except TextError as error:
            raise bad_request(str(error), "messages") from None
        return Prompt(tokens)


class _ChatShape:
    def __init__(self, service: Service, request: ChatRequest) -> None:
        self._text = service.text
        self._options = request.options
        self._top = request.options.sampling.logprobs
        self._beside_opening = b""
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.options.model,
            "system_fingerprint": service.fingerprint,
        }

    def whole(self, generation: Generation, pieces: list[list[Piece]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            **self._head,
            "choices": [self._choice(index, parts) for index, parts in enumerate(pieces)],
            "usage": generation.usage(),
        }
        if self._options.return_token_ids:
            body["prompt_token_ids"] = generation.prompts[0].tokens
        return body

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "message": {
                "role": "assistant",
                "content": "".join(piece.text for piece in pieces),
                "refusal": None,
            },
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

    def frames(self, generation: Generation) -> ChunkFrames:
        head: dict[str, Any] = {**self._head, "object": "chat.completion.chunk"}
        if self._options.return_token_ids:
            tokens = json_line(generation.prompts[0].tokens)
            self._beside_opening = b',"prompt_token_ids":' + tokens
        return ChunkFrames(head, usage=self._options.include_usage)

    def opening(self, frames: ChunkFrames, choice: Choice) -> bytes:
        delta = b'"delta":{"role":"assistant","content":""}'
        return frames.chunk(choice.index, delta, beside=self._beside_opening)

    def piece(self, frames: ChunkFrames, choice: Choice, piece: Piece) -> bytes:
        chunks = b""
        if piece.text or piece.scored or piece.tokens:
            chunks = frames.chunk(
                choice.index,
                b'"delta":{"content":' + json_line(piece.text) + b"}",
                logprobs=self._logprobs([piece]),
                tokens=piece.tokens,
            )
        if piece.finish is not None:
            chunks += frames.chunk(
                choice.index,
                b'"delta":{}',
                finish=piece.finish,
                stop_reason=piece.stop_reason,
            )
        return chunks
