"""The same calls give the same Steps, whoever compiled the core and however, and no call breaks it.

The calls are bytes (fuzz/fuzz.cc): the committed corpus, whose Steps are recorded, and random ones.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.scheduler import player

CLANG = "clang with libFuzzer is missing: apt-get install clang libclang-rt-dev"
BUILDS = [("g++", "-O0"), ("g++", "-O2"), ("clang++", *player.FUZZER)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Path]:
    """The players that can be built here. That of clang runs under the sanitizers."""
    directory = tmp_path_factory.mktemp("players")
    return {
        (compiler, *flags): player.build(directory, compiler, *flags)
        for compiler, *flags in BUILDS
        if (player.has_fuzzer() if compiler == "clang++" else shutil.which(compiler))
    }


def replay(key: tuple[str, ...], program: Path, paths: list[Path]) -> str:
    fuzzes = key[0] == "clang++"
    return player.run(program, *(["replay"] if fuzzes else []), *paths)


def test_digests_agree_across_compilers_and_levels(
    programs: dict[tuple[str, ...], Path], tmp_path: Path
) -> None:
    traces = []
    for seed in range(300):
        traces.append(tmp_path / f"{seed}.trace")
        traces[-1].write_bytes(random.Random(seed).randbytes(1000))
    outputs = {replay(key, program, traces) for key, program in programs.items()}
    assert len(programs) > 1, "one compiler only: apt-get install g++ clang"
    assert len(outputs) == 1, "compilers disagree"
    assert len(set(outputs.pop().splitlines())) > len(traces) // 2, "the traces differ"


def test_recorded_calls_give_the_recorded_steps(programs: dict[tuple[str, ...], Path]) -> None:
    """After a change of what is decided: python -m tests.scheduler.player record."""
    for key, program in programs.items():
        output = replay(key, program, player.corpus())
        assert output == player.RECORDED.read_text(), key


def test_the_corpus_takes_nearly_every_cell_that_goes() -> None:
    taken, go = player.cells(player.RECORDED.read_text())
    assert taken >= 0.9 * go
    assert all(path.stat().st_size <= player.MAX_LEN for path in player.corpus())


def test_the_fuzzer_finds_nothing_for_a_while(
    programs: dict[tuple[str, ...], Path], tmp_path: Path
) -> None:
    program = programs.get(("clang++", *player.FUZZER))
    if program is None:
        pytest.skip(CLANG)
    found = tmp_path / "found"
    found.mkdir()
    # A child's greatest memory begins at that of the process which started it, so libFuzzer's own
    # limit would count what other tests took in here; that of a single allocation stays.
    limits = ("-rss_limit_mb=0", "-malloc_limit_mb=1024")
    options = (*player.OPTIONS, *limits, "-runs=3000", "-seed=1", f"-artifact_prefix={tmp_path}/")
    player.run(program, *options, found, player.CORPUS)
