"""Log-probabilities in the two shapes of the OpenAI API.

Chat names each token by its text and its bytes. Completions name it by its text, or, where its
bytes alone are no text, as "bytes:\\xf0\\x9f", so that keys stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenspeed.request import TokenLogprobs
from tokenspeed.tokenizer import TextModel


@dataclass(frozen=True, slots=True)
class Scored:
    """A token's log-probabilities and where its text begins in the answer, in characters.

    `values` is None for the first token of a prompt, which nothing predicts.
    """

    token: int
    values: TokenLogprobs | None
    begin: int


def chat_logprobs(text: TextModel, scored: Sequence[Scored], top: int) -> dict[str, Any]:
    return {"content": [_chat_entry(text, entry, top) for entry in scored], "refusal": None}


def _chat_entry(text: TextModel, entry: Scored, top: int) -> dict[str, Any]:
    assert entry.values is not None, "answers only have predicted tokens"
    return {
        **_named(text, entry.token, entry.values.logprob),
        "top_logprobs": [_named(text, token, logprob) for token, logprob in entry.values.top[:top]],
    }


def _named(text: TextModel, token: int, logprob: float) -> dict[str, Any]:
    spelling = text.token_bytes(token)
    return {
        "token": spelling.decode(errors="replace"),
        "logprob": _finite(logprob),
        "bytes": list(spelling),
    }


def completion_logprobs(text: TextModel, scored: Sequence[Scored], top: int) -> dict[str, Any]:
    return {
        "tokens": [_key(text, entry.token) for entry in scored],
        "token_logprobs": [
            None if entry.values is None else _finite(entry.values.logprob) for entry in scored
        ],
        "top_logprobs": [_alternatives(text, entry.values, top) for entry in scored],
        "text_offset": [entry.begin for entry in scored],
    }


def _alternatives(
    text: TextModel, values: TokenLogprobs | None, top: int
) -> dict[str, float] | None:
    """The likeliest tokens and the one drawn; None where nothing was asked or predicted."""
    if values is None or top == 0:
        return None
    named = {_key(text, token): _finite(logprob) for token, logprob in values.top[:top]}
    return named | {_key(text, values.token): _finite(values.logprob)}


def _key(text: TextModel, token: int) -> str:
    spelling = text.token_bytes(token)
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)


def prompt_logprobs(
    text: TextModel, entries: Sequence[TokenLogprobs | None], top: int
) -> list[dict[str, Any] | None]:
    """As vLLM shows them: one object per token of the prompt, null for the first, by token id. A
    token's rank is only known among the `top` likeliest."""
    return [None if entry is None else _ranked(text, entry, top) for entry in entries]


def _ranked(text: TextModel, entry: TokenLogprobs, top: int) -> dict[str, Any]:
    likely = entry.top[:top]
    ranks = {token: place for place, (token, _) in enumerate(likely, start=1)}
    return {
        str(token): {
            "logprob": _finite(logprob),
            "rank": ranks.get(token),
            "decoded_token": text.token_bytes(token).decode(errors="replace"),
        }
        for token, logprob in {entry.token: entry.logprob, **dict(likely)}.items()
    }


def _finite(logprob: float) -> float:
    """JSON has no infinity; this is what OpenAI shows for what never happens."""
    return max(logprob, -9999.0)
