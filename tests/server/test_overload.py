"""C30: more load than the server takes is refused at once, and everybody gets an answer."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.rigs import Chain
from tests.rigs.plans import tiny_plan
from tests.server.conftest import go
from tests.server.live import LiveServer, Raw, joined, serving, sse_frames, until
from tokenspeed.server.app import create_app

TEXT = "/v1/completions"
BODY = {"model": "tiny", "prompt": go("long"), "max_tokens": 50, "temperature": 0}


@pytest.fixture(scope="module")
def small(chain_model: Chain, tmp_path_factory: pytest.TempPathFactory) -> Any:
    plan = tiny_plan(chain_model.folder, max_running=2, max_waiting=4)
    with serving(plan, chain_model.folder, tmp_path_factory.mktemp("run")) as server:
        yield server


def test_c30_overload(small: LiveServer) -> None:
    slowest = 0.0
    done = threading.Event()

    def probe() -> None:
        nonlocal slowest
        while not done.is_set():
            began = time.monotonic()
            assert small.get("/readyz")[0] == 200
            slowest = max(slowest, time.monotonic() - began)

    prober = threading.Thread(target=probe)
    prober.start()
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: small.post(TEXT, BODY), range(200)))
    done.set()
    prober.join()
    statuses = Counter(status for status, _, _ in answers)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= 6
    for status, answer, headers in answers:
        if status == 429:
            assert answer["error"]["code"] == "queue_full"
            assert headers["retry-after"] == "1"
        else:
            assert answer["choices"][0]["text"] == "xy" * 25
    assert slowest < 5, "probes are answered while requests are refused"
    small.assert_idle()


def test_c30_a_cancelled_waiter_leaves_its_place(small: LiveServer) -> None:
    long = {**BODY, "max_tokens": 3000, "stream": True}
    raws = [Raw(small.port) for _ in range(6)]
    for raw in raws:
        raw.post(TEXT, long)
    until(lambda: small.engine.open_requests == 6)
    assert small.post(TEXT, BODY)[0] == 429
    raws[-1].reset()
    until(lambda: small.engine.open_requests == 5)
    last = Raw(small.port)
    last.post(TEXT, long)
    until(lambda: small.engine.open_requests == 6)
    for raw in (*raws[:-1], last):
        raw.reset()
    small.assert_idle()


def test_c30_a_request_that_never_fits(small: LiveServer) -> None:
    status, answer, _ = small.post(TEXT, {**BODY, "n": 7})
    assert (status, answer["error"]["param"]) == (400, "n")
    status, _, _ = small.post(TEXT, {**BODY, "n": 6})
    assert status == 200


def in_a_hurry(server: LiveServer, seconds: float) -> Any:
    """Another application over the same engine that gives a request so much time."""
    serve = dataclasses.replace(server.plan.serve, timeout_seconds=seconds)
    plan = dataclasses.replace(server.plan, serve=serve)
    return create_app(plan, server.engine, server.text, server.keys)


TALK = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (TEXT, {"prompt": go("long"), "ignore_eos": True}, "request_timeout"),
        ("/v1/chat/completions", {"messages": TALK, "ignore_eos": True}, "request_timeout"),
        ("/v1/responses", {"input": TALK}, "request_timeout"),
        ("/v1/messages", {"messages": TALK}, "timeout_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_is_out_of_time(
    small: LiveServer, path: str, body: Any, kind: str, stream: bool
) -> None:
    app = in_a_hurry(small, 0.0)
    most = "max_output_tokens" if "responses" in path else "max_tokens"
    asked = {"model": "tiny", most: 3000, "stream": stream, **body}
    response = small.response_of(app, path, asked)
    assert response.status_code == 504
    assert response.headers["x-should-retry"] == "false"
    error = response.json()["error"]
    assert kind in (error.get("code"), error["type"])
    small.assert_idle()


def test_a_stream_that_runs_out_of_time_says_so(small: LiveServer) -> None:
    app = in_a_hurry(small, 1.0)
    body = {**BODY, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    *frames, error, done = sse_frames(small.response_of(app, TEXT, body).content)
    assert (json.loads(error)["error"]["code"], done) == ("request_timeout", "[DONE]")
    events = [json.loads(frame) for frame in frames]
    assert joined(events).startswith("xyxy")
    assert all(event["choices"][0]["finish_reason"] is None for event in events)
    small.assert_idle()
