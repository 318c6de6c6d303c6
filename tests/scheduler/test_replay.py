"""The same calls give the same Steps, whoever compiled the core and however.

The calls are bytes, as the fuzzer makes them (tests/scheduler/fuzz/fuzz.cc).
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

# Of rules.h: the cells that say go.
GO_CELLS = 43


def build(repo: Path, directory: Path, compiler: str, *flags: str) -> Path:
    """One translation unit of the whole core and the player."""
    core = repo / "tokenspeed" / "scheduler" / "csrc"
    sources = [*sorted(core.glob("*.cc")), repo / "tests" / "scheduler" / "fuzz" / "fuzz.cc"]
    unit = directory / "unit.cc"
    unit.write_text(
        "".join(f'#include "{source}"\n' for source in sources if source.name != "bindings.cc")
    )
    program = directory / f"replay-{compiler}{''.join(flags)}"
    done = subprocess.run(
        [compiler, "-std=c++20", "-DREPLAY", f"-I{core}", *flags, str(unit), "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("traces")
    paths = []
    for seed in range(1500):
        path = directory / f"{seed}.trace"
        path.write_bytes(random.Random(seed).randbytes(2000))
        paths.append(path)
    return paths


def test_digests_agree_across_compilers_and_levels(
    repo: Path, tmp_path: Path, traces: list[Path]
) -> None:
    builds = [("g++", "-O0"), ("g++", "-O2"), ("clang++", "-O2")]
    outputs = {
        (compiler, level): subprocess.run(
            [build(repo, tmp_path, compiler, level), *traces],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for compiler, level in builds
        if shutil.which(compiler)
    }
    if len(outputs) < 2:
        pytest.skip("one compiler only: apt-get install g++ clang")
    assert len(set(outputs.values())) == 1, "compilers disagree"
    text = next(iter(outputs.values()))
    assert len(set(text.splitlines())) > len(traces) // 2, "the traces differ"
    taken = re.search(r"go cells taken: (\d+)", text)
    assert taken is not None and int(taken[1]) >= 0.9 * GO_CELLS


def test_the_go_cells_are_counted_right(repo: Path) -> None:
    rules = (repo / "tokenspeed" / "scheduler" / "csrc" / "rules.h").read_text()
    assert len(re.findall(r"\.\w+ = kGo", rules)) == GO_CELLS
