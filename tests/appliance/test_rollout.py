"""From one generation to the next under load, with the real command and real processes."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.appliance.live import TOKENSPEED, Front, Home, tiny_model, until
from tokenspeed.appliance.generations import Generations


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def home() -> Iterator[Home]:
    with Home() as home:
        yield home


def generations(home: Home) -> Generations:
    return Generations(home.data_root / "demo")


def up_installed(home: Home, recipe: Path) -> Front:
    done = home.run("apply", str(recipe))
    assert done.returncode == 0, done.stderr
    assert "generation 1 is selected" in done.stdout
    return home.up(recipe, command=[*TOKENSPEED, "up", "--installed", "demo"]).wait_ready()


class Steady:
    """One client that asks without a pause, each time on a new connection."""

    def __init__(self, front: Front) -> None:
        self.gaps: list[float] = []
        self.failures: list[str] = []
        self._url, self._on = front.url, True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            if not self._on:
                return
            began = time.monotonic()
            body = {"model": "tiny", "prompt": f"question {number}", "max_tokens": 2}
            try:
                answer = httpx.post(
                    f"{self._url}/v1/completions", json=body, timeout=60, trust_env=False
                )
                if answer.status_code != 200:
                    self.failures.append(answer.text)
            except httpx.HTTPError as error:
                self.failures.append(repr(error))
            self.gaps.append(time.monotonic() - began)

    def end(self) -> float:
        """The longest that anybody waited, in seconds."""
        self._on = False
        self._thread.join(60)
        assert self.failures == []
        return max(self.gaps)


def test_one_that_cannot_boot_gives_way_and_service_goes_on(home: Home, model: Path) -> None:
    recipe = home.recipe("demo", model)
    front = up_installed(home, recipe)
    before, answer = front.url, front.ask()
    load = Steady(front)
    broken = home.path / "broken"
    shutil.copytree(model, broken)
    weights = max(broken.iterdir(), key=lambda path: path.stat().st_size)
    changed = recipe.with_name("changed.yaml")
    changed.write_text(recipe.read_text().replace(f"path:{model}", f"path:{broken}"))
    applying = subprocess.Popen(
        [*TOKENSPEED, "apply", str(changed)],
        env=home.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: generations(home).state().trial, "the new one is on trial")
    weights.unlink()  # after it was locked: it resolves, and is found out by the start
    _, told = applying.communicate(timeout=60)
    assert applying.returncode == 69, told
    assert "TS-S254" in told
    gap = load.end()
    print(f"\nlongest wait {gap:.2f} s in {len(load.gaps)} requests, none refused")
    assert front.url == before
    assert front.ask() == answer
    assert generations(home).current == 1
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)


def test_apply_confirm_and_rollback(home: Home, model: Path) -> None:
    recipe = home.recipe("demo", model)
    front = up_installed(home, recipe)
    load = Steady(front)
    assert home.run("apply", str(recipe)).stdout.endswith("generation 1 is just that\n")
    assert home.run("up", "--installed", "nobody").returncode == 69
    assert home.run("up").returncode == 64
    changed = ["apply", str(recipe), "--set", "limits.max_running=4"]
    done = home.run(*changed, "--mode", "try")
    assert done.returncode == 0, done.stderr
    assert "generation 2 is ready" in done.stdout
    assert home.run("confirm", "demo").stdout == "demo: generation 2 is confirmed\n"
    assert home.run("confirm", "demo").returncode == 69
    done = home.run("rollback", "demo")
    assert done.stdout == "demo: generation 1 is ready\n", done.stderr
    listed = json.loads(home.run("generations", "demo", "--output", "json").stdout)
    assert [row["state"] for row in listed] == ["current, confirmed", "confirmed"]
    load.end()
    assert front.process.poll() is None  # one process all along
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)


def test_a_trial_that_nobody_confirms_lapses(home: Home, model: Path) -> None:
    recipe = home.recipe("demo", model)
    front = up_installed(home, recipe)
    options = ["--mode", "try", "--for", "200ms", "--set", "limits.max_running=4"]
    done = home.run("apply", str(recipe), *options)
    until(lambda: generations(home).current == 1, "it lapses")
    until(lambda: (r := home.record("demo")) and r.generation == 1 and r.greeting, "back again")
    last = generations(home).state().last
    assert last is not None
    assert (last.generation, last.reason) == (2, "nobody confirmed it"), done.stderr
    assert front.stop(signal.SIGTERM) == 0


def test_one_that_is_killed_on_its_way_up_gives_way_to_the_next_start(
    home: Home, model: Path
) -> None:
    recipe = home.recipe("demo", model)
    front = up_installed(home, recipe)
    front.process.kill()
    front.process.wait()
    done = home.run("apply", str(recipe), "--set", "limits.max_running=4")
    assert "generation 2 is selected" in done.stdout
    command = [*TOKENSPEED, "up", "--installed", "demo"]
    second = home.up(recipe, command=command).wait_listening()
    second.process.kill()
    second.process.wait()
    third = home.up(recipe, command=command).wait_ready()
    assert generations(home).current == 1
    assert home.run("apply", str(recipe), "--set", "limits.max_running=5").returncode == 0
    assert third.stop(signal.SIGTERM) == 0
    home.check_no_leaks(third)
