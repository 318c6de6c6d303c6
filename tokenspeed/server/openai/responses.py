"""POST /v1/responses, without a store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from tokenspeed.server.exchange import Exchange, send_json
from tokenspeed.server.openai.answering import Answering, Prompt
from tokenspeed.server.openai.choice import Piece
from tokenspeed.server.openai.errors import ApiError
from tokenspeed.server.openai.respond import event_frame, send_named_events, whole_answer
from tokenspeed.server.openai.responses_types import ResponsesRequest, read_responses
from tokenspeed.server.openai.types import Limits, Options
from tokenspeed.server.parsers.parts import Call, Part, Reasoning, Text
from tokenspeed.server.prompt import chat_prompt
from tokenspeed.server.service import Service


class Responses:
    """See `endpoint.Api`."""

    param = "input"

    def read(self, body: object, limits: Limits) -> ResponsesRequest:
        return read_responses(body, limits)

    def sequences(self, request: ResponsesRequest) -> int:
        return 1

    async def prepare(
        self, service: Service, request: ResponsesRequest, options: Options, most: int
    ) -> tuple[Options, list[Prompt]]:
        variables = request.template_variables
        prompt = await chat_prompt(service, request.messages, variables, request.tools, options)
        return options, [prompt]

    async def answer(
        self, answering: Answering, request: ResponsesRequest, exchange: Exchange
    ) -> None:
        answer = _Response(answering, request)
        if request.options.stream:
            await send_named_events(answering, answer, exchange)
            return
        for piece in await whole_answer(answering, exchange):
            for _ in answer.events(piece):
                pass  # the answer keeps what the events build
        await send_json(exchange.send, 200, msgspec.json.encode(answer.body), exchange.headers)


class _Response:
    """One answer. `body` grows with the events; each of them is complete when it is made."""

    def __init__(self, answering: Answering, request: ResponsesRequest) -> None:
        self._answering = answering
        self._sequence = 0
        self._begun = False
        self._open: type[Part] | None = None  # of the item that takes more text
        self.body: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "model": request.options.model,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": None,
            **request.echo,
        }

    def events(self, piece: Piece) -> Iterator[dict[str, Any]]:
        yield from self._begin()
        for part in piece.parts:
            yield from self._part(part)
        if piece.finish is None:
            return
        cut = piece.finish == "length"
        yield from self._close("incomplete" if cut else "completed")
        self.body["status"] = "incomplete" if cut else "completed"
        self.body["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        self.body["usage"] = self._usage()
        yield self._event(f"response.{self.body['status']}", response=self.body)

    def failure(self, error: ApiError) -> bytes:
        """The last frame where the engine could not complete the answer."""
        self.body["status"] = "failed"
        self.body["error"] = {"code": "server_error", "message": error.message}
        return event_frame(self._event("response.failed", response=self.body))

    def _begin(self) -> Iterator[dict[str, Any]]:
        if not self._begun:
            self._begun = True
            yield self._event("response.created", response=self.body)
            yield self._event("response.in_progress", response=self.body)

    def _part(self, part: Part) -> Iterator[dict[str, Any]]:
        if isinstance(part, Call):
            yield from self._close("completed")
            yield from self._call(part)
            return
        if self._open is not type(part):
            yield from self._close("completed")
            yield from self._start(part)
        self._content["text"] += part.text
        kind = "output_text" if isinstance(part, Text) else "reasoning_text"
        extra: dict[str, Any] = {"logprobs": []} if isinstance(part, Text) else {}
        yield self._in_content(f"response.{kind}.delta", delta=part.text, **extra)

    def _start(self, part: Text | Reasoning) -> Iterator[dict[str, Any]]:
        self._open = type(part)
        unique = secrets.token_hex(24)
        shared: dict[str, Any] = {"status": "in_progress", "content": []}
        head: dict[str, Any]
        empty: dict[str, Any]
        if isinstance(part, Text):
            head = {"id": f"msg_{unique}", "type": "message", "role": "assistant"}
            empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            head = {"id": f"rs_{unique}", "type": "reasoning", "summary": []}
            empty = {"type": "reasoning_text", "text": ""}
        self.body["output"].append({**head, **shared})
        yield self._of_item("response.output_item.added", item=self._item)
        self._item["content"].append(empty)
        yield self._in_content("response.content_part.added", part=empty)

    def _close(self, status: str) -> Iterator[dict[str, Any]]:
        if self._open is None:
            return
        is_text = self._open is Text
        self._open = None
        kind = "output_text" if is_text else "reasoning_text"
        extra: dict[str, Any] = {"logprobs": []} if is_text else {}
        text = self._content["text"]
        yield self._in_content(f"response.{kind}.done", text=text, **extra)
        yield self._in_content("response.content_part.done", part=self._content)
        self._item["status"] = status
        yield self._of_item("response.output_item.done", item=self._item)

    def _call(self, call: Call) -> Iterator[dict[str, Any]]:
        item = {
            "id": f"fc_{secrets.token_hex(24)}",
            "type": "function_call",
            "call_id": call.call_id or f"call_{secrets.token_hex(12)}",
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        self.body["output"].append(item)
        yield self._of_item("response.output_item.added", item=item)
        item |= {"arguments": call.arguments, "status": "completed"}
        about = {"item_id": item["id"]}
        given = call.arguments
        yield self._of_item("response.function_call_arguments.delta", delta=given, **about)
        yield self._of_item(
            "response.function_call_arguments.done", arguments=given, name=call.name, **about
        )
        yield self._of_item("response.output_item.done", item=item)

    @property
    def _item(self) -> dict[str, Any]:
        item: dict[str, Any] = self.body["output"][-1]
        return item

    @property
    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = self._item["content"][-1]
        return content

    def _in_content(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._of_item(kind, item_id=self._item["id"], content_index=0, **fields)

    def _of_item(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(kind, output_index=len(self.body["output"]) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _usage(self) -> dict[str, Any]:
        usage = self._answering.usage()
        reasoning = usage.get("completion_tokens_details", {"reasoning_tokens": 0})
        return {
            "input_tokens": usage["prompt_tokens"],
            # Nothing is charged for what the prefix cache keeps, and clients want to be told so.
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": reasoning,
            "total_tokens": usage["total_tokens"],
        }
