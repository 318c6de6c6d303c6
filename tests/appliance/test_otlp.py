"""Traces as a collector gets them, from the real command; and a collector that is not there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.appliance.live import Front, Home, tiny_model, until
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.resolve.facts import THIS_BUILD

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="the extra `traces` is not installed",
)
PARENT = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


class Collector:
    """Takes OTLP over HTTP. `status`: what it answers."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.status == 200:
                    collector.take(trace_service.ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def take(self, request: Any) -> None:
        for resource in request.resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(attributes["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Any]:
        return [span for span in list(self.spans) if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        found[one.key] = getattr(one.value, kind)
    return found


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with Home() as home:
        home.environment["NO_PROXY"] = "127.0.0.1"
        yield home


@pytest.fixture(scope="module")
def recipe(home: Home, tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Path:
    path = home.recipe("demo", tiny_model(tmp_path_factory.mktemp("model") / "tiny"))
    path.write_text(path.read_text() + f"observability: {{traces: '{collector.url}'}}\n")
    return path


@pytest.fixture(scope="module")
def front(home: Home, recipe: Path) -> Iterator[Front]:
    front = home.up(recipe).wait_ready()
    yield front
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)


def test_a_request_is_a_tree_of_spans_below_the_clients(front: Front, collector: Collector) -> None:
    headers = {"traceparent": f"00-{PARENT}-{CALLER}-01", "x-request-id": "mine"}
    body = {"model": "tiny", "prompt": "x" * 200, "max_tokens": 5, "n": 2, "ignore_eos": True}
    answer = front.client.post(f"{front.url}/v1/completions", json=body, headers=headers)
    usage = answer.json()["usage"]
    trace = bytes.fromhex(PARENT)
    until(lambda: [s for s in collector.spans if s.trace_id == trace], "its spans arrive")
    spans = [span for span in collector.spans if span.trace_id == trace]
    (root,) = (span for span in spans if span.name == "POST /v1/completions")
    assert root.parent_span_id == bytes.fromhex(CALLER)
    told = attributes(root)
    assert told["http.response.status_code"] == 200
    assert told["tokenspeed.request_id"] == "mine"
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 10
    below = [span for span in spans if span is not root]
    assert all(span.parent_span_id == root.span_id for span in below)
    assert sorted(span.name for span in below) == sorted(2 * ["queue", "prefill", "decode"])
    for choice in (0, 1):
        own = {s.name: s for s in below if attributes(s)["tokenspeed.choice"] == choice}
        queue, prefill, decode = own["queue"], own["prefill"], own["decode"]
        assert root.start_time_unix_nano <= queue.start_time_unix_nano
        assert queue.end_time_unix_nano == prefill.start_time_unix_nano
        assert prefill.end_time_unix_nano == decode.start_time_unix_nano
        assert decode.start_time_unix_nano <= decode.end_time_unix_nano
        assert decode.end_time_unix_nano <= root.end_time_unix_nano
        assert attributes(decode)["gen_ai.usage.output_tokens"] == 5
        assert attributes(prefill)["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert collector.services == {"demo"}


def test_what_the_cache_gave_is_told_and_a_refusal_is_a_span_too(
    front: Front, collector: Collector
) -> None:
    body = {"model": "tiny", "prompt": "y" * 400, "max_tokens": 2}
    answers = [front.post("/v1/completions", body).json()["usage"] for _ in range(2)]
    cached = answers[1]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert front.post("/v1/completions", body | {"model": "none"}).status_code == 404
    until(lambda: len(collector.named("POST /v1/completions")) >= 4, "all arrive")
    roots = [attributes(span) for span in collector.named("POST /v1/completions")]
    assert cached in [told["tokenspeed.cached_tokens"] for told in roots]
    assert {told["http.response.status_code"] for told in roots} >= {200, 404}
    assert not collector.named("GET /readyz"), "probes are no requests"


def test_a_collector_that_fails_costs_the_traces_alone(front: Front, collector: Collector) -> None:
    collector.status = 503
    try:
        assert front.ask()
        until(lambda: "traces do not reach" in front.output, "it is said")
        for _ in range(5):
            assert front.ask()
    finally:
        collector.status = 200
    known = len(collector.spans)
    assert front.ask()
    until(lambda: len(collector.spans) > known, "they arrive again")
    until(lambda: "again" in front.output, "that is said, too")
    assert front.output.count("do not reach") == 1
    assert "Traceback" not in front.output


def test_without_the_extra_the_plan_says_what_is_missing(recipe: Path) -> None:
    plan = plan_recipe(recipe, build=replace(THIS_BUILD, traces=False)).resolution.plan
    (unmet,) = plan.unmet
    assert unmet.need == "traces"
    assert "pip install opentelemetry-sdk" in unmet.detail
    assert not plan_recipe(recipe).resolution.plan.unmet
