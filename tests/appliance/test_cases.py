"""Cases C31 and C34 with the real command: orphans, and logs that nobody takes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.appliance.live import Home, until
from tests.ports import named_port


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_c31_the_front_is_hit_while_loading(
    home: Home, model: Path, number: signal.Signals
) -> None:
    recipe = home.recipe("demo", model, port=named_port())
    front = home.up(recipe).wait_listening()
    until(front.worker, "the worker is there, still loading")
    front.process.send_signal(number)
    front.process.wait(5)
    until(lambda: not home.processes(), "nothing of it is left", 5.0)
    again = home.up(recipe).wait_ready()  # the same port, at once
    assert again.ask()
    assert again.stop(signal.SIGTERM) == 0
    home.check_no_leaks(again)


@pytest.mark.parametrize("stage", ["loading", "streaming"])
def test_c31_the_worker_is_hit_and_the_survivors_serve(home: Home, model: Path, stage: str) -> None:
    front = home.up(home.recipe("demo", model, port=named_port())).wait_listening()
    if stage == "loading":
        first = until(front.worker, "the worker is there, still loading")
        os.kill(first, signal.SIGTERM)
        front.wait_ready()
    else:
        front.wait_ready()
        answer = front.ask()
        first = front.worker()
        with front.streams(2, max_tokens=400) as streams:
            os.kill(first, signal.SIGINT)  # Ctrl-C is the front's business
        assert [stream.finish_reasons for stream in streams] == [["length"]] * 2
        assert front.worker() == first
        with front.streams(2) as streams:
            os.kill(first, signal.SIGTERM)
        assert all(stream.error or stream.finish_reasons for stream in streams)
        until(lambda: front.worker() not in (None, first), "another worker")
        until(lambda: front.get("/readyz").status_code == 200, "service returns")
        assert front.ask() == answer
    assert front.worker() != first
    until(lambda: first not in home.processes(), "no zombie")
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)


def requests_and_a_crash(home: Home, recipe: Path, **popen: object) -> None:
    recipe.write_text(recipe.read_text() + "  log_requests: true\n")
    front = home.up(recipe, **popen).wait_ready()
    for number in range(100):
        unknown = {f"field_{number}_{n}": "x" * 100 for n in range(50)}
        body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
        assert front.post("/v1/completions", body | unknown).status_code == 200
    before = front.ask()
    os.kill(front.worker(), signal.SIGKILL)
    until(lambda: front.get("/readyz").status_code == 503, "it went down")
    until(lambda: front.get("/readyz").status_code == 200, "service returns")
    assert front.ask() == before
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)


def test_c34_a_full_pipe_on_both_streams_holds_up_nothing(home: Home, model: Path) -> None:
    """Nobody reads, and there is no room for a single byte."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for chunk in (b"x" * 65536, b"x"):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, chunk)
    os.set_blocking(writer, True)
    requests_and_a_crash(home, home.recipe("demo", model), stdout=writer, stderr=writer)
    os.close(writer)
    os.close(reader)


def test_c34_a_full_disk_holds_up_nothing(home: Home, model: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        requests_and_a_crash(home, home.recipe("demo", model), stdout=full, stderr=full)
