"""The probe describes what it sees and never raises for what is missing."""

from __future__ import annotations

import os
from pathlib import Path

from tokenspeed.hardware.probe import probe
from tokenspeed.hardware.types import Hardware

CPUINFO = """\
processor\t: 0
model name\t: Test CPU @ 2.00GHz
flags\t\t: fpu avx2 fma sse2

processor\t: 1
model name\t: Test CPU @ 2.00GHz
flags\t\t: fpu avx2 fma sse2
"""


def root(tmp_path: Path, cgroup: str | None = None) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO)
    (tmp_path / "proc/meminfo").write_text("MemTotal:        8000000 kB\nMemFree: 1 kB\n")
    if cgroup is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(cgroup)
    return tmp_path


def test_a_host(tmp_path: Path) -> None:
    hardware = probe(root(tmp_path))
    assert hardware.cpu.model == "Test CPU @ 2.00GHz"
    assert hardware.cpu.features == ("avx2", "fma", "fpu", "sse2")
    assert hardware.cpu.cores == len(os.sched_getaffinity(0))
    assert hardware.memory_bytes == 8_000_000 * 1024


def test_a_container_has_what_it_may_use(tmp_path: Path) -> None:
    assert probe(root(tmp_path, "1073741824\n")).memory_bytes == 2**30


def test_a_container_without_a_limit(tmp_path: Path) -> None:
    assert probe(root(tmp_path, "max\n")).memory_bytes == 8_000_000 * 1024


def test_nothing_to_see(tmp_path: Path) -> None:
    hardware = probe(tmp_path)
    assert hardware.cpu.features == ()
    assert hardware.memory_bytes == 0


def test_this_machine() -> None:
    hardware = probe()
    assert hardware.memory_bytes > 0
    assert hardware.cpu.cores > 0
    assert hardware.gpus or hardware.notes  # without a GPU it says why
    assert Hardware.from_json(hardware.to_json()) == hardware
