"""What a lock holds, and what its two digests cover."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.resolve.conftest import BUILD, SMALL
from tokenspeed.errors import ResolveError
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import ModelFile
from tokenspeed.recipe.load import LoadedRecipe
from tokenspeed.resolve.facts import model_facts
from tokenspeed.resolve.lock import (
    Lock,
    fingerprint,
    hash_files,
    lock_path,
    make_lock,
    read_lock,
)
from tokenspeed.resolve.resolve import resolve

Loader = Callable[..., LoadedRecipe]
VERSIONS = {"tokenspeed": "1", "torch": "2"}


def locked(loaded: LoadedRecipe, machine: Hardware, versions: dict[str, str] = VERSIONS) -> Lock:
    resolution = resolve(loaded.recipe, loaded.origins, model_facts(loaded), machine, BUILD)
    return make_lock(loaded, resolution, machine, versions, resolution.plan.model.files)


def test_it_comes_back_from_its_file(loaded: Loader, cpu: Hardware, tmp_path: Path) -> None:
    lock = locked(loaded(SMALL, "limits.max_running=8", "serve.sampling.temperature=0.1"), cpu)
    path = tmp_path / "small.lock"
    path.write_text(lock.to_yaml())
    assert read_lock(path) == lock


@pytest.mark.parametrize(
    ("overrides", "same"),
    [
        (("serve.port=9000",), True),
        (("limits.max_running=4",), True),
        (("kv.blocks=100",), True),
        (("model.served_names=[x]",), True),
        (("kernels.overrides={sample: sample_reference}",), True),
        (("kv.dtype=bfloat16",), False),
        (("kv.block_size=64",), False),
        (("quantization.weights=float32",), False),
        (("quantization.activations=bfloat16",), False),
        (("model.load=dummy",), False),
    ],
)
def test_identity_is_of_weights_and_cache_layout(
    loaded: Loader, cpu: Hardware, overrides: tuple[str, ...], same: bool
) -> None:
    before = locked(loaded(SMALL), cpu).digests
    after = locked(loaded(SMALL, *overrides), cpu).digests
    assert (before.identity == after.identity) is same
    assert before.full != after.full


def test_full_is_of_versions_and_machine_too(loaded: Loader, cpu: Hardware) -> None:
    recipe = loaded(SMALL)
    before = locked(recipe, cpu).digests
    newer = locked(recipe, cpu, VERSIONS | {"torch": "3"}).digests
    other = locked(recipe, replace(cpu, memory_bytes=cpu.memory_bytes * 2)).digests
    assert len({before.full, newer.full, other.full}) == 3
    assert len({before.identity, newer.identity, other.identity}) == 1


def test_the_machine_is_what_it_is_not_what_it_is_called(cpu: Hardware) -> None:
    assert fingerprint(replace(cpu, name="another", notes=("x",))) == fingerprint(cpu)
    assert "notes" not in fingerprint(cpu)
    assert fingerprint(replace(cpu, memory_bytes=1)) != fingerprint(cpu)


def test_files_are_hashed(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    told: list[str] = []
    files = (ModelFile(name="a.bin", bytes=3, sha256=None),)
    (hashed,) = hash_files(tmp_path, files, told.append, tmp_path / "known")
    assert hashed.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert told == ["a.bin"]
    assert hash_files(tmp_path / "a.bin", files, told.append, tmp_path / "known") == (hashed,)
    (tmp_path / "a.bin").unlink()
    with pytest.raises(ResolveError, match=r"a\.bin cannot be read: No such file"):
        hash_files(tmp_path, files, told.append, tmp_path / "known")


def test_where_it_lies_and_what_is_said_when_it_does_not(tmp_path: Path) -> None:
    path = lock_path(tmp_path / "demo.yaml")
    assert path == tmp_path / "demo.lock"
    with pytest.raises(ResolveError, match="TS-L001"):
        read_lock(path)
