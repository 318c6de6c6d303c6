"""From one generation to the next under load, with the real command and real processes."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.appliance.live import TOKENSPEED, Front, Home, until
from tests.rigs.plans import tiny_plan
from tokenspeed.appliance import generations as module
from tokenspeed.appliance.generations import RECIPE, Generations
from tokenspeed.appliance.order import Order
from tokenspeed.appliance.rollout import AGAIN_SECONDS, Rollout
from tokenspeed.errors import Problem, ResolveError


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
    recipe.write_text(recipe.read_text() + "  fronts: 2\n")
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


# ---- generations that spoil what runs beside them


def link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


Spoil = Callable[[Path, Path], Any]
"""Of a model's folder and a generation's: both are copies."""
SPOILT: dict[str, Spoil] = {
    "config is no text": lambda model, _: (model / "config.json").write_bytes(b"\xff\xfe{"),
    "config never ends": lambda model, _: link(model / "config.json", "/dev/zero"),
    "config is large": lambda model, _: os.truncate(model / "config.json", 1 << 32),
    "config is a pipe": lambda model, _: (
        (model / "config.json").unlink(),
        os.mkfifo(model / "config.json"),
    ),
    "dtype is no name": lambda model, _: (model / "config.json").write_text(
        json.dumps(json.loads((model / "config.json").read_text()) | {"torch_dtype": {"a": 1}})
    ),
    "weights are cut": lambda model, _: os.truncate(model / "model.safetensors", 1000),
    "weights never end": lambda model, _: link(model / "model.safetensors", "/dev/zero"),
    "model is gone": lambda model, _: shutil.rmtree(model),
    "recipe is no text": lambda _, own: (own / RECIPE).write_bytes(b"\xff\xfe\0"),
    "recipe is gone": lambda _, own: (own / RECIPE).unlink(),
    "lock is no text": lambda _, own: (own / "recipe.lock").write_bytes(b"\xff\xfe\0"),
    "lock never ends": lambda _, own: link(own / "recipe.lock", "/dev/zero"),
}


def test_one_that_cannot_be_planned_stops_nothing(home: Home, model: Path) -> None:
    """Whatever its files became: the same processes go on, and no request notices."""
    front = up_installed(home, home.recipe("demo", model))
    it, before = generations(home), (front.process.pid, front.worker())
    text = it.recipe(1).read_text()
    load = Steady(front)
    for number, (name, spoil) in enumerate(SPOILT.items(), start=2):
        folder = home.path / f"model-{number}"
        shutil.copytree(model, folder)
        lock = it.recipe(1).with_name("recipe.lock").read_text()
        it.add({RECIPE: text.replace(str(model), str(folder)), "recipe.lock": lock})
        spoil(folder, it.recipe(number).parent)
        # As `apply` does, but for a recipe that it would have refused.
        with it._alone():
            it._point_at(number)
            trial = module.Trial(generation=number, seconds=None)
            it._write(module.State(confirmed=(1,), trial=trial))
        front.process.send_signal(signal.SIGUSR1)
        until(lambda: it.state().trial is None, f"it gives way: {name}")
        last = it.state().last
        assert last is not None and last.generation == number and last.reason, name
        assert it.current == 1, name
    gap = load.end()
    print(f"\nlongest wait {gap:.2f} s in {len(load.gaps)} requests, none refused")
    assert (front.process.pid, front.worker()) == before
    assert "Traceback" not in front.output
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)


@pytest.fixture
def two(tmp_path: Path) -> Generations:
    """The first is confirmed, the second on trial."""
    it = Generations(tmp_path / "demo")
    for number in (1, 2):
        it.add({RECIPE: str(number)})
        it.select(number, None)
        if number == 1:
            it.begin()
            it.ready()
    return it


@pytest.fixture(scope="module")
def order_of(model: Path) -> Callable[[Path], Order]:
    plan = tiny_plan(model)
    return lambda recipe: Order(plan=plan, recipe=recipe, offline=True, log_draft=None)


@pytest.mark.parametrize(
    "error",
    [
        OSError("no such disk"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        struct.error("too short"),
        MemoryError(),
        RecursionError("too deep"),
        KeyError("tokens"),
        AssertionError("ours"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_goes_wrong_with_a_plan_ends_that_one_alone(
    two: Generations, order_of: Callable[[Path], Order], error: Exception
) -> None:
    def broken(recipe: Path) -> Order:
        if recipe == two.recipe(2):
            raise error
        return order_of(recipe)

    rollout = Rollout(two, broken)
    with pytest.raises(ResolveError, match=f"cannot be planned: {type(error).__name__}"):
        rollout.selection()
    assert rollout.next().recipe == two.recipe(1)
    last = two.state().last
    assert last is not None
    assert last.generation == 2
    assert f"{type(error).__name__}: {error}" in last.reason


def test_what_goes_wrong_with_a_start_is_raised_where_nothing_is_left(
    two: Generations, order_of: Callable[[Path], Order]
) -> None:
    rollout = Rollout(two, order_of)
    rollout.next()
    rollout.failed(ValueError("a bug"))
    assert two.current == 1
    rollout.next()
    with pytest.raises(ValueError, match="a bug"):
        rollout.failed(ValueError("a bug"))


def held(two: Generations) -> int:
    lock = os.open(two.root / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def full(two: Generations) -> int:
    """Not a full disk, which root does not notice everywhere: a folder in the draft's place."""
    (two.root / "state.json.new").mkdir()
    return os.open(two.root, os.O_RDONLY)


def unreadable(two: Generations) -> int:
    (two.root / "state.json").unlink()
    (two.root / "state.json").mkdir()
    return os.open(two.root, os.O_RDONLY)


@pytest.mark.parametrize("spoil", [held, full, unreadable])
def test_what_runs_goes_on_where_its_state_cannot_be_kept(
    two: Generations,
    order_of: Callable[[Path], Order],
    spoil: Callable[[Generations], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    now = [0.0]
    it = Generations(two.root, lambda: now[0])
    it.select(2, 60.0)
    rollout = Rollout(it, order_of)
    rollout.next()
    rollout.ready()
    assert rollout.remaining() == 60.0
    descriptor = spoil(it)
    try:
        now[0] = 61.0
        assert not rollout.lapse()
        assert rollout.remaining() == AGAIN_SECONDS  # not at once, again and again
        rollout.ready()
        rollout.put_off()
        rollout.took_over(2)
        assert rollout.goes_on(ResolveError(Problem(code="TS-S257", message="broken")))
        assert rollout.generation == 2
    finally:
        os.close(descriptor)
