"""One real question through the whole HTTP path, before an instance is called ready.

Of real weights more is asked than an answer: each of its tokens has a finite probability, not all
are as likely as each other, and its beginning comes again when the question does. Damaged weights,
a kernel that reads past its memory or a block of another request are found so.
"""

from __future__ import annotations

import http.client
import json
import math
import time
from dataclasses import dataclass
from typing import Any

from tokenspeed.appliance.front import ask
from tokenspeed.errors import ExitCode, Problem, TokenspeedError

QUESTION = "What is the capital of France?"
OPENING = "The capital of France is"
ANSWER_TOKENS = 32
REPEATED_TOKENS = 8
# Natural logarithms. Two tokens this close may change places: the second time a part of the prompt
# comes from the cache, so its sums are added in another order.
TIE = 0.25
FLAT = 1e-3
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


@dataclass(frozen=True, slots=True)
class Scores:
    """Of each token of an answer: its log-probability, None where that is no number, and how far
    the likeliest token is ahead of the next one (natural logarithm). A token that ended the answer
    has none."""

    tokens: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    leads: tuple[float, ...]


async def warm_up(url: str, probe: Probe, key: str = "", *, real_weights: bool = False) -> Answer:
    """Raises WarmUpFailed when anything but a well-formed answer comes back, and of real weights
    when it is not finite, not sharp or not repeatable."""
    began = time.monotonic()
    body = await _ask(url, probe, probe.body | (_scored(probe) if real_weights else {}), key)
    try:
        choice = body["choices"][0]
        text = choice["message"]["content"] if probe.is_chat else choice["text"]
        tokens = body["usage"]["completion_tokens"]
    except (KeyError, IndexError, TypeError) as error:
        raise _failed(f"an answer without {error}: {body}") from error
    if tokens < 1:
        raise _failed(f"an answer without tokens: {body}")
    answer = Answer((text or "").strip(), tokens, time.monotonic() - began)
    if real_weights:
        first = _scores(body, probe)
        # Past an end, so that a model which has nothing to say is looked at as well.
        past = {"max_tokens": REPEATED_TOKENS, "ignore_eos": True}
        again = probe.body | _scored(probe) | past
        second = _scores(await _ask(url, probe, again, key), probe)
        if mistake := unsound(first) or unsound(second) or differs(first, second):
            raise _unsound(mistake)
    return answer


def unsound(scores: Scores) -> str:
    """What no sound model answers, "" when it may be one."""
    for place, logprob in enumerate(scores.logprobs, start=1):
        if logprob is None or not -9000 < logprob < 1e-3:
            return f"the probability of token {place} of {len(scores.tokens)} is not a number"
    if scores.leads and all(lead < FLAT for lead in scores.leads):
        return "every token is as likely as any other"
    return ""


def differs(first: Scores, again: Scores) -> str:
    """How the second answer differs from the first, "" when it does not, or at a tie only."""
    for place, (one, other) in enumerate(zip(first.tokens, again.tokens, strict=False)):
        if one == other:
            continue
        lead = (*first.leads[place : place + 1], *again.leads[place:])[0]
        if lead < TIE:
            return ""
        return f"asked again, token {place + 1} is {other} instead of {one}, {lead:.2f} apart"
    return ""


async def _ask(url: str, probe: Probe, body: dict[str, Any], key: str) -> Any:
    try:
        status, answer = await ask(url, "POST", probe.path, body, PATIENCE_SECONDS, key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failed(f"no answer: {error}") from error
    if status != 200:
        raise _failed(f"status {status}: {answer}")
    return answer


def _scored(probe: Probe) -> dict[str, Any]:
    """What a request says to get the log-probabilities of the two likeliest tokens."""
    wanted = {"logprobs": True, "top_logprobs": 2} if probe.is_chat else {"logprobs": 2}
    return wanted | {"return_token_ids": True}


def _scores(body: Any, probe: Probe) -> Scores:
    try:
        choice = body["choices"][0]
        tokens, entries = tuple(choice["token_ids"]), choice["logprobs"]
        if probe.is_chat:
            entries = entries["content"]
            logprobs = tuple(entry["logprob"] for entry in entries)
            tops = [[top["logprob"] for top in entry["top_logprobs"]] for entry in entries]
        else:
            logprobs = tuple(entries["token_logprobs"])
            tops = [list(top.values()) for top in entries["top_logprobs"]]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise _failed(f"an answer without {error}: {body}") from error
    return Scores(tokens, logprobs, tuple(map(_lead, tops)))


def _lead(logprobs: list[float | None]) -> float:
    known = sorted((value for value in logprobs if value is not None), reverse=True)
    return known[0] - known[1] if len(known) > 1 else math.inf


def _unsound(what: str) -> WarmUpFailed:
    return WarmUpFailed(
        Problem(
            code="TS-S231",
            message=f"the model loads, but its results are wrong: {what}",
            hint="the weights may be damaged (`tokenspeed pull` checks what it fetched), or a "
            "kernel may be wrong on this device: `tokenspeed kernels` lists others, and `kernels:` "
            "in the recipe selects one",
        )
    )


def _failed(what: str) -> WarmUpFailed:
    return WarmUpFailed(
        Problem(
            code="TS-S230",
            message=f"the warm-up request failed: {what}",
            hint="the server is at fault, not the recipe; its log above says more",
        )
    )
