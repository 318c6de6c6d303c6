"""Known machines by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed.errors import NoInputError
from tokenspeed.hardware.profiles import load_hardware, names
from tokenspeed.hardware.types import ceiling


def test_profiles_are_named_as_they_are_called() -> None:
    assert {"cpu", "nvidia-h200"} <= set(names())
    for name in names():
        assert load_hardware(name).name == name


def test_the_h200_as_measured() -> None:
    (gpu,) = load_hardware("nvidia-h200").gpus
    assert (gpu.arch, gpu.count, gpu.multiprocessors) == ("sm_90", 1, 132)
    assert gpu.memory_bytes == 143_771 * 2**20
    read = ceiling(gpu.ceilings, "read")
    assert read is not None
    assert (read.value, read.measured) == (4_665e9, True)


def test_a_misspelt_profile_names_the_nearest() -> None:
    with pytest.raises(NoInputError) as caught:
        load_hardware("nvidia-h20")
    (problem,) = caught.value.problems
    assert "did you mean nvidia-h200?" in problem.hint
    assert "cpu" in problem.hint


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(load_hardware("cpu").to_json())
    assert load_hardware(str(path)) == load_hardware("cpu")


@pytest.mark.parametrize("content", [None, b"{", b"{}"])
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NoInputError) as caught:
        load_hardware(str(path))
    assert str(path) in str(caught.value)
