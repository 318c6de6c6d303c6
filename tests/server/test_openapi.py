"""The document says what the readers do, and a fuzzer finds no answer that it does not describe."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from tests.server.conftest import go
from tests.server.fuzz import fuzz
from tests.server.live import LiveServer


def document(server: LiveServer) -> dict[str, Any]:
    status, found, _ = server.get("/openapi.json")
    assert status == 200
    return dict(found)


def body_schema(server: LiveServer, path: str) -> Any:
    body = document(server)["paths"][path]["post"]["requestBody"]
    return body["content"]["application/json"]["schema"]


PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


@pytest.mark.parametrize("path", PATHS)
def test_every_field_that_is_read_is_described(chain: LiveServer, path: str) -> None:
    properties = body_schema(chain, path)["properties"]
    assert not [name for name, schema in properties.items() if not schema]
    assert {"model", "temperature", "stream"} <= set(properties)


def test_bounds_are_those_of_the_readers(chain: LiveServer) -> None:
    schema = body_schema(chain, "/v1/completions")
    jsonschema.Draft202012Validator.check_schema(schema)
    vocab = chain.plan.model.config.vocab_size
    tried: list[tuple[str, list[Any], list[Any]]] = [
        ("temperature", [0, 100, 0.5, None], [-0.1, 100.1, "1", True]),
        ("n", [1, 16], [0, 17, 1.5]),
        ("stop_token_ids", [[], [vocab - 1]], [[vocab], [-1], 3, ["a"]]),
        ("suffix", ["", None], ["x"]),
        ("stream", [False, None], [0, "yes"]),
        ("cache_salt", ["x" * 128], ["x" * 129, 1]),
    ]
    for name, right, wrong in tried:
        for value, is_right in [(v, True) for v in right] + [(v, False) for v in wrong]:
            body = {"model": "tiny", "prompt": go("hello"), "max_tokens": 1, name: value}
            status, answer, _ = chain.post("/v1/completions", body)
            assert (status == 200) == is_right, (name, value, answer)
            assert jsonschema.Draft202012Validator(schema).is_valid(body) == is_right, (name, value)


def test_answers_fit_what_is_described(chain: LiveServer) -> None:
    talk = [{"role": "user", "content": go("hello")}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": talk},
        "/v1/completions": {"prompt": go("hello")},
        "/v1/responses": {"input": go("hello")},
        "/v1/messages": {"messages": talk, "max_tokens": 9},
        "/v1/messages/count_tokens": {"messages": talk},
        "/tokenize": {"prompt": "x"},
        "/v1/detokenize": {"tokens": [1]},
    }
    paths = document(chain)["paths"]
    for path, fields in bodies.items():
        for body in ({"model": "tiny", **fields}, {"model": "tiny", **fields, "model ": 1}, {}):
            status, answer, _ = chain.post(path, body)
            responses = paths[path]["post"]["responses"]
            described = responses.get(str(status), responses["4XX"])
            schema = described["content"]["application/json"]["schema"]
            jsonschema.validate(answer, schema)


def test_a_fuzzer_finds_nothing(chain: LiveServer) -> None:
    code, output = fuzz(chain.url, requests=45, seed=1)
    assert code == 0, output[-6000:]
