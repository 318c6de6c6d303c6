"""A changed recipe and a running instance: what is taken over at once, and what is not."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import httpx
import pytest

from tests.appliance.live import TOKENSPEED, Front, Home, until
from tests.appliance.manager import Manager
from tests.recipe.test_schema import key_paths
from tokenspeed.appliance.generations import Generations
from tokenspeed.appliance.reload import LIVE
from tokenspeed.plan import Plan
from tokenspeed.recipe.schema import reload_cost


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with Home() as home:
        yield home


@pytest.fixture(scope="module")
def managed(home: Home, model: Path) -> Iterator[tuple[Front, Manager]]:
    """One instance for all tests, under a service manager."""
    manager = Manager(home, None)
    front = manager.start(home.recipe("demo", model)).wait_ready()
    yield front, manager
    assert front.stop(signal.SIGTERM) == 0
    manager.close()
    home.check_no_leaks(front)


@pytest.fixture
def front(managed: tuple[Front, Manager]) -> Front:
    return managed[0]


def change(home: Home, model: Path, *lines: str, **settings: str) -> None:
    """Writes the recipe anew, with these replacements and more lines at its end."""
    home.recipe("demo", model)
    path = home.path / "demo.yaml"
    text = path.read_text()
    for before, after in settings.items():
        text = text.replace(f"{before}: ", f"{before}: {after}  # ")
    path.write_text(text + "".join(f"{line}\n" for line in lines))


def test_every_live_key_has_its_place_in_the_plan() -> None:
    costs = {path: reload_cost(path) for path in key_paths()}
    live = {path for path, cost in costs.items() if cost == "live"} - {"version"}
    assert {p if p in LIVE else p.rpartition(".")[0] for p in live} == set(LIVE)
    for field in LIVE.values():
        section, name = field.split(".")
        assert name in get_type_hints(get_type_hints(Plan)[section]), field
    assert costs["limits.max_running"] == "restart"
    assert reload_cost("kernels.overrides.linear") == "restart"


def test_live_keys_take_effect_and_the_rest_says_what_it_needs(
    home: Home, model: Path, front: Front
) -> None:
    worker = front.worker()
    with front.streams(1, max_tokens=4000) as (stream,):
        change(
            home, model, "  log_requests: true", "  sampling: {max_tokens: 3}",
            "advanced: {max_body: 2KiB}", served_names="[tiny, small]", drain="7s", max_running="4",
        )  # fmt: skip
        done = home.run("reload", "demo", "--detailed-exitcode")
        assert done.returncode == 2, done.stderr
        assert set(done.stdout.splitlines()) == {
            "model.served_names: a list -> a list: applied",
            "serve.drain: 20.0 -> 7.0: applied",
            "serve.log_requests: not set -> true: applied",
            "serve.sampling.max_tokens: not set -> 3: applied",
            "advanced.max_body: not set -> 2048: applied",
            "limits.max_running: 8 -> 4: needs a restart with new workers",
            f"to restart it: tokenspeed down demo, then tokenspeed up {home.path / 'demo.yaml'}",
        }
    assert stream.finish_reasons == ["length"], "what was under way goes on"
    answer = front.post("/v1/completions", {"model": "small", "prompt": "hi", "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 3
    large = {"model": "tiny", "prompt": "x" * 3000}
    assert front.post("/v1/completions", large).status_code == 413
    assert [entry["id"] for entry in front.get("/v1/models").json()["data"]] == ["tiny", "small"]
    names = front.get("/openapi.json").text
    assert '"small"' in names
    record = home.record("demo")
    assert record is not None
    assert record.drain_seconds == 7.0
    assert front.worker() == worker
    again = home.run("reload", "--output", "json")
    assert [c["key"] for c in json.loads(again.stdout)["changes"]] == ["limits.max_running"]


def test_a_broken_recipe_changes_nothing(home: Home, model: Path, front: Front) -> None:
    before = front.get("/status.json").json()["plan"]
    change(home, model, "limits: {}")
    done = home.run("reload", "demo")
    assert (done.returncode, done.stdout) == (65, "")
    assert "limits" in done.stderr
    assert front.get("/status.json").json()["plan"] == before
    assert home.run("reload", "nobody").returncode == 69


def test_keys_may_come_while_it_runs_and_go_again(home: Home, model: Path, front: Front) -> None:
    (home.path / "keys").write_text("first-key\n")
    change(home, model, f"  api_keys: ['file:{home.path / 'keys'}']")
    assert home.run("reload", "demo").returncode == 0
    assert front.get("/v1/models").status_code == 401
    headers = {"authorization": "Bearer first-key"}
    assert front.client.get(f"{front.url}/v1/models", headers=headers).status_code == 200
    # The admin's path is for this machine's own user alone.
    assert front.client.post(f"{front.url}/admin/reload", headers=headers).status_code == 404
    record = home.record("demo")
    assert record is not None
    transport = httpx.HTTPTransport(uds=record.local.removeprefix("unix:"))
    with httpx.Client(transport=transport, base_url="http://localhost") as local:
        assert local.post("/admin/reload").status_code == 401
    change(home, model, "  api_keys: ['file:/nowhere']")
    gone = home.run("reload", "demo")
    assert (gone.returncode, "TS-S241" in gone.stderr) == (69, True)
    assert front.get("/v1/models").status_code == 401
    change(home, model)
    assert home.run("reload", "demo").returncode == 0
    assert front.get("/v1/models").status_code == 200


def test_sighup_reloads_and_the_manager_is_told(
    home: Home, model: Path, managed: tuple[Front, Manager]
) -> None:
    front, manager = managed
    change(home, model, served_names="[tiny, other]")
    manager.messages.clear()
    front.process.send_signal(signal.SIGHUP)
    manager.wait_for("READY", "1", front)
    (begun,) = (message for message in manager.messages if message.get("RELOADING") == "1")
    assert begun["MONOTONIC_USEC"].isdigit()
    assert {entry["id"] for entry in front.get("/v1/models").json()["data"]} == {"tiny", "other"}
    change(home, model)
    assert home.run("reload", "demo").returncode == 0


def test_a_generation_that_differs_in_live_keys_needs_no_start(model: Path) -> None:
    with Home() as home:
        recipe = home.recipe("demo", model)
        assert home.run("apply", str(recipe)).returncode == 0
        front = home.up(recipe, command=[*TOKENSPEED, "up", "--installed", "demo"]).wait_ready()
        worker = front.worker()
        done = home.run("apply", str(recipe), "--set", "limits.max_waiting=3")
        assert done.stdout == "demo: generation 2 is ready\n", done.stderr
        options = ("--mode", "try", "--for", "200ms", "--set", "limits.max_waiting=4")
        assert "generation 3 is ready" in home.run("apply", str(recipe), *options).stdout
        generations = Generations(home.data_root / "demo")
        until(lambda: (record := home.record("demo")) and record.generation == 2, "it lapses")
        assert generations.state().confirmed == (1, 2)
        scheduler = front.get("/status.json").json()["plan"]["scheduler"]
        assert scheduler["max_waiting"] == 3
        assert front.worker() == worker
        assert front.stop(signal.SIGTERM) == 0
        home.check_no_leaks(front)
