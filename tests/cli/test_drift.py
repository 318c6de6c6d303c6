"""What `status` says of declared, locked, detected: each against what runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tokenspeed.appliance.instance import RECORD_VERSION, Record
from tokenspeed.cli import main
from tokenspeed.cli.drift import Drift, drift
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Hardware

TEXT = "version: 1\nname: demo\nmodel: {source: hf:Qwen/Qwen3-8B, load: dummy}\n"


@pytest.fixture
def h200() -> Hardware:
    return load_hardware("nvidia-h200")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    path.write_text(TEXT)
    return path


def drifted(recipe: Path, before: Hardware, now: Hardware, *overrides: str) -> Drift:
    record = Record(
        version=RECORD_VERSION,
        name="demo",
        pid=1,
        start_ticks=0,
        url="",
        recipe=str(recipe),
        started=0.0,
        drain_seconds=1.0,
        log=None,
        greeting="",
        overrides=overrides,
    )
    running = plan_recipe(Path(f"{recipe}.then"), overrides, before).resolution.plan
    return drift(record, running, now)


@pytest.fixture(autouse=True)
def as_it_was(recipe: Path) -> None:
    """The recipe as it was when the instance started."""
    Path(f"{recipe}.then").write_text(TEXT)


def test_nothing_drifted(recipe: Path, h200: Hardware) -> None:
    assert drifted(recipe, h200, h200) == Drift((), None, ())


def test_overrides_of_the_start_are_part_of_what_is_declared(recipe: Path, h200: Hardware) -> None:
    assert drifted(recipe, h200, h200, "kv.block_size=32").declared == ()


def test_the_recipe_was_edited(recipe: Path, h200: Hardware) -> None:
    recipe.write_text(TEXT + "limits: {max_waiting: 7}\n")
    assert drifted(recipe, h200, h200).declared == ("scheduler.max_waiting: 1024 -> 7",)


def test_the_recipe_is_wrong_by_now(recipe: Path, h200: Hardware) -> None:
    recipe.write_text(TEXT + "limts: {max_waiting: 7}\n")
    assert drifted(recipe, h200, h200).declared == ("limts: unknown key",)
    recipe.unlink()
    (gone,) = drifted(recipe, h200, h200).declared
    assert "cannot be read" in gone


def test_the_lock_holds_something_else(recipe: Path, h200: Hardware) -> None:
    assert main(["lock", str(recipe), "--hardware", "nvidia-h200"]) == 0
    assert drifted(recipe, h200, h200).locked == ()
    edit = ["--set", "serve.port=9000"]
    assert main(["lock", str(recipe), "--hardware", "nvidia-h200", *edit]) == 0
    assert drifted(recipe, h200, h200).locked == ("serve.port: 8000 -> 9000",)


def test_the_machine_changed(recipe: Path, h200: Hardware) -> None:
    other = replace(h200, gpus=(replace(h200.gpus[0], name="NVIDIA L4", memory_bytes=2**34),))
    found = drifted(recipe, h200, other).detected
    assert found == ("device: NVIDIA H200 -> NVIDIA L4", "memory: 140.4GiB -> 16GiB")
    blind = replace(h200, gpus=(), notes=("no NVIDIA driver answers",))
    (lost,) = drifted(recipe, h200, blind).detected
    assert lost == "NVIDIA H200: no GPU is seen (no NVIDIA driver answers)"
