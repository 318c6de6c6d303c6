"""Breaks the core on purpose, one fault at a time, and counts how many the tests notice.

    python -m tests.scheduler.mutate                     # 22 faults, 200 mutations; goes on later
    python -m tests.scheduler.mutate --only faults
    python -m tests.scheduler.mutate --report tests/scheduler/MUTATIONS.md

Generated mutations change an operator, a constant or a truth value, or drop a statement; the
faults are the mistakes that `faults.py` describes. One that does not compile is not counted: the
next takes its place. Assertions (TS_CHECK) and the audit are no subjects: they are the instruments.

The core is a shared library here, so that a mutation costs one file compiled without optimisation
and one link; the test programs stay as they are. They are asked in the order of what they cost,
and the first that fails has caught it: the player of call bytes, by its audits or by other Steps
than those recorded; the GoogleTest program; the short Python set; the count of what calls cost.
Containers check every index. What was found out is kept in build/mutate until a source changes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.scheduler import player
from tests.scheduler.faults import FAULTS
from tests.scheduler.work import counted, grows

REPO = Path(__file__).parents[2]
CORE = REPO / "tokenspeed" / "scheduler" / "csrc"
BUILD = REPO / "build" / "mutate"
# Inline functions stay the library's own, or the test programs' copies would stand in for them.
FLAGS = ["-std=c++20", "-O0", "-fPIC", "-w", "-fvisibility-inlines-hidden"]
FLAGS += ["-D_GLIBCXX_ASSERTIONS"]
# The usual linker takes four times as long.
LINKER = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
# What decides nothing: the audit, the messages of a wrong configuration, the binding.
NOT_SUBJECTS = {"audit.cc", "bindings.cc"}
_ORACLE = "test_oracle.py::test_decisions_equal_the_model"
_GROUPS = "test_groups.py::test_every_group_reads_its_own"
PYTHON_SET = [
    *("test_prefixes.py", "test_cases.py", "test_transfers.py", "test_limits.py"),
    *("test_drafts.py", "test_forced.py"),
    "test_closed_loop.py::test_small_pools_do_evict_and_preempt",
    *(f"{_ORACLE}[{seed}-True-True-{seed % 2}]" for seed in range(4)),
    *(f"{_ORACLE}[{seed}-True-False-{seed % 2}]" for seed in range(2)),
    *(f"{_GROUPS}[{seed}-{drafts}-{seed % 2}-all]" for seed in (0, 3, 4) for drafts in (0, 2)),
]
TRACES = 150
# Of processor time: a fault may well hang. Each takes a tenth of it.
PLAYER_S, CORE_TEST_S, PYTHON_S = 6, 20, 200
UNFIT = "does not compile"
SURVIVED = "survived"

SWAPS = [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "),
    (r" == ", " != "), (r" != ", " == "), (r" \+ ", " - "), (r" - ", " + "),
    (r" && ", " || "), (r" \|\| ", " && "), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"\+\+(?=\w)", "--"), (r"--(?=\w)", "++"), (r"\+= ", "-= "), (r"-= ", "+= "),
    (r"std::max\b", "std::min"), (r"std::min\b", "std::max"), (r"(?<=[ (\[])0(?=[;,) \]])", "1"),
    (r"(?<=[ (\[])1(?=[;,) \]])", "2"), (r"if \((?!constexpr)", "if (!("),
]  # fmt: skip
STATEMENT = re.compile(r"^\s+(?!return|const |auto |using |static|case|default|TS_CHECK|Require)"
                       r"[\w:.*>\[\]()-]+(\(| = | \+= | -= |\+\+|--).*;$")  # fmt: skip
SKIPPED = re.compile(r"TS_CHECK|Require\(|^\s*//|^#|static_assert|reserve\(|Reserve\(|template")


@dataclass(frozen=True)
class Mutation:
    """One changed line of one file; `before` occurs there exactly once as a whole line."""

    file: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        change = f"`{self.before.strip()}` -> `{self.after.strip() or '(dropped)'}`"
        return f"{self.file}:{self.line}: {change}"


def mutants_of(path: Path) -> Iterator[Mutation]:
    inside_message = inside_audit = begun = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        inside_audit = line != "}" and (inside_audit or "::Audit() const {" in line)
        # The rest of an assertion or a refusal that spans lines.
        skipped = inside_message or inside_audit or SKIPPED.search(line) is not None
        whole, begun = not begun, bool(re.search(r"[^;{}:\s]\s*$", line.split("//")[0]))
        if re.search(r"TS_CHECK|Require\(", line):
            inside_message = True
        if line.rstrip().endswith((";", "{", "}")):
            inside_message = False
        if skipped:
            continue
        code = line.split("//")[0].rstrip()
        for pattern, text in SWAPS:
            for match in re.finditer(pattern, code):
                changed = code[: match.start()] + text + code[match.end() :]
                if text == "if (!(":
                    changed = _negated(code)
                    if not changed:
                        continue
                yield Mutation(path.name, number, line, changed)
        if whole and STATEMENT.match(code):
            yield Mutation(path.name, number, line, "")


def _negated(code: str) -> str:
    """The whole condition of a one-line `if` turned round; "" where it does not end there."""
    match = re.match(r"^(\s*(?:\} else )?if \()(.*)(\) (?:\{|continue;|break;))$", code)
    return f"{match[1]}!({match[2]}){match[3]}" if match and "; " not in match[2] else ""


def all_mutants() -> list[Mutation]:
    files = [path for path in sorted(CORE.glob("*.cc")) if path.name not in NOT_SUBJECTS]
    files += [CORE / name for name in ("fence.h", "transitions.h", "states.h", "wait_queue.h")]
    return [mutation for path in files for mutation in mutants_of(path)]


class Bench:
    """The core as a library, and the programs that are asked about it."""

    def __init__(self, recorded: bool) -> None:
        self.recorded = recorded
        self.objects = BUILD / "objects"
        self.mutant = BUILD / "mutant"
        self.traces: list[Path] = []
        self.digests = ""

    def prepare(self) -> None:
        """Builds everything, unless it is built, and sees the tests pass."""
        for folder in (self.objects, self.mutant, BUILD / "traces"):
            folder.mkdir(parents=True, exist_ok=True)
        for seed in range(TRACES):
            self.traces.append(BUILD / "traces" / str(seed))
            self.traces[-1].write_bytes(random.Random(seed).randbytes(player.MAX_LEN))
        self.traces += player.corpus()
        built = BUILD / "built"
        if not (built.is_file() and built.read_text() == sources_key()):
            built.unlink(missing_ok=True)
            self._build()
        must(self._link([self.objects / f"{path.name}.o" for path in core_sources()]))
        self.digests = self._ask(PLAYER_S, BUILD / "replay", *self.traces).stdout
        if not built.is_file() and {self.ask(), self.ask_python()} != {SURVIVED}:
            raise SystemExit("the core as it is does not pass")
        built.write_text(sources_key())

    def _build(self) -> None:
        header = BUILD / "scheduler_pch.h"
        header.write_text("".join(f'#include "{path.name}"\n' for path in sorted(CORE.glob("*.h"))))
        must(
            clang(
                CORE,
                "-fpch-instantiate-templates",
                "-x",
                "c++-header",
                header,
                "-o",
                f"{header}.pch",
            )
        )
        for source in core_sources():
            must(self._compile(source))
        must(self._link([self.objects / f"{path.name}.o" for path in core_sources()]))
        tests = sorted((REPO / "tests/scheduler/csrc").glob("*_test.cc"))
        library = (f"-L{self.mutant}", "-ltokenspeed_core")
        gtest = ("-lgtest", "-lgtest_main", "-lpthread")
        must(clang(CORE, *tests, *library, *gtest, "-o", BUILD / "core_test"))
        must(clang(CORE, "-DREPLAY", player.SOURCE, *library, "-o", BUILD / "replay"))
        shadow = shadow_tree(BUILD / "tree")
        includes = run(sys.executable, "-m", "pybind11", "--includes").stdout.split()
        module = shadow / "tokenspeed/scheduler/_core.so"
        must(clang(CORE, *includes, "-shared", CORE / "bindings.cc", *library, "-o", module))

    def _compile(self, source: Path) -> subprocess.CompletedProcess[str]:
        prepared = ("-include-pch", BUILD / "scheduler_pch.h.pch")
        return clang(CORE, *prepared, "-c", source, "-o", self.objects / f"{source.name}.o")

    def _link(self, objects: list[Path]) -> subprocess.CompletedProcess[str]:
        target = self.mutant / "libtokenspeed_core.so"
        target.unlink(missing_ok=True)
        return run("clang++", *LINKER, "-shared", "-Wl,-Bsymbolic", *objects, "-o", target)

    def judge(self, file: str, text: str, slow: bool) -> str:
        """Who notices that `file` reads so: SURVIVED if nobody does, UNFIT if it does not build.
        `slow`: the quick ones did not."""
        core = self.mutant / "csrc"
        shutil.rmtree(core, ignore_errors=True)
        shutil.copytree(CORE, core)
        (core / file).write_text(text)
        changed = self.mutant / "changed.o"
        kept = []
        if file.endswith(".h"):
            # Everybody includes it: all of the core at once.
            source = self.mutant / "unit.cc"
            source.write_text("".join(f'#include "{path.name}"\n' for path in core_sources()))
            done = clang(core, "-c", source, "-o", changed)
        else:
            kept = [self.objects / f"{p.name}.o" for p in core_sources() if p.name != file]
            prepared = ("-include-pch", BUILD / "scheduler_pch.h.pch")
            done = clang(core, *prepared, "-c", core / file, "-o", changed)
        if done.returncode != 0 or self._link([changed, *kept]).returncode != 0:
            return UNFIT
        if not slow:
            return self.ask()
        verdict = self.ask_python()
        return self.ask_cost(core) if verdict == SURVIVED else verdict

    def ask(self) -> str:
        """Who of the quick ones notices something: SURVIVED if nobody does."""
        played = self._ask(PLAYER_S, BUILD / "replay", *self.traces)
        if played.returncode != 0:
            return "player"
        if self.recorded and played.stdout != self.digests:
            return "other Steps"
        tested = self._ask(CORE_TEST_S, BUILD / "core_test", "--gtest_brief=1", "--gtest_fail_fast")
        if tested.returncode != 0:
            return "GoogleTest"
        return SURVIVED

    def ask_python(self) -> str:
        few = ("-x", "-q", "-p", "no:cacheprovider")
        names = [BUILD / "tree/tests/scheduler" / name for name in PYTHON_SET]
        done = self._ask(PYTHON_S, sys.executable, "-m", "pytest", *few, *names, cwd=BUILD / "tree")
        return "Python" if done.returncode != 0 else SURVIVED

    def ask_cost(self, core: Path) -> str:
        try:
            counts = counted(core, self.mutant)
        except (RuntimeError, subprocess.TimeoutExpired):
            return "cost"
        return "cost" if any(map(grows, counts.values())) else SURVIVED

    def _ask(
        self, seconds: int, *words: str | Path, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        limits = ("prlimit", "--as=4000000000", f"--cpu={seconds}", "--core=0")
        return run("env", f"LD_LIBRARY_PATH={self.mutant}", *limits, *words, cwd=cwd)


def core_sources() -> list[Path]:
    return [path for path in sorted(CORE.glob("*.cc")) if path.name != "bindings.cc"]


def shadow_tree(shadow: Path) -> Path:
    """A tree that is the repository's, but for the module."""
    package = shadow / "tokenspeed" / "scheduler"
    package.mkdir(parents=True, exist_ok=True)
    for path in (REPO / "tokenspeed").iterdir():
        if path.name not in ("scheduler", "__pycache__"):
            link(shadow / "tokenspeed" / path.name, path)
    for path in (REPO / "tokenspeed/scheduler").iterdir():
        if path.suffix in (".py", ".pyi"):
            link(package / path.name, path)
    for name in ("tests", "kernels", "pyproject.toml"):
        link(shadow / name, REPO / name)
    return shadow


def link(place: Path, target: Path) -> None:
    if not place.exists():
        place.symlink_to(target)


def run(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    text = [str(word) for word in words]
    return subprocess.run(text, capture_output=True, text=True, check=False, cwd=cwd)


def must(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise SystemExit(done.stderr)


def clang(core: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return run("clang++", *FLAGS, f"-I{core}", *words)


def text_with(mutation: Mutation) -> str:
    lines = (CORE / mutation.file).read_text().splitlines(keepends=True)
    assert lines[mutation.line - 1].rstrip("\n") == mutation.before
    lines[mutation.line - 1] = mutation.after + "\n"
    return "".join(lines)


def fault_text(file: str, before: str, after: str) -> str:
    text = (CORE / file).read_text()
    if text.count(before) != 1:
        raise SystemExit(f"{file} has {before!r} {text.count(before)} times: mend faults.py")
    return text.replace(before, after)


def sources_key() -> str:
    """Of what is compiled."""
    text = hashlib.sha256()
    for path in sorted([*CORE.glob("*.*"), *(REPO / "tests/scheduler").rglob("*.cc")]):
        if path.suffix in (".h", ".cc"):
            text.update(path.read_bytes())
    return text.hexdigest()


class Verdicts:
    """What was found out so far about these sources."""

    def __init__(self, recorded: bool) -> None:
        kind = "recorded" if recorded else "unrecorded"
        self._path = BUILD / f"verdicts-{sources_key()[:12]}-{kind}.json"
        self.of: dict[str, str] = {}
        if self._path.is_file():
            self.of = json.loads(self._path.read_text())

    def note(self, title: str, verdict: str) -> None:
        self.of[title] = verdict
        self._path.write_text(json.dumps(self.of, indent=1))


def judge_all(
    bench: Bench, known: Verdicts, work: list[tuple[str, str, str]], wanted: int
) -> dict[str, str]:
    """Verdicts of the first `wanted` of (title, file, text) that compile."""
    verdicts: dict[str, str] = {}
    for title, file, text in work:
        if len(verdicts) == wanted:
            break
        began = time.monotonic()
        if title not in known.of:
            known.note(title, bench.judge(file, text, slow=False))
        verdict = known.of[title]
        if verdict != UNFIT:
            verdicts[title] = verdict
        took = time.monotonic() - began
        print(f"[{len(verdicts)}/{wanted}] {took:.1f} s  {verdict}: {title}", flush=True)
    # What takes longest is asked last, and about what is left.
    for title, file, text in work:
        if verdicts.get(title) == SURVIVED and f"slow {title}" not in known.of:
            known.note(f"slow {title}", bench.judge(file, text, slow=True))
            print(f"{known.of[f'slow {title}']}: {title}", flush=True)
        if verdicts.get(title) == SURVIVED:
            verdicts[title] = known.of[f"slow {title}"]
    return verdicts


def summary_of(verdicts: dict[str, str]) -> str:
    caught = len(verdicts) - list(verdicts.values()).count(SURVIVED)
    by = ", ".join(f"{who} {n}" for who, n in Counter(verdicts.values()).most_common())
    return f"{caught} of {len(verdicts)} caught ({by})"


def report(faults: dict[str, str], generated: dict[str, str]) -> str:
    survivors = [title for title, verdict in generated.items() if verdict == SURVIVED]
    lines = ["# What the tests notice", ""]
    lines += [f"Faults made by hand: {summary_of(faults)}.", ""]
    lines += [f"Generated mutations: {summary_of(generated)}.", "", "Survivors:", ""]
    return "\n".join([*lines, *(f"- {title}" for title in survivors)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["faults", "generated"])
    parser.add_argument("--report", type=Path)
    parser.add_argument("--unrecorded", action="store_true", help="other Steps are no finding")
    asked = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    known = Verdicts(not asked.unrecorded)
    bench = Bench(not asked.unrecorded)
    bench.prepare()
    faults: dict[str, str] = {}
    generated: dict[str, str] = {}
    if asked.only != "generated":
        mistakes = [(f.name, f.file, fault_text(f.file, f.before, f.after)) for f in FAULTS]
        faults = judge_all(bench, known, mistakes, len(mistakes))
    if asked.only != "faults":
        mutants = all_mutants()
        random.Random(asked.seed).shuffle(mutants)
        changes = [(str(mutation), mutation.file, text_with(mutation)) for mutation in mutants]
        generated = judge_all(bench, known, changes, asked.count)
    print(report(faults, generated))
    if asked.report is not None:
        asked.report.write_text(report(faults, generated))
    caught = len(generated) - list(generated.values()).count(SURVIVED)
    return int(SURVIVED in faults.values() or caught < 0.85 * len(generated))


if __name__ == "__main__":
    sys.exit(main())
