"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from tokenspeed.server.anthropic.errors import error_body
from tokenspeed.server.anthropic.types import MessagesRequest, read_request
from tokenspeed.server.exchange import Exchange, ignored_header, read_json, send_json
from tokenspeed.server.keys import tenant_of
from tokenspeed.server.openai.answering import Answering, Prompt
from tokenspeed.server.openai.choice import Piece
from tokenspeed.server.openai.errors import ApiError, bad_request
from tokenspeed.server.openai.respond import send_named_events, whole_answer
from tokenspeed.server.openai.types import Limits, Options
from tokenspeed.server.parsers.parts import Call, Part, Reasoning, Text, merged
from tokenspeed.server.prompt import chat_prompt
from tokenspeed.server.service import Service


class Messages:
    """See `endpoint.Api`."""

    param = "messages"

    def read(self, body: object, limits: Limits) -> MessagesRequest:
        return read_request(body, limits)

    def sequences(self, request: MessagesRequest) -> int:
        return 1

    async def prepare(
        self, service: Service, request: MessagesRequest, options: Options, most: int
    ) -> tuple[Options, list[Prompt]]:
        prompt = await _prompt(service, request, options)
        return _fitted(options, len(prompt), most), [prompt]

    async def answer(
        self, answering: Answering, request: MessagesRequest, exchange: Exchange
    ) -> None:
        answer = _Message(answering)
        if request.options.stream:
            await send_named_events(answering, answer, exchange)
            return
        pieces = await whole_answer(answering, exchange)
        await send_json(
            exchange.send, 200, msgspec.json.encode(answer.whole(pieces)), exchange.headers
        )


class CountTokens:
    """The endpoint as an ASGI application. Needs no engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        body = await read_json(scope, receive, service.plan.serve.max_body_bytes)
        request = read_request(body, service.limits, counting=True)
        service.require_model(request.options.model)
        options = request.options.salted(tenant_of(scope))
        prompt = await _prompt(service, request, options, counting=True)
        answer = msgspec.json.encode({"input_tokens": len(prompt)})
        await send_json(send, 200, answer, ignored_header(request.ignored))


async def _prompt(
    service: Service, request: MessagesRequest, options: Options, *, counting: bool = False
) -> Prompt:
    variables = dict(request.effort.variables)
    if request.thinking is not None:
        variables |= dict.fromkeys(service.limits.switches, request.thinking)
    answered = None if counting else options
    return await chat_prompt(
        service, request.messages, variables, request.tools, answered, space=options.salt
    )


def _fitted(options: Options, prompt: int, limit: int) -> Options:
    """The options with the answer's limit cut to the room left: clients of this API have to name
    one, and name that of another model."""
    if prompt >= limit:
        # Clients look for these words to know that the conversation has to be made shorter.
        message = f"prompt is too long: {prompt} tokens > {limit - 1} maximum"
        raise bad_request(message, "messages", "context_length_exceeded")
    return replace(options, max_tokens=min(options.max_tokens or 1, limit - prompt))


class _Message:
    """One answer as blocks: whole, or as the events that build the same."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._begun = False
        self._open = ""  # type of the block that takes more text
        self._block = -1
        self._head: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": answering.options.model,
        }

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        parts = merged([part for piece in pieces for part in piece.parts])
        return {
            **self._head,
            "content": [_block(part) for part in parts],
            **_ending(pieces[-1]),
            "usage": self._usage(),
        }

    def failure(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + error_body(error) + b"\n\n"

    def events(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if not self._begun:
            self._begun = True
            open_end: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
            usage = {**self._usage(), "output_tokens": 0}
            usage.pop("output_tokens_details", None)
            message = {**self._head, **open_end, "usage": usage}
            yield {"type": "message_start", "message": message}
        for part in piece.parts:
            yield from self._part(part)
        if piece.finish is not None:
            yield from self._stop()
            yield {"type": "message_delta", "delta": _ending(piece), "usage": self._usage()}
            yield {"type": "message_stop"}

    def _part(self, part: Part) -> Iterator[dict[str, Any]]:
        match part:
            case Text(text):
                yield from self._start("text", part)
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._start("thinking", part)
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case Call():
                yield from self._start("", part)
                yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})
                yield from self._stop()

    def _start(self, kind: str, part: Part) -> Iterator[dict[str, Any]]:
        if kind and kind == self._open:
            return
        yield from self._stop()
        self._block += 1
        self._open = kind or "tool_use"
        empty: dict[str, Any] = {"text": {"text": ""}, "thinking": {"thinking": ""}}.get(
            kind, {"input": {}}
        )
        block = _block(part) | empty
        yield {"type": "content_block_start", "index": self._block, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._block, "delta": delta}

    def _stop(self) -> Iterator[dict[str, Any]]:
        if self._open == "thinking":
            # Some clients drop a block from later turns when its signature never came.
            yield self._delta({"type": "signature_delta", "signature": ""})
        if self._open:
            self._open = ""
            yield {"type": "content_block_stop", "index": self._block}

    def _usage(self) -> dict[str, Any]:
        """Tokens read from the prefix cache are not input tokens here. Writing to it is free."""
        usage = self._answering.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        told: dict[str, Any] = {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }
        details = usage.get("completion_tokens_details")
        if details is not None:
            told["output_tokens_details"] = {"thinking_tokens": details["reasoning_tokens"]}
        return told


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Reasoning(text):
            # Nothing is signed, and nothing is asked for when the block comes back.
            return {"type": "thinking", "thinking": text, "signature": ""}
        case Call(name, arguments, call_id):
            given = msgspec.json.decode(arguments)
            unique = call_id or f"toolu_{secrets.token_hex(12)}"
            return {"type": "tool_use", "id": unique, "name": name, "input": given}


def _ending(piece: Piece) -> dict[str, Any]:
    if isinstance(piece.stop_reason, str) and piece.finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": piece.stop_reason}
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return {"stop_reason": reasons[piece.finish or "stop"], "stop_sequence": None}
