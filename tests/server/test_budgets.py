"""Reasoning budgets through the three APIs: thoughts end in time, and the answer goes on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.server.conftest import go
from tests.server.live import LiveServer

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
# The script "thought" thinks "\nHm ü\n", a token per character.
HELD = [{"role": "user", "content": go("thought")}]


def chat(server: LiveServer, **fields: Any) -> tuple[str, int]:
    """What the model thought, and the tokens of it; equal for streams and bodies."""
    body = {"model": "tiny", "messages": HELD, "temperature": 0, **fields}
    status, answer, headers = server.post(CHAT, body)
    assert status == 200, answer
    assert "x-ignored-fields" not in headers
    message = answer["choices"][0]["message"]
    deltas = [
        event["choices"][0]["delta"] for event in server.events(CHAT, messages=HELD, **fields)
    ]
    streamed = "".join(delta.get("reasoning", "") for delta in deltas)
    assert streamed == message.get("reasoning", "")
    tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return streamed, tokens


def test_c20_thoughts_end_at_the_budget_that_was_given(agent: LiveServer) -> None:
    free, tokens = chat(agent)
    assert free.strip() == "Hm ü"
    for budget in range(1, 6):
        held, held_tokens = chat(agent, thinking_token_budget=budget)
        # The line break before the thought is one of its tokens.
        assert held == free[: budget - 1]
        assert held_tokens <= tokens
    assert chat(agent, thinking_token_budget=100) == (free, tokens)


def test_effort_words_are_budgets_where_the_template_is_told_none(agent: LiveServer) -> None:
    assert chat(agent, reasoning_effort="none")[0] == ""
    assert chat(agent, reasoning_effort="minimal") == chat(agent, reasoning_effort="high")


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_budget(agent: LiveServer, stream: bool) -> None:
    fields = {"thinking": {"type": "enabled", "budget_tokens": 3}, "max_tokens": 100}
    body = {"model": "tiny", "messages": HELD, "temperature": 0, "stream": stream, **fields}
    status, answer, headers = agent.post(MESSAGES, body)
    assert status == 200
    assert "x-ignored-fields" not in headers
    if stream:
        thoughts = re.findall(rb'"thinking_delta","thinking":"([^"]*)"', answer)
        assert b"".join(thoughts) == b"Hm"
    else:
        assert answer["content"][0]["thinking"] == "Hm"
    disabled = {**body, "thinking": {"type": "disabled"}, "stream": False}
    assert all(b["type"] != "thinking" for b in agent.post(MESSAGES, disabled)[1]["content"])


def test_the_responses_effort(agent: LiveServer) -> None:
    body = {"model": "tiny", "input": HELD, "temperature": 0, "reasoning": {"effort": "none"}}
    status, answer, headers = agent.post(RESPONSES, body)
    assert status == 200
    assert "x-ignored-fields" not in headers
    assert all(item["type"] != "reasoning" for item in answer["output"])


def test_a_budget_for_a_model_that_does_not_reason_is_reported(chain: LiveServer) -> None:
    messages = [{"role": "user", "content": go("hello")}]
    body = {"model": "tiny", "messages": messages, "thinking_token_budget": 5}
    _, _, headers = chain.post(CHAT, body)
    assert headers["x-ignored-fields"] == "thinking_token_budget"
