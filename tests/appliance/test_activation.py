"""Readiness, signs of life and sockets, as a service manager sees them; with the real command."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.appliance.live import Home, until
from tests.appliance.manager import Manager

CLIENTS = 6
BUSY = 240.0  # seconds that a third of them may take on a machine with much else to do


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        yield listener


class Load:
    """Clients that ask without a pause, each on connections that it keeps or makes anew."""

    def __init__(self, url: str, requests: int) -> None:
        self.url = url
        self.requests = requests
        self.answers: list[int] = []
        self.failures: list[str] = []
        self._numbers = itertools.count()
        self._threads = [
            threading.Thread(target=self._run, args=(bool(index % 2),), daemon=True)
            for index in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, keep: bool) -> None:
        limits = httpx.Limits(max_keepalive_connections=1 if keep else 0)
        with httpx.Client(timeout=BUSY, trust_env=False, verify=False, limits=limits) as client:
            while (number := next(self._numbers)) < self.requests:
                prompt = f"question {number}"
                body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "ignore_eos": True}
                try:
                    answer = client.post(f"{self.url}/v1/completions", json=body)
                    whole = answer.status_code == 200 and answer.json()["usage"]
                    self.answers.append(answer.status_code)
                    if not whole:
                        self.failures.append(answer.text)
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))

    def join(self) -> None:
        for thread in self._threads:
            thread.join(BUSY)
            assert not thread.is_alive()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fronts", "requests"), [(1, 1200), (2, 500)])
def test_a_restart_under_constant_load_refuses_and_loses_nothing(
    home: Home, model: Path, held: socket.socket, fronts: int, requests: int
) -> None:
    manager = Manager(home, held)
    port = held.getsockname()[1]
    recipe = home.recipe("demo", model, port=port)
    recipe.write_text(f"{recipe.read_text()}  fronts: {fronts}\n")
    load = Load(
        f"http://127.0.0.1:{port}", requests
    )  # before anything runs: they wait in the queue
    front = manager.start(recipe)
    until(lambda: len(load.answers) > requests // 3, "some were answered", BUSY)
    assert manager.stop(front) == 0, front.output
    assert len(load.answers) < requests
    front = manager.start(recipe)
    load.join()
    print(f"\n{len(load.answers)} answered, {len(load.failures)} refused or lost")
    assert load.failures == []
    assert load.answers == [200] * requests
    assert front.wait_ready().stop(signal.SIGTERM) == 0
    manager.close()


def test_ready_is_said_after_the_first_answer_and_every_stage_before(
    home: Home, model: Path, held: socket.socket
) -> None:
    manager = Manager(home, held)
    recipe = home.recipe("demo", model, port=held.getsockname()[1])
    front = manager.start(recipe, watchdog=0.6)
    manager.wait_for("READY", "1", front)
    stages = manager.said("STATUS")
    assert any(stage.startswith("warming up") for stage in stages)
    assert manager.said("EXTEND_TIMEOUT_USEC")
    until(lambda: manager.said("STATUS")[-1].startswith("serving at"), "it says that it serves")
    beats = len(manager.said("WATCHDOG"))
    until(lambda: len(manager.said("WATCHDOG")) > beats + 3, "the watchdog is fed")
    assert manager.stop(front) == 0
    assert manager.said("STOPPING") == ["1"]
    manager.close()
    home.check_no_leaks(front)


def test_a_kept_socket_outlives_a_crash(home: Home, model: Path) -> None:
    manager = Manager(home, None)
    recipe = home.recipe("demo", model)
    front = manager.start(recipe).wait_ready()
    until(lambda: manager.kept, "the socket is kept")
    front.process.kill()
    front.process.wait()
    # Nobody serves, and yet nobody is refused.
    with socket.create_connection(front.address) as waiting:
        waiting.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        again = manager.start(recipe).wait_ready()
        assert again.url == front.url
        waiting.settimeout(20)
        assert waiting.recv(100).startswith(b"HTTP/1.1 200")
    assert manager.stop(again) == 0
    manager.close()


def test_a_socket_at_another_address_than_the_plan_says_is_refused(
    home: Home, model: Path, held: socket.socket
) -> None:
    manager = Manager(home, held)
    front = manager.start(home.recipe("demo", model, port=1024))
    assert front.wait() == 78
    assert "TS-S222" in front.output
    manager.close()


def test_a_worker_that_hangs_is_replaced_and_that_is_said(home: Home, model: Path) -> None:
    front = home.up(home.recipe("demo", model), "--set", "advanced.hang=1s").wait_ready()
    before, answer = front.worker(), front.ask()
    assert before is not None
    # It runs from its recipe, so it has no generations to go on with.
    applied = home.run("apply", str(front.home.path / "demo.yaml"))
    assert applied.returncode == 69
    assert "TS-S253" in applied.stderr
    assert "starts the generation that was made now" in " ".join(applied.stderr.split())
    with front.streams(2) as streams:
        os.kill(before, signal.SIGSTOP)
    assert all(stream.error is not None for stream in streams)
    until(lambda: front.get("/readyz").status_code == 200, "another one serves")
    assert front.worker() != before
    assert front.ask() == answer
    assert "the worker is stopped for" in front.output or "was not heard for" in front.output
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)
