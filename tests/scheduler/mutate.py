"""Breaks the core on purpose, one fault at a time, and counts how many the tests notice.

    python -m tests.scheduler.mutate --report build/mutations.md
    python -m tests.scheduler.mutate --only faults
    python -m tests.scheduler.mutate --count 20 --seed 3 --jobs 2

Generated mutations change an operator, a constant or a truth value, or drop a statement; the
faults are the mistakes that `faults.py` describes. Only the file that changed is compiled again
(dependents too for a header). A mutation is caught when the GoogleTest program fails or hangs,
or else when the short Python set does. A generated one that does not compile is not counted: the
next takes its place. Assertions (TS_CHECK) and the audit are no subjects: they are the instruments.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.scheduler.faults import FAULTS

REPO = Path(__file__).parents[2]
CORE = REPO / "tokenspeed" / "scheduler" / "csrc"
FLAGS = ["-std=c++20", "-O1", "-fPIC", "-w"]
# What decides nothing: the audit, the messages of a wrong configuration, the binding.
NOT_SUBJECTS = {"audit.cc", "bindings.cc"}
_ORACLE = "test_oracle.py::test_decisions_equal_the_model"
_GROUPS = "test_groups.py::test_every_group_reads_its_own"
PYTHON_SET = [
    *("test_cases.py", "test_limits.py", "test_drafts.py", "test_prefixes.py"),
    *(f"{_ORACLE}[{seed}-True-True-{seed % 2}]" for seed in range(4)),
    *(f"{_ORACLE}[{seed}-True-False-{seed % 2}]" for seed in range(2)),
    *(f"{_GROUPS}[{seed}-{drafts}-{seed % 2}-all]" for seed in (0, 3, 4) for drafts in (0, 2)),
]
TIMEOUT_S = 300
UNFIT = "does not compile"

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
    """The built core, and what it takes to build it again with one file changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[str, Path] = {}
        self.tests: list[Path] = []

    def prepare(self) -> None:
        """Compiles everything once and sees the tests pass."""
        sources = [*CORE.glob("*.cc"), *(REPO / "tests/scheduler/csrc").glob("*_test.cc")]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            built = dict(zip(sources, pool.map(self._compile_here, sources), strict=True))
        for source, target in built.items():
            if source.parent == CORE:
                self.objects[source.name] = target
            else:
                self.tests.append(target)
        if verdict := self.try_objects(self.objects, self.tests, self.folder):
            raise SystemExit(f"the core as it is does not pass: {verdict}")

    def _compile_here(self, source: Path) -> Path:
        target = self.folder / f"{source.parent.parent.name}-{source.name}.o"
        done = compile_one(source, target, CORE)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return target

    def try_objects(self, objects: dict[str, Path], tests: list[Path], where: Path) -> str:
        """How the tests notice, "" if they do not."""
        program = where / "scheduler_test"
        core = [path for name, path in objects.items() if name != "bindings.cc"]
        done = run("g++", "-o", program, *tests, *core, "-lgtest", "-lgtest_main", "-lpthread")
        if done.returncode != 0:
            return "does not link"
        if (code := outcome(program, "--gtest_brief=1", "--gtest_fail_fast")) != 0:
            return f"GoogleTest ({code})"
        shadow = self._shadow(where)
        module = shadow / "tokenspeed/scheduler/_core.so"
        done = run("g++", "-shared", "-o", module, *objects.values())
        if done.returncode != 0:
            return "does not link"
        names = [shadow / "tests/scheduler" / name for name in PYTHON_SET]
        few = ["-x", "-q", "-p", "no:cacheprovider"]
        code = outcome(sys.executable, "-m", "pytest", *few, *names, cwd=shadow)
        return f"pytest ({code})" if code != 0 else ""

    def _shadow(self, where: Path) -> Path:
        """A tree that is the repository's, but for the module."""
        shadow = where / "tree"
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

    def judge(self, path_of: dict[str, str]) -> str:
        """How the tests notice these changed files (name: text), "" if they do not."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            where = Path(name)
            changed_core = where / "csrc"
            shutil.copytree(CORE, changed_core)
            for file, text in path_of.items():
                (changed_core / file).write_text(text)
            objects, tests = dict(self.objects), list(self.tests)
            header = any(file.endswith(".h") for file in path_of)
            again = list(objects) if header else list(path_of)
            for file in again:
                objects[file] = where / f"{file}.o"
                done = compile_one(changed_core / file, objects[file], changed_core)
                if done.returncode != 0:
                    return UNFIT
            return self.try_objects(objects, tests, where)


def link(place: Path, target: Path) -> None:
    if not place.exists():
        place.symlink_to(target)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def compile_one(source: Path, target: Path, core: Path) -> subprocess.CompletedProcess[str]:
    includes = [f"-I{core}"]
    if source.name == "bindings.cc":
        includes += run(sys.executable, "-m", "pybind11", "--includes").stdout.split()
    return run("g++", *FLAGS, *includes, "-c", source, "-o", target)


def outcome(*command: str | Path, cwd: Path | None = None) -> int | str:
    """The exit status; a fault may well hang or eat memory."""
    limited = ["prlimit", "--as=4000000000", *map(str, command)]
    try:
        done = subprocess.run(limited, capture_output=True, check=False, timeout=TIMEOUT_S, cwd=cwd)
    except subprocess.TimeoutExpired:
        return "hangs"
    return done.returncode


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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=["faults", "generated"])
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    work: list[tuple[str, dict[str, str]]] = []
    if asked.only != "generated":
        work += [(f"fault: {f.name}", {f.file: fault_text(*f[1:])}) for f in FAULTS]
    num_faults = len(work)
    if asked.only != "faults":
        mutants = all_mutants()
        random.Random(asked.seed).shuffle(mutants)
        # Some of them do not compile, and do not count.
        chosen = mutants[: asked.count + asked.count // 5]
        work += [(str(mutation), {mutation.file: text_with(mutation)}) for mutation in chosen]
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        bench.prepare()
        lines: list[str] = []
        faults = generated = caught = 0
        with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
            verdicts = pool.map(lambda item: bench.judge(item[1]), work)
            for number, ((title, _), verdict) in enumerate(zip(work, verdicts, strict=True)):
                if number >= num_faults:
                    if verdict == UNFIT or generated == asked.count:
                        continue
                    generated += 1
                    caught += verdict != ""
                else:
                    faults += verdict != ""
                lines.append(f"- {title}: {verdict or 'SURVIVED'}")
                print(f"{number + 1}/{len(work)} {lines[-1]}", flush=True)
    summary = f"{faults} of {num_faults} faults caught, {caught} of {generated} mutations caught"
    print(summary)
    if asked.report is not None:
        asked.report.parent.mkdir(parents=True, exist_ok=True)
        asked.report.write_text(f"# Mutations of the core\n\n{summary}\n\n" + "\n".join(lines))
    return int(faults < num_faults or caught < 0.85 * generated)


if __name__ == "__main__":
    sys.exit(main())
