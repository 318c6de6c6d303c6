"""Unmodified litellm and langchain-openai: each in a process of its own, as users have it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.server.live import LiveServer

LITELLM = """
import json, sys, litellm
def ask(content, **more):
    return litellm.completion(model="hosted_vllm/tiny", api_base=sys.argv[1], api_key="none",
        messages=[{"role": "user", "content": content}], temperature=0, num_retries=0, **more)
answer = ask("<|go:hello|>")
found = {"chat": [answer.choices[0].message.content, answer.choices[0].finish_reason,
                  answer.usage.completion_tokens]}
parts = ask("<|go:stop|>", stream=True)
found["stream"] = "".join(part.choices[0].delta.content or "" for part in parts)
try:
    ask("x " * 9000)
except litellm.ContextWindowExceededError as error:
    found["error"] = "too long"
print(json.dumps(found))
"""
LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI
model = ChatOpenAI(model="tiny", base_url=sys.argv[1], api_key="none", temperature=0, max_retries=0)
answer = model.invoke("<|go:hello|>")
found = {"chat": [answer.content, answer.response_metadata["finish_reason"],
                  answer.usage_metadata["output_tokens"]]}
found["stream"] = "".join(part.content for part in model.stream("<|go:stop|>"))
schema = {"title": "Thing", "type": "object", "properties": {"a": {"enum": [7]}},
          "required": ["a"], "additionalProperties": False}
found["structured"] = model.with_structured_output(schema, method="json_schema").invoke("x")
try:
    model.invoke("x " * 9000)
except Exception as error:
    found["error"] = "too long" if "maximum context length" in str(error) else repr(error)
print(json.dumps(found))
"""
ROWS = {"chat": ["Hello world", "stop", 5], "stream": "abcSTOPdef", "error": "too long"}


def run(module: str, script: str, server: LiveServer) -> Any:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    # Neither asks anybody else: no map of prices, no traces.
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    done = subprocess.run(
        [sys.executable, "-c", script, f"{server.url}/v1"],
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_litellm(chain: LiveServer) -> None:
    assert run("litellm", LITELLM, chain) == ROWS


def test_langchain(chain: LiveServer) -> None:
    assert run("langchain_openai", LANGCHAIN, chain) == {**ROWS, "structured": {"a": 7}}
