"""C23: a client who left costs nothing further; one who only stopped sending gets the answer."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest

from tests.rigs import rand_prompts
from tests.server.conftest import go
from tests.server.live import LiveServer, Raw, joined, sse_frames, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"model": "tiny", "temperature": 0, "max_tokens": 3000, "ignore_eos": True}


def cancelled(server: LiveServer) -> float:
    text = server.get("/metrics")[1].decode()
    (line,) = [x for x in text.splitlines() if x.startswith("tokenspeed_requests_cancelled_total")]
    return float(line.split()[1])


def open_long(server: LiveServer, stream: bool, **fields: Any) -> Raw:
    """A request that runs for thousands of tokens, once it decodes."""
    before = server.stats().generated_tokens
    raw = Raw(server.port)
    raw.post(TEXT, {**LONG, "prompt": go("long"), "stream": stream, **fields})
    if stream:
        raw.read_until(b'"text":"x"')
    until(lambda: server.stats().generated_tokens > before + 3, what="decoding")
    return raw


@pytest.mark.parametrize("leave", ["reset", "close"])
@pytest.mark.parametrize("stream", [True, False])
def test_c23_a_client_who_leaves_while_decoding(
    chain: LiveServer, stream: bool, leave: str
) -> None:
    before = chain.stats().requests_aborted, cancelled(chain)
    for round_ in range(10):
        raw = open_long(chain, stream, n=1 + round_ % 3)
        getattr(raw, leave)()
        chain.assert_idle()
    assert chain.stats().requests_aborted - before[0] == 10 + 9  # as many as there were choices
    assert cancelled(chain) - before[1] == 10


def test_c23_a_batch_of_prompts(chain: LiveServer) -> None:
    raw = open_long(chain, False, prompt=[go("long")] * 4)
    assert chain.engine.open_requests == 4
    raw.reset()
    chain.assert_idle()


def test_c23_in_every_state(rand: LiveServer) -> None:
    """Resets at random moments: queued, in the first chunk, in a later one, decoding."""
    prompts = rand_prompts(4, 400, seed=21)
    for round_ in range(60):
        raws = [Raw(rand.port) for _ in range(4)]
        for raw, prompt in zip(raws, prompts, strict=True):
            body = {**LONG, "prompt": prompt, "max_tokens": 100, "stream": round_ % 2 == 0}
            raw.post(TEXT, {**body, "cache_salt": str(round_), "n": 2})
        time.sleep(0.001 * (round_ % 30))
        for raw in raws:
            raw.reset()
    rand.assert_idle()


def test_c23_queued_behind_others(chain: LiveServer) -> None:
    running = [open_long(chain, True) for _ in range(16)]
    queued = Raw(chain.port)
    queued.post(TEXT, {**LONG, "prompt": go("long"), "stream": False})
    until(lambda: chain.stats().waiting == 1, what="queued")
    queued.close()
    until(lambda: chain.stats().waiting == 0, what="out of the queue")
    assert chain.stats().running == 16
    for raw in running:
        raw.reset()


def test_c23_while_the_body_is_on_its_way(chain: LiveServer) -> None:
    before = cancelled(chain)
    raw = Raw(chain.port)
    raw.socket.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{"
    )
    raw.close()
    until(lambda: cancelled(chain) == before + 1, what="noticed")


@pytest.mark.parametrize("stream", [True, False])
def test_c23_half_close_does_not_abort(chain: LiveServer, stream: bool) -> None:
    raw = Raw(chain.port)
    body = {**LONG, "prompt": go("long"), "max_tokens": 1500, "stream": stream}
    raw.post(TEXT, body)
    raw.socket.shutdown(socket.SHUT_WR)
    status, headers, answer = raw.answer()
    assert (status, headers["connection"]) == (200, "close")
    if stream:
        text = joined([json.loads(frame) for frame in sse_frames(answer)[:-1]])
    else:
        text = chain.complete(go("long"), max_tokens=1500, ignore_eos=True)["choices"][0]["text"]
        assert text.encode() in answer
    assert text == "xy" * 750


def test_half_close_of_an_idle_connection_closes_it(chain: LiveServer) -> None:
    raw = Raw(chain.port)
    raw.socket.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
    raw.read_until(b"}")
    raw.socket.shutdown(socket.SHUT_WR)
    assert raw.socket.recv(10) == b""
    raw.close()


def test_pipelined_requests_before_a_half_close(chain: LiveServer) -> None:
    raw = Raw(chain.port)
    raw.post(TEXT, {**LONG, "prompt": go("long"), "max_tokens": 200, "stream": False})
    raw.post(TEXT, {**LONG, "prompt": go("hello"), "max_tokens": 4, "stream": False})
    raw.socket.shutdown(socket.SHUT_WR)
    while chunk := raw.socket.recv(65536):
        raw.received += chunk
    raw.close()
    assert b"xy" * 100 in raw.received
    assert b"Hello world" in raw.received


def test_c23_a_client_who_does_not_read(chain: LiveServer) -> None:
    """The answer is made to the end, waits in bounded memory, and is whole when read."""
    raw = Raw(chain.port)
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    before = chain.stats().requests_finished
    # More than the kernel buffers.
    body = {**LONG, "prompt": go("long"), "stream": True, "logprobs": 3, "n": 4}
    raw.post(TEXT, body)
    until(lambda: chain.stats().requests_finished == before + 4, 60, "computed")
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    _, _, received = raw.answer()
    frames = sse_frames(received)
    events = [json.loads(frame) for frame in frames[:-1]]
    assert frames[-1] == "[DONE]"
    for index in range(4):
        assert joined(events, index) == "xy" * 1500
    assert len(events) < 4 * 3000, "what the client was too slow for came merged"
