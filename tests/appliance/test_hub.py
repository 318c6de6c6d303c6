"""Models of a repository: the real library against a local endpoint."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.appliance.hub_server import Repository, serve
from tests.appliance.live import TOKENSPEED, Home, until

NAME = "org/tiny"
RECIPE = """\
version: 1
name: demo
device: cpu
model:
  source: hf:org/tiny
  served_names: [tiny]
kv:
  blocks: 64
limits:
  threads: 1
serve:
  port: 0
"""


@pytest.fixture
def repository(model: Path) -> Iterator[Repository]:
    with serve(Repository(model, NAME)) as it:
        yield it


@pytest.fixture
def home(repository: Repository) -> Iterator[Home]:
    with Home() as home:
        home.environment |= {"HF_ENDPOINT": repository.url, "HF_HUB_DISABLE_XET": "1"}
        home.environment |= {"HF_HOME": str(home.path / "hf"), "NO_PROXY": "127.0.0.1"}
        yield home


def test_pull_makes_a_repository_known_and_up_needs_no_network_then(
    home: Home, repository: Repository
) -> None:
    recipe = home.path / "demo.yaml"
    recipe.write_text(RECIPE)
    unknown = home.run("check", str(recipe)), home.run("plan", str(recipe))
    assert "tokenspeed pull hf:org/tiny" in unknown[1].stderr
    done = home.run("pull", "hf:org/tiny")
    assert done.returncode == 0, done.stderr
    asked = len(repository.requests)
    assert home.run("pull", "hf:org/tiny").stdout == done.stdout
    front = home.up(recipe, "--offline").wait_ready()
    assert front.ask()
    assert front.stop(signal.SIGTERM) == 0
    assert len(repository.requests) == asked


# The library writes by 10 MiB, and goes on after the last of them.
PIECE = 10 * 2**20
LARGE = "more.safetensors"


def _pulled(told: str, name: str) -> bytes:
    return (Path(told.strip().removeprefix("hf:org/tiny: ")) / name).read_bytes()


def test_a_download_that_broke_off_goes_on_where_it_was(home: Home, repository: Repository) -> None:
    repository.files[LARGE] = random.Random(1).randbytes(24 * 2**20)
    repository.cut = 15 * 2**20
    done = home.run("pull", "hf:org/tiny")
    assert done.returncode == 0, done.stderr
    assert repository.sent[LARGE] == 15 * 2**20 + 24 * 2**20 - PIECE
    assert _pulled(done.stdout, LARGE) == repository.files[LARGE]


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_download_that_was_killed_goes_on_where_it_was(
    home: Home, repository: Repository, spoilt: bool
) -> None:
    repository.files[LARGE] = random.Random(2).randbytes(24 * 2**20)
    repository.cut, repository.stalls = 15 * 2**20, True
    pull = home.up(home.path / "none.yaml", command=[*TOKENSPEED, "pull", "hf:org/tiny"])

    def part() -> Path | None:
        found = [*home.data_root.glob("weights/partial/*/*.part")]
        return next((path for path in found if path.stat().st_size >= PIECE), None)

    kept = until(part, "a piece is on the disk")
    pull.process.kill()
    pull.wait()
    if spoilt:  # as a power cut may leave it
        kept.write_bytes(bytes(kept.stat().st_size))
    done = home.run("pull", "hf:org/tiny")
    assert done.returncode == 0, done.stderr
    size = len(repository.files[LARGE])
    again = size if spoilt else 0
    assert repository.sent[LARGE] == 15 * 2**20 + size - PIECE + again
    assert _pulled(done.stdout, LARGE) == repository.files[LARGE]
    assert not list(home.data_root.glob("weights/partial/*"))


def test_what_a_killed_download_left_takes_no_room(home: Home, repository: Repository) -> None:
    blobs = home.data_root / "weights/hub/models--org--tiny/blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.0123.incomplete").write_bytes(bytes(1000))
    os.utime(blobs / "abc.0123.incomplete", (0, 0))
    done = home.run("pull", "hf:org/tiny")
    assert done.returncode == 0, done.stderr
    assert not list(blobs.glob("*.incomplete"))


def test_a_damaged_file_is_found_out(home: Home, repository: Repository) -> None:
    repository.damaged = True
    done = home.run("pull", "hf:org/tiny")
    assert done.returncode == 75
    assert "TS-S118" in done.stderr
    repository.damaged = False
    done = home.run("pull", "hf:org/tiny")
    assert done.returncode == 0, done.stderr


def test_no_more_is_taken_than_was_announced(home: Home, repository: Repository) -> None:
    repository.surplus = 100 << 20
    done = home.run("pull", "hf:org/tiny")
    assert done.returncode == 75
    assert "is longer than the" in done.stderr
    kept = sum(path.stat().st_size for path in home.path.rglob("*.part"))
    assert kept < repository.surplus / 2


def test_a_gated_model_needs_its_token(home: Home, repository: Repository) -> None:
    repository.token = "secret"
    refused = home.run("pull", "hf:org/tiny")
    assert (refused.returncode, "TS-S117" in refused.stderr) == (78, True)
    done = home.run("pull", "hf:org/tiny", "--token", "env:MINE", MINE="secret")
    assert done.returncode == 0, done.stderr
    assert home.run("pull", "hf:org/other").returncode == 78


def test_what_is_not_here_cannot_be_had_offline(home: Home, repository: Repository) -> None:
    done = home.run("pull", "hf:org/tiny", "--offline")
    assert done.returncode == 75
    assert repository.requests == []
    repository.url = ""
    gone = home.run("pull", "hf:org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert gone.returncode == 75
