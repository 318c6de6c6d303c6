"""GET /openapi.json: what the endpoints take and give.

Fields of bodies are described by the code that reads them: each reader is run once over a least
body, and writes down the types and bounds that it asks for (`Described`). Only what a reader takes
as it is, and looks at itself, is described here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed.server.admin import read_log_level, read_nothing, read_profile
from tokenspeed.server.anthropic.types import read_request
from tokenspeed.server.keys import ADMIN
from tokenspeed.server.listen import is_local
from tokenspeed.server.openai.fields import Described
from tokenspeed.server.openai.responses_types import read_responses
from tokenspeed.server.openai.types import Limits, read_chat, read_completion
from tokenspeed.server.service import Service

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TEXTS: Schema = {"type": "array", "maxItems": 4, "items": {"type": "string", "minLength": 1}}
_PARTS: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": _TEXT},
    },
}
_WORDS: Schema = {"anyOf": [_TEXT, _PARTS]}


def _message(*roles: str) -> Schema:
    return {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": list(roles)}, "content": _WORDS},
    }


def _list(items: Schema, least: int = 0) -> Schema:
    return {"type": "array", "minItems": least, "items": items}


def _function(inside: bool, parameters: str) -> Schema:
    properties = {"name": {"type": "string", "minLength": 1, "maxLength": 256}}
    named = {
        "type": "object",
        "required": ["name"],
        "properties": {**properties, "description": _TEXT, parameters: _OBJECT},
    }
    if not inside:
        return named
    kind = {"type": {"const": "function"}, "function": named}
    return {"type": "object", "required": ["type", "function"], "properties": kind}


_FORMS: dict[str, Schema] = {
    "json_schema": {"type": ["object", "string"]},
    "regex": _TEXT,
    "ebnf": _TEXT,
}

# Fields that a reader takes as they are, by path.
_TAKEN: dict[str, dict[str, Schema]] = {
    "/v1/chat/completions": {
        "messages": _list(_message("system", "developer", "user", "assistant", "tool"), 1),
        "tools": _list(_function(True, "parameters")),
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, _OBJECT]},
        "stop": {"anyOf": [_TEXT, _TEXTS]},
        "parallel_tool_calls": {"type": ["boolean", "null"]},
        **_FORMS,
    },
    "/v1/completions": {
        "prompt": {"anyOf": [_TEXT, _list(_TEXT, 1), _list(_COUNT, 1), _list(_list(_COUNT, 1), 1)]},
        "stop": {"anyOf": [_TEXT, _TEXTS]},
        **_FORMS,
    },
    "/v1/responses": {
        "input": {"anyOf": [_TEXT, _list(_OBJECT, 1)]},
        "tools": _list(_OBJECT),
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, _OBJECT]},
        "metadata": _OBJECT,
        "parallel_tool_calls": {"type": ["boolean", "null"]},
    },
    "/v1/messages": {
        "messages": _list(_message("user", "assistant", "system"), 1),
        "system": _WORDS,
        "tools": _list(_function(False, "input_schema")),
        "stop_sequences": _TEXTS,
        "thread": {"type": "null"},
    },
}
_TALK = [{"role": "user", "content": "x"}]
_LEAST: dict[str, tuple[Callable[[object, Limits], object], dict[str, Any]]] = {
    "/v1/chat/completions": (read_chat, {"model": "x", "messages": _TALK}),
    "/v1/completions": (read_completion, {"model": "x", "prompt": "x"}),
    "/v1/responses": (read_responses, {"model": "x", "input": "x"}),
    "/v1/messages": (read_request, {"model": "x", "messages": _TALK, "max_tokens": 1}),
}
_ADMIN: dict[str, tuple[Callable[[object], object], dict[str, Any]]] = {
    "drain": (read_nothing, {}),
    "resume": (read_nothing, {}),
    "flush": (read_nothing, {}),
    "experts": (read_nothing, {}),
    "profile": (read_profile, {}),
    "log-level": (read_log_level, {"level": "info"}),
}
_DRAINING: Schema = {"draining": {"type": "boolean"}, "open_requests": _COUNT}
_USAGE = {"type": "object", "additionalProperties": True}
_ANSWERS: dict[str, Schema] = {
    "/v1/chat/completions": {
        "id": _TEXT,
        "object": {"const": "chat.completion"},
        "created": _COUNT,
        "model": _TEXT,
        "choices": _list(
            {
                "type": "object",
                "required": ["index", "message", "finish_reason"],
                "properties": {
                    "index": _COUNT,
                    "message": _OBJECT,
                    "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
                },
            },
            1,
        ),
        "usage": _USAGE,
    },
    "/v1/completions": {
        "id": _TEXT,
        "object": {"const": "text_completion"},
        "created": _COUNT,
        "model": _TEXT,
        "choices": _list(
            {
                "type": "object",
                "required": ["index", "text", "finish_reason"],
                "properties": {
                    "index": _COUNT,
                    "text": _TEXT,
                    "finish_reason": {"enum": ["stop", "length"]},
                },
            },
            1,
        ),
        "usage": _USAGE,
    },
    "/v1/responses": {
        "id": _TEXT,
        "object": {"const": "response"},
        "status": {"enum": ["completed", "incomplete"]},
        "output": _list(_OBJECT),
        "usage": _USAGE,
    },
    "/v1/messages": {
        "id": _TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "content": _list(_OBJECT),
        "stop_reason": _TEXT,
        "usage": _USAGE,
    },
    "/v1/messages/count_tokens": {"input_tokens": _COUNT},
    "/tokenize": {"tokens": _list(_COUNT), "count": _COUNT, "max_model_len": _COUNT},
    "/detokenize": {"prompt": _TEXT},
    f"{ADMIN}drain": _DRAINING,
    f"{ADMIN}resume": _DRAINING,
    f"{ADMIN}flush": {"blocks": _COUNT},
    f"{ADMIN}experts": {"layers": _list(_OBJECT)},
    f"{ADMIN}profile": {"file": _TEXT, "steps": _COUNT},
    f"{ADMIN}log-level": {"level": _TEXT},
}


def document(service: Service, *, local: bool = False) -> dict[str, Any]:
    """The OpenAPI 3.1 document of this deployment: its names, limits and vocabulary included.

    `local`: as the instance's own socket has it, with the paths of administrators."""
    limits = service.limits
    bodies = {path: _body(path, limits) for path in _LEAST}
    chat = bodies["/v1/chat/completions"]["properties"]
    for path in ("/v1/responses", "/v1/messages"):
        properties = bodies[path]["properties"]
        # These go on to the reader that all endpoints share.
        passed_on = [name for name, schema in properties.items() if not schema and name in chat]
        properties |= {name: chat[name] for name in passed_on}
    for body in bodies.values():
        body["properties"]["model"] = {"enum": list(service.plan.model.served_names)}
    count = dict(bodies["/v1/messages"])
    bodies["/v1/messages/count_tokens"] = count | {"required": ["model", "messages"]}
    ids = _list({"type": "integer", "minimum": 0, "maximum": limits.vocab_size - 1})
    bodies["/tokenize"] = _object({"prompt": _TEXT, "messages": chat["messages"]}, ())
    bodies["/detokenize"] = _object({"tokens": ids}, ("tokens",))
    paths: dict[str, Any] = {path: {"post": _post(path, body)} for path, body in bodies.items()}
    for path in ("/tokenize", "/detokenize"):
        paths[f"/v1{path}"] = {"post": _post(path, bodies[path], "v1")}
    for path in ("/v1/models", "/livez", "/readyz", "/startupz"):
        paths[path] = {"get": _get(path)}
    paths["/v1/models/{name}"] = {"get": _get("/v1/models/{name}")}
    if local:
        paths |= {f"{ADMIN}{name}": {"post": _admin(name)} for name in _ADMIN}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"tokenspeed: {service.plan.name}", "version": service.plan.tokenspeed},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _body(path: str, limits: Limits) -> dict[str, Any]:
    read, least = _LEAST[path]
    described = Described(least)
    read(described, limits)
    taken = _TAKEN[path]
    known: dict[str, Schema] = {name: {} for name in described.taken}
    known |= {name: _nullable(schema) for name, schema in described.schemas.items()}
    return _object({**known, **taken}, tuple(least))


def _admin(name: str) -> dict[str, Any]:
    read, least = _ADMIN[name]
    described = Described(least)
    read(described)
    properties = {field: _nullable(schema) for field, schema in described.schemas.items()}
    body = _object(properties, tuple(least)) | {"additionalProperties": False}
    return _post(ADMIN + name, body)


def _nullable(schema: Schema) -> Schema:
    """null means absent everywhere."""
    if "enum" in schema:
        return {"enum": [None, *schema["enum"]]}
    return {**schema, "type": [schema["type"], "null"]}


def _object(properties: Mapping[str, Schema], required: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def _post(path: str, body: Schema, prefix: str = "") -> dict[str, Any]:
    answer = _ANSWERS[path]
    whole = {"schema": _object(answer, tuple(answer))}
    content: dict[str, Any] = {"application/json": whole}
    if path in _LEAST:
        content["text/event-stream"] = {}  # events are not what a schema of bodies describes
    return {
        "operationId": f"{prefix}{path.replace('/', '_')}",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "the answer", "content": content}, **_errors(path)},
    }


def _get(path: str) -> dict[str, Any]:
    answer = {"description": "the state", "content": {"application/json": {"schema": _OBJECT}}}
    found: dict[str, Any] = {
        "operationId": f"get{path.replace('/', '_').replace('{', '').replace('}', '')}",
        "responses": {"200": answer, "503": answer, "4XX": _errors(path)["4XX"]},
    }
    if "{name}" in path:
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        found["parameters"] = [name]
    return found


def _errors(path: str) -> dict[str, Any]:
    error = _object({"message": _TEXT, "type": _TEXT}, ("message", "type"))
    envelope = _object({"error": error}, ("error",))
    content = {"application/json": {"schema": envelope}}
    return {
        "4XX": {"description": "what is wrong with the request", "content": content},
        "503": {"description": "not now; see Retry-After", "content": content},
        "504": {"description": "it took longer than advanced.timeout", "content": content},
    }


class OpenApi:
    """The document as an endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._of = ""  # the plan that the documents are of
        self._public = self._local = b""

    async def get(self, request: Request) -> Response:
        service = self._service
        if self._of != service.digest:
            self._of = service.digest
            self._public = msgspec.json.encode(document(service))
            self._local = msgspec.json.encode(document(service, local=True))
        body = self._local if is_local(request.scope) else self._public
        return Response(body, media_type="application/json")
