from __future__ import annotations

import asyncio
import json
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tokenspeed.appliance.warmup import (
    ANSWER_TOKENS,
    QUESTION,
    REPEATED_TOKENS,
    WarmUpFailed,
    probe_for,
    warm_up,
)
from tokenspeed.errors import ExitCode

CHAT = probe_for("m", has_template=True, has_tokenizer=True)


@contextmanager
def answering(status: int, *bodies: str) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    """A server with an answer to each POST, the last one from there on; the list has what was
    asked."""
    asked: list[tuple[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            asked.append((self.path, json.loads(self.rfile.read(length))))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(bodies[min(len(asked), len(bodies)) - 1].encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_question_fits_what_the_model_can_take() -> None:
    assert CHAT.path == "/v1/chat/completions"
    assert CHAT.body["messages"] == [{"role": "user", "content": QUESTION}]
    text = probe_for("m", has_template=False, has_tokenizer=True)
    assert text.path == "/v1/completions"
    assert isinstance(text.body["prompt"], str)
    ids = probe_for("m", has_template=False, has_tokenizer=False)
    assert all(isinstance(token, int) for token in ids.body["prompt"])


def test_the_curl_line_survives_a_shell_whatever_the_model_is_called() -> None:
    probe = probe_for("it's $HOME `x`", has_template=True, has_tokenizer=True)
    words = shlex.split(probe.curl("http://127.0.0.1:8000"))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[words.index("-d") + 1]) == probe.body


def test_an_answer_comes_back_with_its_size() -> None:
    body = {
        "choices": [{"message": {"content": " Mars. "}}],
        "usage": {"completion_tokens": 3},
    }
    with answering(200, json.dumps(body)) as (url, asked):
        answer = asyncio.run(warm_up(url, CHAT))
    assert (answer.text, answer.tokens) == ("Mars.", 3)
    assert answer.seconds > 0
    assert asked == [(CHAT.path, CHAT.body)]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, '{"error": {"message": "down"}}', "status 503"),
        (200, "{}", "an answer without 'choices'"),
        (200, "not JSON", "no answer"),
        (200, '{"choices": []}', "an answer without"),
        (
            200,
            '{"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 0}}',
            "an answer without tokens",
        ),
    ],
)
def test_anything_but_an_answer_is_a_failure(status: int, body: str, words: str) -> None:
    with answering(status, body) as (url, _), pytest.raises(WarmUpFailed, match=words) as caught:
        asyncio.run(warm_up(url, CHAT))
    assert caught.value.exit_code is ExitCode.INTERNAL


def test_nobody_there_is_a_failure() -> None:
    with pytest.raises(WarmUpFailed, match="no answer"):
        asyncio.run(warm_up("http://127.0.0.1:9", CHAT))


def scored(*tokens: tuple[int, float | None, float]) -> dict[str, object]:
    """A chat answer of tokens, each with its log-probability and that of the next one."""
    content = [
        {"logprob": logprob, "top_logprobs": [{"logprob": logprob}, {"logprob": runner_up}]}
        for _, logprob, runner_up in tokens
    ]
    choice = {
        "message": {"content": "x"},
        "token_ids": [token for token, _, _ in tokens],
        "logprobs": {"content": content},
    }
    return {"choices": [choice], "usage": {"completion_tokens": len(tokens)}}


def ended(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with token 2 for its end, which is not scored."""
    answer["choices"][0]["token_ids"].append(2)
    answer["usage"]["completion_tokens"] += 1
    return answer


SOUND = scored((5, -0.1, -3.0), (6, -0.7, -0.8), (7, -0.2, -2.0))


def check(*answers: dict[str, object]) -> None:
    with answering(200, *map(json.dumps, answers)) as (url, asked):
        asyncio.run(warm_up(url, CHAT, real_weights=True))
    assert [body["max_tokens"] for _, body in asked] == [ANSWER_TOKENS, REPEATED_TOKENS]
    assert [body.get("ignore_eos", False) for _, body in asked] == [False, True]


def test_real_weights_are_asked_twice() -> None:
    check(SOUND, scored((5, -0.1, -3.0), (6, -0.7, -0.8)))
    # What was nearly as likely may come the second time, and then another text goes on.
    check(SOUND, scored((5, -0.1, -3.0), (9, -0.7, -0.8), (1, -0.1, -3.0)))


def test_a_model_that_says_nothing_is_looked_at_past_its_end() -> None:
    check(ended(scored()), scored((2, -0.1, -3.0), (2, -0.2, -3.0)))
    check(ended(scored((5, -0.1, -3.0))), scored((5, -0.1, -3.0), (2, -0.3, -2.0)))
    # A tie of the end and another token.
    check(ended(scored()), scored((7, -0.6, -0.7)))


@pytest.mark.parametrize(
    ("answer", "again", "words"),
    [
        (scored((0, None, -1.0)), SOUND, "token 1 of 1 is not a number"),
        (scored((5, -9999.0, -9999.0)), SOUND, "not a number"),
        (scored((0, -6.2, -6.2), (0, -6.2, -6.2)), SOUND, "as likely as any other"),
        (SOUND, scored((5, -0.1, -3.0), (6, -0.7, -0.8), (8, -0.2, -2.0)), "8 instead of 7"),
        (ended(scored()), scored((0, -6.2, -6.2), (0, -6.2, -6.2)), "as likely as any other"),
        (ended(scored()), scored((7, -0.1, -3.0)), "7 instead of 2"),
        ({**SOUND, "choices": [{"message": {"content": "x"}}]}, SOUND, "without 'token_ids'"),
    ],
)
def test_what_no_sound_model_answers_is_a_failure(
    answer: dict[str, object], again: dict[str, object], words: str
) -> None:
    with pytest.raises(WarmUpFailed, match=words) as caught:
        check(answer, again)
    assert caught.value.exit_code is ExitCode.INTERNAL
