"""Faults of GPUs, through the real binding and a stand-in for the driver's library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stand_in.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
# Prints each fault; ends when its input does.
WATCH = """
import sys
from tokenspeed.appliance.gpus import GpuWatch
watch = GpuWatch(3, lambda fault: print(fault, fault.kind, fault.fatal, sep="|", flush=True))
watch.start()
print("begun", flush=True)
sys.stdin.read()
watch.stop()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    made = folder / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", made, SOURCE], check=True)
    return folder


def test_xids_memory_errors_and_lost_cards_are_told_once(library: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("errors 0 5\n")  # from before the start; the other card counts none
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "NVML_STATE": str(state)}
    with subprocess.Popen(
        [sys.executable, "-c", WATCH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as watch:
        assert watch.stdout is not None and watch.stdin is not None

        def after(line: str) -> str:
            """What is said once the state has this line too."""
            with state.open("a") as file:
                file.write(line + "\n")
            return watch.stdout.readline().strip() if watch.stdout else ""

        assert watch.stdout.readline() == "begun\n"
        assert after("xid 1 31").startswith("GPU 1: Xid 31, a kernel read or wrote")
        assert after("errors 0 7") == "GPU 0: 2 uncorrectable memory errors|ecc|True"
        assert after("xid 0 79") == "GPU 0: Xid 79, the card fell off the bus|xid|True"
        assert after("lost 0").endswith("|lost|True")
        assert after("xid 1 12345") == "GPU 1: Xid 12345, a fault|xid|False"
        watch.stdin.close()
        assert watch.stdout.read() == ""
        assert watch.wait(20) == 0


def test_without_a_driver_nothing_is_watched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCH],
        input="",
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"LD_LIBRARY_PATH": "/nowhere"},
    )
    assert done.stdout == "begun\n"
