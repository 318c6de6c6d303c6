"""What a later worker would load is what the instance began with, or it is not started."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from tests.appliance.live import Home, until
from tests.rigs import build_rand
from tokenspeed.appliance.held import HeldFiles


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 70_000, 1_000_000])
def test_other_content_is_told_and_the_same_again_is_not(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.gguf"
    first, other = (random.Random(seed).randbytes(size) for seed in (1, 2))
    path.write_bytes(first)
    held = HeldFiles([path])
    assert held.changed() is None
    for wrong in (other, first[:-1], first + b"x", first[:-1] + bytes([first[-1] ^ 1])):
        path.write_bytes(wrong)
        assert str(path) in (held.changed() or "")
    path.unlink()  # the worker says what is missing
    assert held.changed() is None
    path.write_bytes(first)
    os.utime(path, (1, 1))
    assert held.changed() is None


def test_files_that_cannot_be_read_at_first_are_not_held(tmp_path: Path) -> None:
    held = HeldFiles([tmp_path / "missing", tmp_path])
    (tmp_path / "missing").write_bytes(b"x")
    assert held.changed() is None


def test_another_model_in_the_place_of_the_first_is_not_served(home: Home, tmp_path: Path) -> None:
    model, other = (build_rand(tmp_path / f"{seed}", "llama", seed=seed) for seed in (1, 2))
    shutil.copytree(model, kept := tmp_path / "kept")
    front = home.up(home.recipe("demo", model)).wait_ready()
    before, answer = front.worker(), front.ask()
    assert before is not None
    for path in other.iterdir():
        shutil.copy(path, model / path.name)
    assert front.ask() == answer  # it was loaded before
    os.kill(before, signal.SIGKILL)
    until(lambda: "was replaced after this instance began" in front.output, "that it says so")
    assert front.get("/readyz").status_code == 503
    assert front.worker() is None
    shutil.rmtree(model)
    shutil.copytree(kept, model)
    until(lambda: front.get("/readyz").status_code == 200, "served again")
    assert front.ask() == answer
    assert front.stop(signal.SIGTERM) == 0
