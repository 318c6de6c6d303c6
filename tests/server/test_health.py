"""C17, C32, C33, and restarts: what clients and probes see when the engine does not serve."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import Chain
from tests.rigs.plans import tiny_plan
from tests.server.conftest import go
from tests.server.live import LiveServer, Raw, serving, sse_frames, until

TEXT = "/v1/completions"
LONG = {"model": "tiny", "temperature": 0, "max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(chain_model: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of its own, whose worker may be stopped and killed. Each test leaves it ready."""
    plan = tiny_plan(chain_model.folder)
    with serving(plan, chain_model.folder, tmp_path_factory.mktemp("run")) as live:
        yield live


@pytest.fixture
def beginner(chain_model: Chain, tmp_path: Path) -> Iterator[LiveServer]:
    """A server for one test, without a worker yet."""
    plan = tiny_plan(chain_model.folder)
    with serving(plan, chain_model.folder, tmp_path, start=False) as live:
        yield live


def gauge(server: LiveServer, name: str) -> float | None:
    lines = server.get("/metrics")[1].decode().splitlines()
    values = [float(line.split()[-1]) for line in lines if line.split()[0] == name]
    return values[0] if values else None


def test_c32_from_loading_to_drained(beginner: LiveServer) -> None:
    """Not ready before it can answer, nor when it takes nothing new; what is open is finished."""
    server = beginner
    assert server.get("/livez")[0] == 200
    assert server.get("/readyz")[0] == 503
    status, answer, headers = server.post(TEXT, {**LONG, "prompt": "a"})
    assert (status, answer["error"]["code"]) == (503, "engine_loading")
    assert int(headers["retry-after"]) > 0
    server.start_worker(wait=False)
    seen: list[Any] = []

    def ready() -> bool:
        status, body, _ = server.get("/startupz")
        seen.append((status, body["stage"], body["percent"]))
        return server.get("/readyz")[0] == 200

    until(ready, 60, "ready")
    assert {status for status, _, _ in seen[:-1]} <= {503, 200}
    assert server.complete(go("hello"))["choices"][0]["text"] == "Hello world"
    assert server.get("/startupz")[1] == {"status": "started", "stage": "ready", "percent": 100}
    assert server.get("/health")[1] == {"status": "ready"}
    raw = Raw(server.port)
    raw.post(TEXT, {**LONG, "prompt": go("long"), "max_tokens": 500, "stream": True})
    raw.read_until(b'"text":"x"')
    server.call(server.engine.start_draining)
    status, answer, headers = server.post(TEXT, {**LONG, "prompt": "a"})
    assert (status, answer["error"]["code"]) == (503, "engine_draining")
    assert "retry-after" in headers
    assert server.get("/readyz")[1]["status"] == "draining"
    _, _, body = raw.answer()
    assert sse_frames(body)[-1] == "[DONE]"
    server.wait(server.engine.drained())


def test_c32_a_stalled_loop_is_noticed(server: LiveServer) -> None:
    server.signal_worker(signal.SIGSTOP)
    try:
        until(lambda: server.get("/readyz")[1]["status"] == "stalled", 10)
        assert server.get("/livez")[0] == 200
        assert server.post(TEXT, {**LONG, "prompt": "a"})[0] == 503
        assert gauge(server, "tokenspeed_ready") == 0
        assert gauge(server, "tokenspeed_requests_running") is None, "unknown, not frozen"
    finally:
        server.signal_worker(signal.SIGCONT)
    until(lambda: server.get("/readyz")[0] == 200, 10)


@pytest.mark.parametrize("stream", [True, False])
def test_c23_leaving_is_noticed_while_no_token_comes(server: LiveServer, stream: bool) -> None:
    """As when preempted: nothing is written that would meet the client's reset."""
    raw = Raw(server.port)
    raw.post(TEXT, {**LONG, "prompt": go("long"), "stream": stream})
    if stream:
        raw.read_until(b'"text":"x"')
    until(lambda: server.engine.open_requests == 1)
    server.signal_worker(signal.SIGSTOP)
    try:
        raw.close()
        until(lambda: server.engine.open_requests == 0)
    finally:
        server.signal_worker(signal.SIGCONT)
    until(lambda: server.get("/readyz")[0] == 200)
    server.assert_idle()


def test_c33_gauges_are_true_after_everybody_left(server: LiveServer) -> None:
    raws = [Raw(server.port) for _ in range(20)]
    for raw in raws:
        raw.post(TEXT, {**LONG, "prompt": go("long"), "stream": True})
    until(lambda: gauge(server, "tokenspeed_requests_running") == 16)
    assert gauge(server, "tokenspeed_requests_waiting") == 4
    assert (gauge(server, "tokenspeed_cache_blocks_used") or 0) > 0
    generated = gauge(server, "tokenspeed_generated_tokens_total") or 0
    for raw in raws:
        raw.reset()
    names = ("requests_running", "requests_waiting", "slots_used", "cache_blocks_used")
    until(lambda: all(gauge(server, f"tokenspeed_{name}") == 0 for name in names))
    assert gauge(server, "tokenspeed_open_requests") == 0
    assert (gauge(server, "tokenspeed_generated_tokens_total") or 0) >= generated
    stats = server.stats()
    assert gauge(server, "tokenspeed_cache_blocks_reusable") == stats.blocks_cached
    assert gauge(server, "tokenspeed_requests_aborted_total") == stats.requests_aborted


def test_c17_the_worker_dies_in_mid_stream(server: LiveServer) -> None:
    streams = [Raw(server.port) for _ in range(3)]
    for raw in streams:
        raw.post(TEXT, {**LONG, "prompt": go("long"), "stream": True, "n": 2})
    buffered: list[Any] = []
    body = {**LONG, "prompt": go("long")}
    waiting = threading.Thread(target=lambda: buffered.append(server.post(TEXT, body)))
    waiting.start()
    for raw in streams:
        raw.read_until(b'"text":"x"')
    until(lambda: server.engine.open_requests == 7)
    counted = gauge(server, "tokenspeed_generated_tokens_total") or 0
    server.kill_worker()
    for raw in streams:
        status, _, answer = raw.answer()
        frames = sse_frames(answer)
        assert (status, frames[-1]) == (200, "[DONE]")
        error = json.loads(frames[-2])["error"]
        assert error["code"] == "engine_failed"
        assert "signal" not in error["message"], "operators' details stay inside"
        assert not any('"finish_reason":"' in frame for frame in frames)
    waiting.join(10)
    status, answer, headers = buffered[0]
    assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "engine_failed", "5")
    assert server.get("/readyz")[1]["status"] == "down"
    assert server.get("/startupz")[1]["status"] == "down"
    assert server.post(TEXT, {**LONG, "prompt": "a"})[1]["error"]["code"] == "engine_down"
    server.start_worker()
    assert server.complete(go("hello"))["choices"][0]["text"] == "Hello world"
    assert (gauge(server, "tokenspeed_generated_tokens_total") or 0) >= counted
    server.assert_idle()


def test_long_texts_leave_the_event_loop_alone(server: LiveServer) -> None:
    """Megabytes of template and tokenisation on a thread; probes are answered meanwhile."""
    refused: list[Any] = []
    messages = [{"role": "user", "content": "A long document. " * 150_000}]
    body = {"model": "tiny", "messages": messages}
    asking = threading.Thread(
        target=lambda: refused.append(server.post("/v1/chat/completions", body))
    )
    began = time.monotonic()
    asking.start()
    longest = 0.0
    while asking.is_alive():
        asked = time.monotonic()
        assert server.get("/livez")[0] == 200
        longest = max(longest, time.monotonic() - asked)
    assert refused[0][1]["error"]["code"] == "context_length_exceeded"
    # Relative, so that a slow machine does not matter: a blocked loop answers only at the end.
    assert longest < (time.monotonic() - began) / 2
