"""Builds and runs the player of call bytes, `fuzz/fuzz.cc`: the fuzzer and the replays.

    python -m tests.scheduler.player cells                  # of the rule table: the missed ones
    python -m tests.scheduler.player fuzz --seconds 1200    # new inputs are kept in build/fuzz
    python -m tests.scheduler.player merge                  # the least of them that cover as much
    python -m tests.scheduler.player record                 # the Steps of what is committed

`fuzz/corpus` is what is committed: few and short inputs, beside them the digests of their Steps.
They are replayed by `test_replay.py`, which also lets the fuzzer go on from them for a while.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
CORE = REPO / "tokenspeed" / "scheduler" / "csrc"
SOURCE = REPO / "tests" / "scheduler" / "fuzz" / "fuzz.cc"
CORPUS = SOURCE.parent / "corpus"
RECORDED = SOURCE.parent / "recorded.txt"
BUILD = REPO / "build" / "fuzz"
# Comparisons say little about bytes that are taken modulo something, and cost a fifth.
FUZZER = (
    *("-O1", "-g1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
    *("-fno-sanitize-coverage=trace-cmp", "-D_GLIBCXX_ASSERTIONS"),
)
# Bytes, of an input: a call takes two or three.
MAX_LEN = 400
# Its weighing of rare features takes longer than the calls themselves.
OPTIONS = ("-entropic=0", f"-max_len={MAX_LEN}", "-timeout=30")
# Stacks of allocations are kept short and freed memory not for long: a third faster.
SANITIZERS = {"ASAN_OPTIONS": "malloc_context_size=4:quarantine_size_mb=8"}


def build(directory: Path, compiler: str, *flags: str) -> Path:
    """The whole core and the player, as one translation unit: a fuzzer where the flags say so."""
    directory.mkdir(parents=True, exist_ok=True)
    sources = [path for path in sorted(CORE.glob("*.cc")) if path.name != "bindings.cc"]
    unit = directory / "unit.cc"
    unit.write_text("".join(f'#include "{source}"\n' for source in [*sources, SOURCE]))
    program = directory / f"player-{compiler}{''.join(flags[:1])}"
    kind = [] if any("fuzzer" in flag for flag in flags) else ["-DREPLAY"]
    words = [compiler, "-std=c++20", f"-I{CORE}", *kind, *flags, str(unit), "-o", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return program


def has_fuzzer() -> bool:
    """Whether clang is here with its sanitizers, which may be a package of their own."""
    if shutil.which("clang++") is None:
        return False
    resources = Path(run("clang++", "-print-resource-dir").strip())
    return any(resources.glob("lib/*/libclang_rt.fuzzer*"))


def run(*words: str | Path) -> str:
    """What a program prints. RuntimeError, with all of it, when it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=os.environ | SANITIZERS,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stdout)
    return done.stdout


def corpus() -> list[Path]:
    return sorted(CORPUS.iterdir())


def cells(output: str) -> tuple[int, int]:
    """How many *go* cells a replay took, of how many."""
    found = re.search(r"go cells taken: (\d+) of (\d+)", output)
    if found is None:
        raise ValueError(f"no replay prints {output!r}")
    return int(found[1]), int(found[2])


def fuzz(program: Path, seconds: int, runs: int) -> int:
    found = BUILD / "corpus"
    found.mkdir(exist_ok=True)
    words = [program, *OPTIONS, f"-max_total_time={seconds}", f"-runs={runs}"]
    words += ["-print_final_stats=1", f"-artifact_prefix={BUILD}/", found, CORPUS]
    return subprocess.run(words, check=False, env=os.environ | SANITIZERS).returncode


def merge(program: Path) -> None:
    """Replaces the committed corpus by the fewest inputs that reach as many branches."""
    chosen = BUILD / "merged"
    shutil.rmtree(chosen, ignore_errors=True)
    chosen.mkdir()
    few = ("-set_cover_merge=1", "-use_counters=0")
    print(run(program, *OPTIONS, *few, chosen, CORPUS, BUILD / "corpus").splitlines()[-1])
    for path in corpus():
        path.unlink()
    for path in chosen.iterdir():
        shutil.copy(path, CORPUS / path.name[:12])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("action", choices=["cells", "fuzz", "merge", "record"])
    parser.add_argument("--seconds", type=int, default=1200)
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--built", action="store_true", help="with the program built last time")
    asked = parser.parse_args()
    program = BUILD / "player-clang++-O1"
    if not asked.built:
        build(BUILD, "clang++", *FUZZER)
    if asked.action == "fuzz":
        return fuzz(program, asked.seconds, asked.runs)
    if asked.action == "merge":
        merge(program)
    output = run(program, "replay", *corpus())
    if asked.action != "cells":
        RECORDED.write_text(output)
    print("\n".join(line for line in output.splitlines() if " " in line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
