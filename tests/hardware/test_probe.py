"""The probe describes what it sees and never raises for what is missing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hardware.nvml import GIB, Card, FakeNvml
from tokenspeed.hardware.probe import capabilities, probe
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Hardware, ceiling

CPUINFO = """\
processor\t: 0
model name\t: Test CPU @ 2.00GHz
flags\t\t: fpu avx2 fma sse2

processor\t: 1
model name\t: Test CPU @ 2.00GHz
flags\t\t: fpu avx2 fma sse2
"""
NOTHING = FakeNvml(init="Driver Not Loaded")


def root(tmp_path: Path, cgroup: str | None = None) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO)
    (tmp_path / "proc/meminfo").write_text("MemTotal:        8000000 kB\nMemFree: 1 kB\n")
    if cgroup is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(cgroup)
    return tmp_path


def test_a_host(tmp_path: Path) -> None:
    hardware = probe(root(tmp_path), NOTHING)
    assert hardware.cpu.model == "Test CPU @ 2.00GHz"
    assert hardware.cpu.features == ("avx2", "fma", "fpu", "sse2")
    assert hardware.cpu.cores == len(os.sched_getaffinity(0))
    assert hardware.memory_bytes == 8_000_000 * 1024


def test_a_container_has_what_it_may_use(tmp_path: Path) -> None:
    assert probe(root(tmp_path, "1073741824\n"), NOTHING).memory_bytes == 2**30


def test_a_container_without_a_limit(tmp_path: Path) -> None:
    assert probe(root(tmp_path, "max\n"), NOTHING).memory_bytes == 8_000_000 * 1024


def test_nothing_to_see(tmp_path: Path) -> None:
    hardware = probe(tmp_path, NOTHING)
    assert hardware.cpu.features == ()
    assert hardware.memory_bytes == 0


def test_this_machine() -> None:
    hardware = probe()
    assert hardware.memory_bytes > 0
    assert hardware.cpu.cores > 0
    assert hardware.gpus or hardware.notes  # without a GPU it says why
    assert Hardware.from_json(hardware.to_json()) == hardware


def test_equal_gpus_are_one_entry_with_the_figures_of_their_profile(tmp_path: Path) -> None:
    nvml = FakeNvml(Card(), Card())
    hardware = probe(root(tmp_path), nvml)
    (gpu,) = hardware.gpus
    (known,) = load_hardware("nvidia-h200x2").gpus
    assert gpu == known
    assert hardware.driver == "580.95.05"
    assert hardware.notes == ()
    assert nvml.open == 0


def test_a_gpu_that_no_profile_has(tmp_path: Path) -> None:
    card = Card("NVIDIA RTX A2000", (8, 6), 6 * GIB, nvlink=None)
    (gpu,) = probe(root(tmp_path), FakeNvml(card)).gpus
    assert (gpu.arch, gpu.link, gpu.capabilities) == ("sm_86", "PCIe 4.0 x16", ())
    assert ceiling(gpu.ceilings, "read") is None


def test_mixed_gpus_are_named(tmp_path: Path) -> None:
    older = Card("NVIDIA L4", (8, 9), 23_034 * 2**20, nvlink=None)
    hardware = probe(root(tmp_path), FakeNvml(Card(), older, Card()))
    assert [(gpu.name, gpu.count) for gpu in hardware.gpus] == [
        ("NVIDIA H200", 2),
        ("NVIDIA L4", 1),
    ]
    (note,) = hardware.notes
    assert "GPUs of 2 kinds: NVIDIA H200, NVIDIA L4" in note
    assert "plans use those of NVIDIA H200" in note


def test_a_gpu_in_parts_computes_in_its_parts(tmp_path: Path) -> None:
    hardware = probe(root(tmp_path), FakeNvml(Card(parts=(18 * GIB, 18 * GIB))))
    (gpu,) = hardware.gpus
    assert (gpu.count, gpu.memory_bytes, gpu.multiprocessors) == (2, 18 * GIB, 16)
    assert (gpu.link, gpu.ceilings) == ("", ())
    assert "cut into parts (MIG): 2 instances" in hardware.notes[0]


def test_a_gpu_in_no_parts_is_no_device(tmp_path: Path) -> None:
    hardware = probe(root(tmp_path), FakeNvml(Card(parts=())))
    assert hardware.gpus == ()
    assert "0 instances" in hardware.notes[0]


@pytest.mark.parametrize("call", ["handle", "capability", "name"])
def test_a_lost_gpu_is_noted_and_the_others_stay(tmp_path: Path, call: str) -> None:
    lost = replace(Card(), broken=frozenset({call}))
    hardware = probe(root(tmp_path), FakeNvml(Card(), lost))
    assert [gpu.count for gpu in hardware.gpus] == [1]
    assert hardware.notes == ("GPU 1 does not answer: GPU is lost",)


@pytest.mark.parametrize(
    "text", ["Driver/library version mismatch", "NVML Shared Library Not Found"]
)
def test_a_broken_driver_is_said(tmp_path: Path, text: str) -> None:
    hardware = probe(root(tmp_path), FakeNvml(init=text))
    assert (hardware.gpus, hardware.driver) == ((), "")
    assert hardware.notes == (f"no NVIDIA driver answers: {text}",)


def test_a_driver_that_cannot_count(tmp_path: Path) -> None:
    nvml = FakeNvml(count="Unknown Error")
    assert probe(root(tmp_path), nvml).notes == ("the GPUs cannot be listed: Unknown Error",)
    assert nvml.open == 0


def test_a_link_that_nobody_names(tmp_path: Path) -> None:
    card = Card("NVIDIA T4", (7, 5), 15 * GIB, nvlink=None, broken=frozenset({"pcie"}))
    (gpu,) = probe(root(tmp_path), FakeNvml(card)).gpus
    assert gpu.link == ""


def test_a_gpu_in_use_is_noted(tmp_path: Path) -> None:
    hardware = probe(root(tmp_path), FakeNvml(Card(used=30 * GIB)))
    assert hardware.notes == ("GPU 0: 30.0 GiB are in use by other programs",)


def amd_node(path: Path, version: int, simd: int, memory: int) -> None:
    (path / "mem_banks/0").mkdir(parents=True)
    text = f"cpu_cores_count 0\nsimd_count {simd}\nsimd_per_cu 4\ngfx_target_version {version}\n"
    (path / "properties").write_text(text)
    (path / "mem_banks/0/properties").write_text(f"heap_type 1\nsize_in_bytes {memory}\n")


def test_amd_gpus(tmp_path: Path) -> None:
    nodes = root(tmp_path) / "sys/class/kfd/kfd/topology/nodes"
    amd_node(nodes / "0", 0, 0, 64 * GIB)  # the host's own CPU
    amd_node(nodes / "1", 90402, 1216, 192 * GIB)
    amd_node(nodes / "2", 90402, 1216, 192 * GIB)
    hardware = probe(tmp_path, NOTHING)
    (gpu,) = hardware.gpus
    assert (gpu.name, gpu.arch, gpu.count) == ("AMD Instinct MI300X", "gfx942", 2)
    assert (gpu.multiprocessors, gpu.memory_bytes) == (304, 192 * GIB)
    assert hardware.notes == ()


def test_an_amd_gpu_that_no_profile_has(tmp_path: Path) -> None:
    amd_node(root(tmp_path) / "sys/class/kfd/kfd/topology/nodes/1", 90010, 440, 64 * GIB)
    (gpu,) = probe(tmp_path, NOTHING).gpus
    assert (gpu.name, gpu.arch, gpu.ceilings) == ("AMD GPU (gfx90a)", "gfx90a", ())


@pytest.mark.parametrize(
    ("capability", "named"),
    [
        ((8, 0), ()),
        ((8, 9), ("fp8",)),
        ((9, 0), ("fp8", "tma", "wgmma")),
        ((10, 0), ("fp4", "fp8", "tcgen05", "tma")),
        ((12, 0), ("fp4", "fp8", "tma")),
    ],
)
def test_capabilities(capability: tuple[int, int], named: tuple[str, ...]) -> None:
    assert capabilities(*capability) == named
