"""`tokenspeed kernels`: the tables, and the choice for a recipe, as a user sees them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tokenspeed_kernels import registry
from tokenspeed_kernels.bench import cpu, parts

from tests.cli.run import REPO
from tokenspeed.cli import main

SMOL = str(REPO / "recipes/smollm2-135m-cpu.yaml")
CPU = ("--hardware", "cpu")


def test_every_kernel_of_every_op_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "list", *CPU]) == 0
    out = capsys.readouterr().out
    for op in registry.ops():
        assert f"\n{op}\n" in out
        for spec in registry.specs(op):
            assert f" {spec.name} " in out


@pytest.mark.parametrize(("hardware", "runs"), [("cpu", False), ("nvidia-h200", True)])
def test_what_a_machine_cannot_run_says_why(
    capsys: pytest.CaptureFixture[str], hardware: str, runs: bool
) -> None:
    assert main(["kernels", "list", "rms_norm", "--hardware", hardware]) == 0
    (line,) = [row for row in capsys.readouterr().out.splitlines() if "rms_norm_triton" in row]
    assert line.startswith("- ") is not runs
    assert ("runs on cuda, the device is cpu" in line) is not runs


def test_one_op_shows_what_its_kernels_require(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "list", "paged_attention", *CPU, "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kernel"] for row in rows] == [s.name for s in registry.specs("paged_attention")]
    for row, spec in zip(rows, registry.specs("paged_attention"), strict=True):
        assert set(row["requires"]) == set(spec.requires)


def test_the_choice_for_a_recipe_is_that_of_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", SMOL, *CPU, "--output", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert main(["kernels", "explain", SMOL, *CPU, "--output", "json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert [(row["op"], row["variant"], row["kernel"]) for row in explained] == [
        (choice["op"], choice["variant"], choice["kernel"]) for choice in plan["kernels"]
    ]
    assert main(["kernels", "explain", SMOL, "sample", *CPU]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sample: sample_")
    assert "not sample_triton" in out


@pytest.mark.parametrize("verb", [("list", "sampl"), ("explain", SMOL, "sampl")])
def test_a_misspelt_op(capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]) -> None:
    assert main(["kernels", *verb, *CPU]) == 64
    assert "did you mean sample?" in capsys.readouterr().err


# ---- bench


def test_each_part_is_code_that_is_here_and_times_ops_that_exist() -> None:
    for part in parts.PARTS:
        spec = importlib.util.find_spec(f"tokenspeed_kernels.bench.{part.module}")
        assert spec is not None and spec.origin is not None
        source = Path(spec.origin).read_text()
        assert "\ndef run(" in source
        assert part.kind == "cpu" or "\ndef tune(" in source
        assert set(part.ops) <= set(registry.ops())


def test_each_part_of_a_cpu_times_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that ask for another fact leave none behind. One sample of a small model is enough."""
    small = {"SAMPLE_S": 1e-5, "REPEATS": 1, "ROTATED_BYTES": 1 << 16}
    small |= {"LAYERS": 1, "ROWS": (1,), "HEAD": (2048, 576)}
    for name, value in small.items():
        monkeypatch.setattr(cpu, name, value)
    for part in parts.wanted("cpu", None, None):
        ops = {result.op for result in cpu.run(part.name)}
        assert ops >= set(part.ops) and ops, part.name


def test_kernels_are_timed_and_stored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["--op", "sample", "--out", str(tmp_path), "--commit", "abc"]
    assert main(["kernels", "bench", *asked]) == 0
    assert "greedy B=1" in capfd.readouterr().out
    (path,) = tmp_path.iterdir()
    stored = json.loads(path.read_text())
    assert stored["commit"] == "abc"
    assert all(result["us"] > 0 for result in stored["results"])


@pytest.mark.parametrize(("asked", "code"), [("linaer", 64), ("experts", 69)])
def test_what_nothing_times_is_said(
    asked: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", "bench", "--op", asked]) == code
    assert asked in capfd.readouterr().err
