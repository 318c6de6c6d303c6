"""/tokenize and /detokenize; C42: every route makes the same ids of the same text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.agent import TOOLS
from tests.server.conftest import go
from tests.server.live import LiveServer

ROOTS = pytest.mark.parametrize("root", ["", "/v1"])
MESSAGES = [{"role": "user", "content": "hi <|im_end|> there"}]


def post(server: LiveServer, path: str, **body: Any) -> dict[str, Any]:
    status, answer, _ = server.post(path, body)
    assert status == 200, answer
    return dict(answer)


@ROOTS
def test_a_prompt_and_back(rand: LiveServer, root: str) -> None:
    text = "Grüße 🦙 <|im_start|>x"
    found = post(rand, f"{root}/tokenize", prompt=text, model="tiny", return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == rand.plan.scheduler.max_model_len
    assert "<|im_start|>" in found["token_strs"]
    assert post(rand, f"{root}/detokenize", tokens=found["tokens"]) == {"prompt": text}


def test_c42_the_same_ids_as_completions(rand: LiveServer) -> None:
    for prompt in ("Hello there", "<|endoftext|>Hello", ""):
        ids = post(rand, "/tokenize", prompt=prompt)["tokens"]
        answer = rand.complete(prompt, max_tokens=1, return_token_ids=True)
        assert answer["choices"][0]["prompt_token_ids"] == ids
    assert post(rand, "/tokenize", prompt="", add_special_tokens=False)["tokens"] == []


def test_c42_the_same_ids_as_chat(agent: LiveServer) -> None:
    for fields in ({}, {"tools": TOOLS}, {"chat_template_kwargs": {"x": 1}}):
        messages = [*MESSAGES, {"role": "user", "content": go("plain")}]
        found = post(agent, "/v1/tokenize", messages=messages, **fields)
        body = {"model": "tiny", "messages": messages, "return_token_ids": True, **fields}
        answer = post(agent, "/v1/chat/completions", **body)
        assert answer["prompt_token_ids"] == found["tokens"]
        assert answer["usage"]["prompt_tokens"] == found["count"]
        assert agent.text.eos_token_ids[0] not in found["tokens"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": "x", "add_special_tokens": "no"}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"messages": MESSAGES, "prompt": "x"}),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "{{ 1 }}"}),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"tools": "x"}}),
        ("/tokenize", {"messages": MESSAGES, "tools": TOOLS}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "x"}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [1 << 40]}),
        ("/detokenize", {"tokens": [True]}),
    ],
)
def test_refusals(rand: LiveServer, path: str, body: dict[str, Any]) -> None:
    """C37: no template comes in here either."""
    status, answer, _ = rand.post(path, body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


def test_another_model_and_fields_without_effect(rand: LiveServer) -> None:
    assert rand.post("/tokenize", {"model": "x", "prompt": "a"})[0] == 404
    headers = rand.post("/detokenize", {"tokens": [], "colour": 1})[2]
    assert headers["x-ignored-fields"] == "colour"
