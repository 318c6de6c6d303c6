"""POST /tokenize and /detokenize, also under /v1: what a prompt is made of. Needs no engine."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from tokenspeed.server.exchange import ignored_header, read_json, send_json
from tokenspeed.server.keys import tenant_of
from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.fields import Fields
from tokenspeed.server.openai.messages import read_messages
from tokenspeed.server.openai.tools import read_tools
from tokenspeed.server.openai.types import REFUSED_CHAT, read_variables
from tokenspeed.server.prompt import chat_prompt
from tokenspeed.server.service import Service
from tokenspeed.tokenizer import TextError

_MAX_TEXT = 1 << 30
_MAX_IDS = 1 << 24


class Tokenize:
    """Ids of `prompt`, exactly as /v1/completions would take it, or of `messages` with `tools` and
    `chat_template_kwargs`, exactly as /v1/chat/completions would."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        fields = Fields(await read_json(scope, receive, service.plan.serve.max_body_bytes))
        _check_model(service, fields)
        spell = fields.boolean("return_token_strs")
        ignored: list[str] = []
        if fields.take("messages") is None:
            tokens = await self._prompt(fields)
        else:
            tokens = await self._chat(fields, ignored, tenant_of(scope))
        answer: dict[str, Any] = {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": service.plan.scheduler.max_model_len,
        }
        if spell:
            spelt = [service.text.token_bytes(token) for token in tokens]
            answer["token_strs"] = [text.decode(errors="replace") for text in spelt]
        headers = ignored_header((*fields.unread(), *ignored))
        await send_json(send, 200, msgspec.json.encode(answer), headers)

    async def _prompt(self, fields: Fields) -> list[int]:
        prompt = fields.text("prompt", _MAX_TEXT)
        if prompt is None:
            raise bad_request("'prompt' or 'messages' is required.", "prompt")
        bare = fields.take("add_special_tokens") is False
        if not bare:
            fields.boolean("add_special_tokens")
        text = self._service.text
        try:
            return await self._service.in_thread(text.encode_bare if bare else text.encode, prompt)
        except TextError as error:
            raise bad_request(str(error), "prompt") from None

    async def _chat(self, fields: Fields, ignored: list[str], tenant: bytes) -> list[int]:
        fields.refuse({**REFUSED_CHAT, "prompt": (), "add_special_tokens": (False,)})
        read = read_messages(fields, self._service.limits.says_control)
        tools, unused = read_tools(fields)
        ignored += [*read.ignored, *unused]
        variables = read_variables(fields, self._service.limits)
        prompt = await chat_prompt(self._service, read.messages, variables, tools, space=tenant)
        return prompt.ids()


class Detokenize:
    """The text of `tokens`, control tokens included."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        fields = Fields(await read_json(scope, receive, service.plan.serve.max_body_bytes))
        _check_model(service, fields)
        if fields.take("tokens") is None:
            raise bad_request("'tokens' is required.", "tokens", "missing_required_parameter")
        tokens = fields.token_ids("tokens", service.limits.vocab_size, _MAX_IDS)
        text = await service.in_thread(service.text.spell, tokens)
        body = msgspec.json.encode({"prompt": text})
        await send_json(send, 200, body, ignored_header(tuple(fields.unread())))


def _check_model(service: Service, fields: Fields) -> None:
    name = fields.text("model", 1000)
    if name is not None:
        service.require_model(name)
