"""What nothing needs goes; what a lock, a generation or an instance needs stays."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import REPO
from tokenspeed.appliance.garbage import Garbage
from tokenspeed.appliance.generations import Generations
from tokenspeed.appliance.instance import RECORD_VERSION, Record, claim
from tokenspeed.appliance.process import start_ticks
from tokenspeed.appliance.store import Store, partial_name
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint.source import parse
from tokenspeed.cli import main
from tokenspeed.plan import ModelFile, Plan
from tokenspeed.resolve.lock import read_lock

SMOL = REPO / "recipes/smollm2-135m-cpu.yaml"
OTHER = parse("hf:org/other")


class Place:
    """A data root of its own, with two models that share a file, and a recipe's lock."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.data = folder / "d/tokenspeed"
        self.weights = self.data / "weights"
        self.store = Store(self.weights)
        self.lock = folder / "smol.lock"
        assert main(["lock", str(SMOL), "-o", str(self.lock)]) == 0
        self.plan = read_lock(self.lock).plan
        self.source = parse(self.plan.model.source)
        self.put(self.source, self.plan.model.files, model=b"m" * 5000, tokenizer=b"t" * 70)
        self.put(OTHER, (), weights=b"w" * 900, tokenizer=b"t" * 70)
        capsys.readouterr()

    def put(self, source: Any, files: tuple[ModelFile, ...], **contents: bytes) -> None:
        with self.store.intake(source, files, 0, Watch()) as keep:
            for name, data in contents.items():
                keep(name, ModelFile(name=name, bytes=len(data), sha256=None), io.BytesIO(data))

    def gc(self, *arguments: str) -> dict[str, tuple[int, list[str]]]:
        """Size and who needs it, by name."""
        assert main(["gc", "--output", "json", *arguments]) == 0
        items = json.loads(self._capsys.readouterr().out)["items"]
        return {item["name"]: (item["bytes"], item["needed_by"]) for item in items}

    @property
    def own(self) -> str:
        return self.store.folder(self.source, self.plan.model.files).name

    @property
    def other(self) -> str:
        return self.store.folder(OTHER, ()).name


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Place:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    return Place(tmp_path, capsys)


def test_what_a_lock_names_stays_and_the_rest_goes(place: Place) -> None:
    (place.weights / "blobs" / ("0" * 64)).write_bytes(b"left by nobody")
    for source in ("pypi:gone==1", place.source.text):
        part = place.weights / "partial" / partial_name(parse(source))
        part.mkdir()
        (part / "x.whl").write_bytes(b"half")
    shown = place.gc()
    assert shown[place.own] == (5070, [str(place.lock)])
    assert shown[place.other] == (900, []), "the shared file is needed by the first model"
    assert shown["0" * 64] == (14, [])
    assert place.gc() == shown, "looking deletes nothing"
    assert place.gc("--delete") == shown
    left = place.gc()
    assert set(left) == {place.own, partial_name(place.source)}
    folder = place.store.folder(place.source, place.plan.model.files)
    assert {path.read_bytes()[:1] for path in folder.iterdir()} == {b"m", b"t"}

    place.lock.unlink()
    assert [who for _, who in place.gc("--delete").values()] == [[], []]
    assert place.gc() == {}
    assert list((place.weights / "roots").iterdir()) == []
    assert list((place.weights / "blobs").iterdir()) == []


def test_a_lock_that_cannot_be_read_may_need_anything(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of another version, and one that is not to be looked at, for whatever reason."""
    locks = [tmp_path / name for name in ("foreign.lock", "round.lock")]
    locks[0].write_text("version: 99\n")
    locks[1].symlink_to(locks[1])
    for lock in locks:
        place.store.hold(lock)
    assert main(["gc", "--delete"]) == 0
    told = capsys.readouterr().err
    assert all(f"{lock} cannot be read" in told for lock in locks)
    assert place.gc()[place.own] == (5070, [str(place.lock)])
    assert place.gc()[place.other][1] == [str(lock) for lock in locks]
    for lock in locks:
        lock.unlink()
    assert place.gc("--delete")[place.other] == (900, [])
    assert set(place.gc()) == {place.own}


def test_generations_are_roots_until_no_rollback_leads_to_them(place: Place) -> None:
    text = place.lock.read_text()
    place.lock.unlink()
    generations = Generations(place.data / "smol")
    files = {"recipe.yaml": "version: 1\n", "recipe.lock": text}
    generations.root.mkdir(parents=True)
    for _ in range(3):
        generations.select(generations.add(files), None)
    generations.begin()
    generations.ready()  # confirms the third, which collects the others
    place.gc("--delete")
    assert place.gc() == {place.own: (5070, ["generation 3 of smol"])}
    (generations.recipe(3).parent / "recipe.lock").write_text("not a lock")
    assert main(["gc", "--delete"]) == 78, "what a generation needs is not known"
    assert place.store.folder(place.source, place.plan.model.files).is_dir()


def test_what_runs_stays(place: Place) -> None:
    place.lock.unlink()
    run_root = Path(os.environ["XDG_RUNTIME_DIR"]) / "tokenspeed"
    folder = claim(run_root, "mine")
    folder.write_plan(place.plan)
    folder.write_record(
        Record(
            version=RECORD_VERSION, name="mine", pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()) or 0, url="", recipe="", started=0.0,
            drain_seconds=1.0, log=None, greeting="", local=folder.front_url,
        )
    )  # fmt: skip
    assert place.gc("--delete")[place.own] == (5070, ["instance mine"])
    folder.remove()
    assert place.gc()[place.own] == (5070, [])


def test_nothing_is_collected_while_a_model_is_fetched(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.lock.unlink()
    with place.store.intake(parse("hf:org/new"), (), 0, Watch()) as keep:
        keep("new", ModelFile(name="new", bytes=1, sha256=None), io.BytesIO(b"n"))
        assert main(["gc", "--delete"]) == 75
        assert "TS-S270" in capsys.readouterr().err
    assert place.gc()[place.own] == (5070, [])


def test_of_a_repository_the_revisions_that_nobody_names_go(place: Place, tmp_path: Path) -> None:
    repository = place.weights / "hub/models--org--big"
    for commit, blobs in {"new": ("a", "b"), "old": ("b", "c")}.items():
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (repository / "blobs").mkdir(exist_ok=True)
        for blob in blobs:
            (repository / "blobs" / blob).write_bytes(blob.encode() * 100)
            (snapshot / f"{blob}.safetensors").symlink_to(f"../../blobs/{blob}")
    source = parse("hf:org/big")
    place.store.folder(source, ()).symlink_to(repository / "snapshots/new")
    model = replace(place.plan.model, source=source.text, files=())
    needing: dict[str, Plan] = {"big": replace(place.plan, model=model)}
    garbage = Garbage(place.data, ())

    def sizes(running: dict[str, Plan]) -> dict[str, tuple[int, tuple[str, ...]]]:
        items = garbage.items(running)
        return {item.name: (item.bytes, item.needed_by) for item in items if "big" in item.name}

    other = "hf:org/big, other revisions"
    assert sizes(needing) == {"hf:org/big": (200, ("instance big",)), other: (100, ())}
    for item in garbage.items(needing):
        if not item.needed_by:
            garbage.delete(item)
    assert sorted(path.name for path in (repository / "blobs").iterdir()) == ["a", "b"]
    assert sizes(needing) == {"hf:org/big": (200, ("instance big",))}
    assert sizes({}) == {"hf:org/big": (200, ())}


def test_compiled_kernels_stay_for_plans_of_gpus(place: Place, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "triton/x").mkdir(parents=True)
    (cache / "triton/x/kernel.cubin").write_bytes(b"k" * 30)
    on_gpu = replace(place.plan, device=replace(place.plan.device, kind="cuda"))

    def needed_by(plan: Plan) -> tuple[str, ...]:
        items = Garbage(place.data, (cache,)).items({"mine": plan})
        (found,) = (item for item in items if item.kind == "kernels")
        assert found.bytes == 30
        return found.needed_by

    assert needed_by(on_gpu) == ("instance mine",)
    assert needed_by(place.plan) == ()
