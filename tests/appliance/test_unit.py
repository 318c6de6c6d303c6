"""The units: what systemd itself says of them, and what a plan adds."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tokenspeed.appliance.unit import (
    SYSUSERS,
    TMPFILES,
    UNITS,
    credential_names,
    instance_files,
    shared_files,
)
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.plan import Plan

RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2-135m-cpu.yaml"
EXPOSURE = 20  # tenths
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
WAY_OUT = "python -m tests.appliance.units"
SHIPPED = {SYSUSERS: "sysusers.conf", TMPFILES: "tmpfiles.conf"}


def plan_of(kind: str, **serve: object) -> Plan:
    plan = plan_recipe(RECIPE).resolution.plan
    device, served = replace(plan.device, kind=kind), replace(plan.serve, **serve)
    return replace(plan, name="demo", device=device, serve=served)


def write(root: Path, files: dict[str, str]) -> list[Path]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [root / name for name in files]


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(ANALYZE), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_shipped_units_are_those_that_install_writes(repo: Path) -> None:
    for name, text in shared_files().items():
        path = repo / "systemd" / SHIPPED.get(name, Path(name).name)
        assert path.read_text() == text, WAY_OUT


@needs_systemd
@pytest.mark.parametrize("kind", ["cpu", "cuda", "rocm"])
def test_systemd_has_nothing_to_say_about_them(tmp_path: Path, kind: str) -> None:
    program = str(shutil.which("true"))
    plan = plan_of(kind, host="127.0.0.1", api_keys=("credential:api-key",))
    write(tmp_path, shared_files(program) | instance_files(plan))
    units = tmp_path / UNITS
    for suffix in ("service", "socket"):  # an instance is a link to its template
        (units / f"tokenspeed@demo.{suffix}").symlink_to(f"tokenspeed@.{suffix}")
    names = ["tokenspeed@demo.service", "tokenspeed@demo.socket", "tokenspeed.target"]
    done = analyze("verify", "--man=no", *(str(units / name) for name in names))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_the_service_is_hardened(tmp_path: Path) -> None:
    service, *_ = write(tmp_path, shared_files())
    options = ["--offline=true", f"--threshold={EXPOSURE}", "--no-pager"]
    done = analyze("security", *options, str(service))
    assert done.returncode == 0, done.stdout
    # The gate itself: a naive unit does not pass it.
    naive = tmp_path / "naive.service"
    naive.write_text("[Service]\nExecStart=/bin/true\n")
    assert analyze("security", *options, str(naive)).returncode == 1


def test_a_plan_adds_its_address_its_drain_its_devices_and_its_secrets() -> None:
    plan = plan_of("cuda", host="::1", port=9000, drain_seconds=45.0, api_keys=("credential:k",))
    service, socket = instance_files(plan).values()
    assert "ListenStream=\nListenStream=[::1]:9000\n" in socket
    assert "TimeoutStopSec=75\n" in service
    assert "DeviceAllow=char-nvidia-uvm rw\n" in service
    assert "LoadCredential=k:/etc/tokenspeed/credentials/demo/k\n" in service
    assert credential_names(plan) == ("k",)
    assert "DeviceAllow" not in "".join(instance_files(plan_of("cpu")).values())
