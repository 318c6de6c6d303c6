"""One real question through the whole HTTP path, before an instance is called ready."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any

from tokenspeed.appliance.front import ask
from tokenspeed.errors import ExitCode, Problem, TokenspeedError

QUESTION = "What is the capital of France?"
OPENING = "The capital of France is"
ANSWER_TOKENS = 32
# The first step may compile kernels.
PATIENCE_SECONDS = 600.0


class WarmUpFailed(TokenspeedError):  # noqa: N818 - says what happened, as its siblings do
    """The server runs but does not answer."""

    exit_code = ExitCode.INTERNAL


@dataclass(frozen=True, slots=True)
class Probe:
    """The request that fits the model, and where its answer stands."""

    path: str
    body: dict[str, Any]
    question: str

    @property
    def is_chat(self) -> bool:
        return "messages" in self.body

    def curl(self, url: str, keyed: bool = False) -> str:
        """The same request for people to paste, on two lines; `keyed`: with a place for a key."""
        data = json.dumps(self.body, ensure_ascii=False).replace("'", "'\\''")
        key = ' -H "Authorization: Bearer $API_KEY"' if keyed else ""
        kind = "-H 'Content-Type: application/json'"
        return f"curl {url}{self.path}{key} {kind} \\\n    -d '{data}'"


def probe_for(model: str, *, has_template: bool, has_tokenizer: bool) -> Probe:
    """A chat where the model has a template, else a text to go on with, else bare token ids."""
    common = {"model": model, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    if has_template:
        messages = [{"role": "user", "content": QUESTION}]
        return Probe("/v1/chat/completions", common | {"messages": messages}, QUESTION)
    if has_tokenizer:
        return Probe("/v1/completions", common | {"prompt": OPENING}, OPENING)
    return Probe("/v1/completions", common | {"prompt": [1, 2, 3]}, "token ids 1 2 3")


@dataclass(frozen=True, slots=True)
class Answer:
    """`seconds` from the request to its whole answer."""

    text: str
    tokens: int
    seconds: float


async def warm_up(url: str, probe: Probe, key: str = "") -> Answer:
    """Raises WarmUpFailed when anything but a well-formed answer comes back."""
    began = time.monotonic()
    try:
        status, body = await ask(url, "POST", probe.path, probe.body, PATIENCE_SECONDS, key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failed(f"no answer: {error}") from error
    if status != 200:
        raise _failed(f"status {status}: {body}")
    try:
        choice = body["choices"][0]
        text = choice["message"]["content"] if probe.is_chat else choice["text"]
        tokens = body["usage"]["completion_tokens"]
    except (KeyError, IndexError, TypeError) as error:
        raise _failed(f"an answer without {error}: {body}") from error
    if tokens < 1:
        raise _failed(f"an answer without tokens: {body}")
    return Answer((text or "").strip(), tokens, time.monotonic() - began)


def _failed(what: str) -> WarmUpFailed:
    return WarmUpFailed(
        Problem(
            code="TS-S230",
            message=f"the warm-up request failed: {what}",
            hint="this is a fault of the server, not of the recipe; its log above says more",
        )
    )
