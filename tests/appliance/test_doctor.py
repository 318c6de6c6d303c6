"""The doctor's judgement over facts made by hand, and its look at this machine."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ports import named_port
from tokenspeed.appliance.doctor import (
    FAILED,
    OK,
    WARNING,
    Finding,
    Host,
    Torch,
    described_torch,
    examine,
    installed_torch,
    is_free,
    look,
)
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Hardware

SOUND = Host(
    torch=Torch("2.11.0+cu130", cuda="13.0"),
    cpu_kernels=True,
    compiler="/usr/bin/cc",
    open_files=65_536,
    locked_bytes=-1,
    shared_bytes=64 * 2**30,
    data_root="/data",
    data_writable=True,
    data_bytes=500 * 2**30,
    port=8000,
    port_free=True,
)
CPU = load_hardware("cpu")
H200 = replace(load_hardware("nvidia-h200x2"), driver="580.95.05")
AMD = load_hardware("amd-mi300x-x8")


def finding(check: str, hardware: Hardware, **facts: object) -> Finding:
    host = replace(SOUND, **facts)  # type: ignore[arg-type]
    (found,) = (entry for entry in examine(hardware, host) if entry.check == check)
    return found


@pytest.mark.parametrize("hardware", [CPU, H200], ids=["cpu", "gpu"])
def test_a_sound_machine(hardware: Hardware) -> None:
    findings = examine(hardware, SOUND)
    assert {entry.status for entry in findings} == {OK}
    assert len({entry.check for entry in findings}) == len(findings)


@pytest.mark.parametrize(
    ("check", "hardware", "facts", "status", "word"),
    [
        ("torch", H200, {"torch": Torch()}, FAILED, "[worker]"),
        ("torch", H200, {"torch": Torch("2.11.0+cpu")}, FAILED, "CUDA"),
        ("torch", AMD, {"torch": Torch("2.11.0+cu130", cuda="13.0")}, FAILED, "ROCm"),
        ("torch", CPU, {"torch": Torch("2.11.0+cpu")}, OK, ""),
        ("driver", replace(H200, driver="570.1"), {}, FAILED, "580"),
        ("driver", replace(H200, driver="570.1"), {"torch": Torch("2", cuda="12.8")}, OK, ""),
        ("compiler", H200, {"compiler": ""}, FAILED, "gcc"),
        ("compiler", CPU, {"compiler": ""}, OK, ""),
        ("cpu kernels", CPU, {"cpu_kernels": False}, WARNING, "kernels"),
        ("open files", CPU, {"open_files": 1024}, WARNING, "ulimit -n"),
        ("open files", CPU, {"open_files": -1}, OK, ""),
        ("locked memory", H200, {"locked_bytes": 8 * 2**20}, WARNING, "LimitMEMLOCK"),
        ("locked memory", CPU, {"locked_bytes": 8 * 2**20}, OK, ""),
        ("shared memory", H200, {"shared_bytes": 64 * 2**20}, FAILED, "--shm-size"),
        ("shared memory", CPU, {"shared_bytes": 64 * 2**20}, OK, ""),
        ("disk", CPU, {"data_bytes": 2**30}, WARNING, "XDG_DATA_HOME"),
        ("disk", CPU, {"data_writable": False}, FAILED, "writable"),
        ("port", CPU, {"port_free": False}, WARNING, "serve.port"),
        ("memory", replace(CPU, memory_bytes=2**30), {}, WARNING, "memory limit"),
    ],
)
def test_each_check(
    check: str, hardware: Hardware, facts: dict[str, object], status: str, word: str
) -> None:
    found = finding(check, hardware, **facts)
    assert found.status == status
    assert word in found.fix
    assert bool(found.fix) == (status != OK)


def test_a_broken_driver() -> None:
    note = "no NVIDIA driver answers: Driver/library version mismatch"
    found = finding("driver", replace(CPU, notes=(note,)))
    assert (found.status, found.detail) == (FAILED, note)


def test_several_kinds_of_gpus() -> None:
    mixed = replace(H200, gpus=(*H200.gpus, *load_hardware("nvidia-l4").gpus))
    assert "CUDA_VISIBLE_DEVICES" in finding("gpus", mixed).fix


def test_notes_on_gpus_are_passed_on() -> None:
    noted = replace(H200, notes=("GPU 0: 30.0 GiB are in use by other programs",))
    found = finding("gpus", noted)
    assert (found.status, "in use" in found.detail) == (WARNING, True)


def test_torch_describes_itself(tmp_path: Path) -> None:
    file = tmp_path / "version.py"
    file.write_text(
        "from typing import Optional\n__version__ = '2.11.0+cu130'\ndebug = False\n"
        "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    assert described_torch(file) == Torch("2.11.0+cu130", cuda="13.0")
    assert described_torch(tmp_path / "nothing.py").version == "unknown"


def test_this_installation() -> None:
    import torch

    found = installed_torch()
    assert found.version == torch.__version__
    assert found.cuda == (torch.version.cuda or "")


def test_ports() -> None:
    port = named_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not is_free(port)
    assert is_free(port)


def test_a_look_at_this_machine(tmp_path: Path) -> None:
    host = look(tmp_path / "not" / "there", 8000)
    assert host.data_writable
    assert host.data_bytes > 0
    assert host.cpu_kernels
    assert len(examine(CPU, host)) == 11
