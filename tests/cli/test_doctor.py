"""`tokenspeed doctor` on this machine, without torch being imported."""

from __future__ import annotations

import json

from tests.cli.run import tokenspeed
from tokenspeed.hardware.types import Hardware


def test_for_people() -> None:
    done = tokenspeed("doctor", blocked=("torch", "triton"))
    # torch is there but blocked: it is described as missing, and nothing can run without it.
    assert done.code == 69
    assert "failed" in done.out
    assert "fix: install the distribution with its extra" in done.out


def test_for_programs() -> None:
    done = tokenspeed("doctor", "--output", "json", "--port", "8123")
    body = json.loads(done.out)
    checks = {entry["check"]: entry for entry in body["findings"]}
    assert {"driver", "torch", "compiler", "open files", "disk", "port"} <= set(checks)
    assert checks["port"]["detail"].startswith("8123")
    assert done.code == (69 if any(e["status"] == "failed" for e in checks.values()) else 0)
    hardware = Hardware.from_json(json.dumps(body["hardware"]).encode())
    assert hardware.cpu.cores > 0
