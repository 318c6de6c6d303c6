"""From messages and tools to the prompt of an answer and the parser that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tokenspeed.server.constraints import chat_constraints
from tokenspeed.server.openai.answering import Prompt
from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.tools import ToolUse
from tokenspeed.server.openai.types import Options
from tokenspeed.server.service import Service
from tokenspeed.tokenizer import TextError, VariableError

# Enough for any opening mark of reasoning and the line breaks after it.
_END_TOKENS = 32


async def chat_prompt(
    service: Service,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    tools: ToolUse | None,
    options: Options | None = None,
    *,
    space: bytes = b"",
    plain: bool = False,
) -> Prompt:
    """The rendered conversation. `options` are those of the answer, None where none is wanted.
    Their salt, or else `space`, says whose earlier conversations may speed it up. `plain`: it is
    known that no message says a control token.

    Raises ApiError 400 when the template refuses it, when tools are given to a model whose calls
    cannot be read, or when the answer cannot be held to what is asked of it.
    """
    text, dialect = service.text, service.dialect
    if tools is not None and not dialect.takes_tools:
        if not text.has_chat_template:
            why = "the model has no chat template"
        elif "tools" not in text.template_reads:
            why = "its chat template shows none to the model"
        else:
            why = "no parser here knows how it writes calls"
        raise bad_request(f"This model takes no tools: {why}.", "tools", "unsupported_parameter")
    try:
        shown = None if tools is None else tools.shown
        space = space if options is None else options.salt
        if not service.asks_for_none:
            messages = [_with_words(message) for message in messages]
        packed = await service.in_thread(
            text.encode_chat, messages, variables, shown, space=space, plain=plain
        )
        prompt = Prompt(packed)
    except TextError as error:
        field = "chat_template_kwargs" if isinstance(error, VariableError) else "messages"
        raise bad_request(str(error), field) from None
    end = b"".join(text.token_bytes(token) for token in prompt.ids(_END_TOKENS))
    end_text = end.decode(errors="replace")
    constraints = None
    if options is not None:
        constraints = chat_constraints(text, dialect, options, tools, end_text)
    if tools is None and dialect.reasoning is None:
        return replace(prompt, constraints=constraints)
    schemas = None if tools is None else tools.schemas
    parallel = tools is None or tools.parallel
    must = tools is not None and tools.must
    parser = partial(dialect.parser, end_text, schemas, parallel, must)
    return replace(prompt, parser=parser, constraints=constraints)


def _with_words(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A turn of calls alone has no content, which many templates would fail to put into a row."""
    return message if message["content"] is not None else {**message, "content": ""}
