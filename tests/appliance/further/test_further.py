"""Two fronts on one engine: what holds for one holds for both, and what is told is of both."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.appliance.live import MAX_RUNNING, PATIENCE, Front, Home, Stream, until
from tokenspeed.appliance.front import ask_now

HISTOGRAMS = ("request", "time_to_first_token")


class Side:
    """One of the fronts, through its own socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = "http://localhost"
        limits = httpx.Limits(max_keepalive_connections=0)
        transport = httpx.HTTPTransport(uds=str(path), limits=limits)
        self.client = httpx.Client(transport=transport, timeout=PATIENCE)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(self.url + path, headers=headers)

    def complete(self, prompt: str = "hi", **headers: str) -> httpx.Response:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        return self.client.post(f"{self.url}/v1/completions", json=body, headers=headers)

    def stream(self, prompt: str, max_tokens: int = 60_000) -> Stream:
        """It has its first token."""
        stream = Stream(self, prompt, max_tokens)  # type: ignore[arg-type]
        until(lambda: stream.events or stream.failure or stream.body, "first token")
        return stream

    def state(self) -> str:
        """What /readyz says, "" where nobody answers."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            _, body = ask_now(f"unix:{self.path}", "GET", "/readyz")
            return str(body["status"])
        return ""

    def series(self) -> dict[str, float]:
        found = re.findall(r"^(tokenspeed\S+) (\S+)$", self.get("/metrics").text, re.MULTILINE)
        return {name: float(value) for name, value in found}


class Pair:
    """A running instance with two fronts."""

    def __init__(self, front: Front, model: Path) -> None:
        self.front = front
        self.home = front.home
        self.model = model
        self.folder = front.home.run_root / front.name
        self.sides = [Side(self.folder / "front.sock"), Side(self.folder / "front-2.sock")]

    def reload(self, *lines: str, **settings: str) -> None:
        write(self.home, self.model, *lines, **settings)
        done = self.home.run("reload", "pair")
        assert done.returncode == 0, done.stderr

    def admin(self, *words: str) -> None:
        done = self.home.run("admin", *words, "pair")
        assert done.returncode == 0, done.stderr

    def further(self, other_than: int | None = None) -> int:
        def found() -> int | None:
            pid = self.front.further()
            return pid if pid != other_than else None

        return int(until(found, "a further front runs"))

    def wait_ready(self) -> None:
        until(lambda: all(side.state() == "ready" for side in self.sides), "both are ready")


def write(home: Home, model: Path, *lines: str, **settings: str) -> Path:
    """The recipe with these values instead, and more lines below `serve`."""
    recipe = home.recipe("pair", model)
    text = recipe.read_text()
    for key, value in settings.items():
        text = text.replace(f"  {key}: ", f"  {key}: {value}  # ")
    text += "".join(f"  {line}\n" for line in ("fronts: 2", *lines))
    recipe.write_text(f"{text}advanced:\n  hang: 3s\n")
    return recipe


@contextlib.contextmanager
def starting(home: Home, model: Path) -> Iterator[Pair]:
    pair = Pair(home.up(write(home, model)).wait_ready(), model)
    try:
        yield pair
    finally:
        for side in pair.sides:
            side.client.close()


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[Pair]:
    """One instance for all tests but those that end it."""
    with Home() as home, starting(home, model) as pair:
        yield pair


@pytest.fixture
def pair(shared: Pair) -> Pair:
    shared.wait_ready()
    return shared


def test_metrics_and_errors_are_those_of_both_whoever_is_asked(pair: Pair) -> None:
    name = 'tokenspeed_http_requests_total{route="/v1/completions",status="200"}'
    before = pair.sides[0].series()
    for side in pair.sides:
        for _ in range(3):
            assert side.complete().status_code == 200
        assert side.get(f"/nothing/{side.path.name}").status_code == 404
    names = (name, *(f"tokenspeed_{histogram}_seconds_count" for histogram in HISTOGRAMS))
    wanted = {name: before.get(name, 0.0) + 6 for name in names} | {"tokenspeed_fronts": 2}
    for side in pair.sides:
        until(lambda s=side: wanted.items() <= s.series().items(), f"{wanted}")
        paths = {entry["path"] for entry in side.get("/status.json").json()["errors"]}
        assert {f"/nothing/{other.path.name}" for other in pair.sides} <= paths


def test_the_public_reaches_both(pair: Pair) -> None:
    """Who connects is taken by whoever is free: with one front stopped that is the other one."""
    for stopped in (pair.further(), pair.front.process.pid):
        os.kill(stopped, signal.SIGSTOP)
        try:
            assert [pair.front.get("/livez").status_code for _ in range(5)] == [200] * 5
        finally:
            with contextlib.suppress(ProcessLookupError):  # it was stopped for too long
                os.kill(stopped, signal.SIGCONT)


def test_a_killed_worker_is_noticed_by_both(pair: Pair) -> None:
    streams = [side.stream("until it dies") for side in pair.sides]
    os.kill(pair.front.worker() or 0, signal.SIGKILL)
    for stream in streams:
        stream.thread.join(PATIENCE)
        assert stream.failure is None
        assert stream.error is not None
    pair.wait_ready()
    texts = {side.complete("same").json()["choices"][0]["text"] for side in pair.sides}
    assert len(texts) == 1


def test_a_killed_front_takes_only_its_own_with_it(pair: Pair) -> None:
    first, second = pair.sides
    before = first.series()
    killed = pair.further()
    lost = [second.stream(f"lost {number}") for number in range(2)]
    until(lambda: first.series()["tokenspeed_open_requests"] == 2, "both are counted")
    kept = first.stream("kept", max_tokens=500)
    os.kill(killed, signal.SIGKILL)
    for stream in lost:
        stream.thread.join(PATIENCE)
        assert isinstance(stream.failure, httpx.RemoteProtocolError)
        assert stream.finish_reasons == []
    kept.thread.join(PATIENCE)
    assert kept.finish_reasons == ["length"]
    assert pair.further(other_than=killed)
    pair.wait_ready()
    until(pair.front.is_idle, "the worker ended what the killed one had")
    until(lambda: first.series()["tokenspeed_fronts"] == 2, "there are two again")
    after = first.series()
    counters = [name for name in before.keys() & after.keys() if "_total" in name]
    assert [name for name in counters if after[name] < before[name]] == []
    assert any(name.startswith("tokenspeed_http_requests_total") for name in counters)
    names = sorted(path.name for path in pair.folder.iterdir() if path.name.startswith("front"))
    assert names == ["front-2.sock", "front.sock"]


def test_a_front_that_is_asked_to_end_finishes_first(pair: Pair) -> None:
    before = pair.further()
    stream = pair.sides[1].stream("to its end", max_tokens=300)
    os.kill(before, signal.SIGTERM)
    stream.thread.join(PATIENCE)
    assert stream.finish_reasons == ["length"]
    assert pair.further(other_than=before)
    pair.wait_ready()


def test_a_front_that_is_stopped_is_replaced(pair: Pair) -> None:
    before = pair.further()
    os.kill(before, signal.SIGSTOP)
    assert pair.sides[0].complete().status_code == 200
    until(lambda: before not in pair.home.processes(), "the stopped one is ended")
    pair.wait_ready()


def test_administrators_act_on_both_and_on_who_comes_later(pair: Pair) -> None:
    for path in ("drain", "log-level"):
        assert pair.sides[1].client.post(f"http://localhost/admin/{path}").status_code == 404
    pair.admin("log-level", "debug")
    pair.admin("drain")
    try:
        for side in pair.sides:
            assert side.complete().status_code == 503
        killed = pair.further()
        os.kill(killed, signal.SIGKILL)
        assert pair.further(other_than=killed)
        until(lambda: pair.sides[1].state() == "draining", "the next one drains, too")
    finally:
        pair.admin("resume")
    pair.wait_ready()
    lines = len(pair.front.lines)
    pair.sides[1].get("/livez")
    until(lambda: "GET /livez" in "\n".join(pair.front.lines[lines:]), "it logs what it is to log")
    pair.admin("log-level", "info")


def test_a_reload_reaches_both(pair: Pair) -> None:
    pair.reload(served_names="[tiny, other]")
    for side in pair.sides:
        names = [entry["id"] for entry in side.get("/v1/models").json()["data"]]
        assert names == ["tiny", "other"]
    pair.reload()


def test_limits_hold_for_both_together(pair: Pair) -> None:
    first, second = pair.sides
    keys = pair.home.path / "keys"
    keys.write_text("free\none concurrent=1\ntwo rate=2\n")
    pair.reload(f"api_keys: ['file:{keys}']")
    try:
        for side in pair.sides:
            assert side.get("/v1/models").status_code == 401
        assert first.complete(**{"x-api-key": "two"}).status_code == 200
        assert second.complete(**{"x-api-key": "two"}).status_code == 200
        for side in pair.sides:
            refused = side.complete(**{"x-api-key": "two"})
            assert (refused.status_code, "2 requests per minute" in refused.text) == (429, True)
            assert 0 < int(refused.headers["retry-after"]) <= 30
            assert side.get("/metrics", **{"x-api-key": "free"}).status_code == 200
        for holder, other in ((first, second), (second, first)):
            holder.client.headers["x-api-key"] = "one"
            stream = holder.stream("holds the key")
            assert other.complete(**{"x-api-key": "one"}).status_code == 429
            assert other.complete(**{"x-api-key": "free"}).status_code == 200
            # The end of either process frees what the stream held.
            os.kill(
                (pair.front.worker() if holder is first else pair.further()) or 0, signal.SIGKILL
            )
            stream.thread.join(PATIENCE)
            until(
                lambda o=other: o.complete(**{"x-api-key": "one"}).status_code == 200,
                "the key is free again",
            )
            pair.wait_ready()
    finally:
        for side in pair.sides:
            side.client.headers.pop("x-api-key", None)
        pair.reload()


def test_places_are_those_of_both_together(pair: Pair) -> None:
    first, second = pair.sides
    text = (pair.home.path / "pair.yaml").read_text()
    limited = text.replace("limits:\n", "limits:\n  max_waiting: 1\n")
    (pair.home.path / "pair.yaml").write_text(limited)
    assert pair.home.run("reload", "pair").returncode == 0
    streams = [second.stream(f"place {number}") for number in range(MAX_RUNNING)]
    waiting = Stream(first, "waits", 100)  # type: ignore[arg-type]
    until(lambda: first.series()["tokenspeed_open_requests"] == MAX_RUNNING + 1, "all are taken")
    assert [side.complete().status_code for side in pair.sides] == [429, 429]
    os.kill(pair.further(), signal.SIGKILL)  # which gives back the places that it held
    for stream in (*streams, waiting):
        stream.thread.join(PATIENCE)
    assert waiting.finish_reasons == ["length"]
    until(lambda: first.complete().status_code == 200, "there are places")
    pair.wait_ready()
    pair.reload()


def test_ps_and_status_know_one_instance(pair: Pair) -> None:
    assert pair.home.run("ps").stdout.count("pair") == 1
    assert pair.home.run("status", "pair").returncode == 0


def test_a_stop_lets_both_finish_and_leaves_nothing(pair: Pair) -> None:
    streams = [side.stream("before the end", 400) for side in pair.sides for _ in range(2)]
    pair.front.process.send_signal(signal.SIGTERM)
    until(lambda: {side.state() for side in pair.sides} == {"draining"}, "both refuse what is new")
    for stream in streams:
        stream.thread.join(PATIENCE)
        assert stream.finish_reasons == ["length"]
    assert pair.front.wait() == 0
    assert "Traceback" not in pair.front.output
    pair.home.check_no_leaks(pair.front)


@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGINT), (signal.SIGKILL,)])
def test_what_ends_the_first_front_at_once_ends_the_other(
    model: Path, signals: tuple[signal.Signals, ...]
) -> None:
    with Home() as home, starting(home, model) as pair:
        streams = [side.stream("cut off") for side in pair.sides]
        for number in signals:
            pair.front.process.send_signal(number)
            until(
                lambda: pair.front.process.poll() is not None or "draining" in pair.front.output,
                "it is heard",
            )
        assert pair.front.wait() == (128 + signals[0] if len(signals) > 1 else -signals[0])
        until(lambda: not home.processes(), "no process is left", 10.0)
        for stream in streams:
            stream.thread.join(PATIENCE)
            assert stream.finish_reasons == []
