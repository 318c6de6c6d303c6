from __future__ import annotations

import asyncio
import json
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tokenspeed.appliance.warmup import QUESTION, WarmUpFailed, probe_for, warm_up
from tokenspeed.errors import ExitCode

CHAT = probe_for("m", has_template=True, has_tokenizer=True)


@contextmanager
def answering(status: int, body: str) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    """A server with one answer to every POST; the list has what was asked."""
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
            self.wfile.write(body.encode())

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
