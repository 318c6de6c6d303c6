"""Known machines by name, each figure with its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed.errors import NoInputError
from tokenspeed.hardware.profiles import known_gpu, load_hardware, names
from tokenspeed.hardware.types import ceiling

SHIPPED = {
    "amd-mi300x-x8",
    "amd-mi355x-x8",
    "cpu",
    "nvidia-a100-80g",
    "nvidia-b200x8",
    "nvidia-b300x8",
    "nvidia-gb200-nvl4",
    "nvidia-h100",
    "nvidia-h200",
    "nvidia-h200x2",
    "nvidia-h200x4",
    "nvidia-h200x8",
    "nvidia-l4",
    "nvidia-l40s",
    "nvidia-rtx-4090",
}
WITH_GPUS = sorted(SHIPPED - {"cpu"})


def test_profiles_are_named_as_they_are_called() -> None:
    assert set(names()) == SHIPPED
    for name in names():
        assert load_hardware(name).name == name


@pytest.mark.parametrize("name", WITH_GPUS)
def test_a_profile_has_what_a_prediction_needs(name: str) -> None:
    (gpu,) = load_hardware(name).gpus
    for what in ("read", "bfloat16", "link", "host", "node"):
        assert ceiling(gpu.ceilings, what) is not None
    for kind in ("fp8", "fp4"):
        assert (ceiling(gpu.ceilings, kind) is not None) == (kind in gpu.capabilities)
    assert gpu.multiprocessors > 0
    assert gpu.link


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_figure_has_a_source_and_is_named_once(name: str) -> None:
    hardware = load_hardware(name)
    for ceilings in (hardware.cpu.ceilings, *(gpu.ceilings for gpu in hardware.gpus)):
        assert all(len(entry.source) > 10 and entry.value > 0 for entry in ceilings)
        assert len({entry.what for entry in ceilings}) == len(ceilings)
        measured = [entry for entry in ceilings if entry.measured]
        assert all(entry.source.startswith("measured") for entry in measured)


@pytest.mark.parametrize("name", WITH_GPUS)
def test_narrower_types_are_no_slower(name: str) -> None:
    (gpu,) = load_hardware(name).gpus
    kinds = ("float32", "bfloat16", "fp8", "fp4")
    rates = [found.value for kind in kinds if (found := ceiling(gpu.ceilings, kind)) is not None]
    assert rates == sorted(rates)


def test_the_h200_as_measured() -> None:
    (gpu,) = load_hardware("nvidia-h200").gpus
    assert (gpu.arch, gpu.count, gpu.multiprocessors) == ("sm_90", 1, 132)
    assert gpu.memory_bytes == 143_771 * 2**20
    read = ceiling(gpu.ceilings, "read")
    assert read is not None
    assert (read.value, read.measured) == (4_665e9, True)


@pytest.mark.parametrize(("name", "count"), [("x2", 2), ("x4", 4), ("x8", 8)])
def test_several_of_one_kind_differ_in_their_number_only(name: str, count: int) -> None:
    (one,) = load_hardware("nvidia-h200").gpus
    (many,) = load_hardware(f"nvidia-h200{name}").gpus
    assert many.count == count
    assert (many.name, many.ceilings, many.memory_bytes) == (
        one.name,
        one.ceilings,
        one.memory_bytes,
    )


def test_a_gpu_by_its_name() -> None:
    found = known_gpu("NVIDIA H100 80GB HBM3", "sm_90")
    assert found is not None
    assert found.multiprocessors == 132
    assert known_gpu("NVIDIA H800", "sm_90") is None
    assert known_gpu("", "gfx950") is not None
    assert known_gpu("", "sm_89") is None  # three products have it


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


def test_a_file_without_an_end() -> None:
    with pytest.raises(NoInputError, match="more than 16 MiB"):
        load_hardware("/dev/zero")
