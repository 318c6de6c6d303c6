"""Runs sanitized.py under compute-sanitizer and tells hazards that are new from those looked into.

    python tests/kernels/triton/sanitize.py racecheck [WORD...]

Fails on a check that fails, on any finding of memcheck, and on a pair of accesses that KNOWN does
not have. A pair is known by its kernel, what each access is and the statements they belong to.
Where a check, or the tool's own error in it, ends the process, another runs the checks behind it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
KERNELS = TESTS.parents[2] / "kernels" / "tokenspeed_kernels"

# What made each pair known was read in the machine code. racecheck follows mbarriers and barriers
# of warpgroups in part: its release notes of 2025.4 to 2026.3 name false positives with both that
# were mended, some only for code by the assembler of CUDA 13.1 (Triton 3.6 brings 12.8). 2025.3
# reports all of these, 2026.4 those that roles hand over by a barrier at which one thread arrives
# for its warpgroup.
ROLES = (
    "The byte that tells a warp its role: written, a barrier of all warps, read, two more, and only"
    " then written again to end them."
)
TURN = (
    "A turn of the ring of weights: read after `weighed`, written again after `used`, at which one"
    " thread arrives behind a barrier of the warpgroup that read."
)
CLEANED = (
    "A kv tile: cleaned before `weighed` is arrived at and read after it; read before `empty` is"
    " arrived at, and filled and cleaned again after that."
)
TICKET = (
    "A ticket: written before `ticket_full` is arrived at, read after it by both warpgroups, and"
    " written again once both have arrived at `ticket_empty` behind a barrier of their own."
)
MEETING = (
    "Largest values that two warpgroups swap: written before either arrives at `met`, read after"
    " it, and written again two meetings later, which neither reaches before the other has read."
)

Access = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two accesses to shared memory, "Read" or "Write" each, and their statements."""

    kernel: str
    accesses: frozenset[Access]


def _all(kernel: str, reads: list[str], writes: list[str], reason: str) -> dict[Pair, str]:
    pairs = [frozenset({("Read", read), ("Write", write)}) for read in reads for write in writes]
    return {Pair(kernel, accesses): reason for accesses in pairs}


def _roles(kernel: str, dealt_out: str) -> dict[Pair, str]:
    own = f"def {kernel}("
    return _all(kernel, [own], [own, dealt_out], ROLES)


KNOWN = {
    **_roles("_grouped", "if TAKERS == 2:"),
    **_roles("_attend_latent_hopper", "if SHARERS == 1:"),
    **_roles("_attend_expanded", "gl.warp_specialize("),
    **_roles("_attend_hopper", "gl.warp_specialize("),
    **_roles("_attend_decode", "gl.warp_specialize("),
    **_all(
        "_grouped",
        [
            "return gl.maximum(mine, largest.index(parity * 2 + 1 - which)"
            ".load(gl.SliceLayout(0, L)))"
        ],
        ["largest.index(parity * 2 + which).store(mine)"],
        MEETING,
    ),
    **_all(
        "_attend_latent_hopper",
        [
            "fade = fades.index(buffer).load(ROW)",
            "factor = fades.index(buffer).load(ROW)",
        ],
        [
            "fades.index(buffer).store(fade)",
            "fades.index(buffer).store(gl.where(whole, value_scale / sums, 1.0))",
        ],
        TURN,
    ),
    **_all(
        "_attend_latent_hopper",
        ["two = two.permute((1, 0)).load(A)"],
        ["box.store(gl.where((n < seq_len)[:, None], held, gl.zeros_like(held)))"],
        CLEANED,
    ),
    **_all(
        "_attend_hopper",
        ["ticket = gl.max(tickets.index(slot).load(layout), 0)"],
        ["tickets.index(slot).store(gl.full([1], ticket, gl.int32, layout))"],
        TICKET,
    ),
}

_ACCESS = re.compile(r"(Read|Write) access at (\w+)\+0x[0-9a-f]+ in ([\w.]+):(\d+)")


def statement(file: str, line: int) -> str:
    """A line of a kernel's source, as it stands there."""
    paths = list(KERNELS.rglob(file))
    assert len(paths) == 1, f"{file}: {paths}"
    return paths[0].read_text().splitlines()[line - 1].strip()


def pairs(report: Iterable[str]) -> Counter[Pair]:
    """The pairs that racecheck reports, and how often. One it cannot place has no statement."""
    found: Counter[Pair] = Counter()
    first: tuple[str, Access] | None = None
    for text in report:
        begins = "Race reported between" in text
        if not begins and not (first and " and " in text):
            first = None if not text.strip("= \n") else first
            continue
        at = _ACCESS.search(text)
        access = (at[1], statement(at[3], int(at[4]))) if at else (text.strip("= \n"), "")
        if begins:
            first = (at[2] if at else "", access)
        elif first:
            found[Pair(first[0], frozenset({first[1], access}))] += 1
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """One process: the checks that it began, of how many it knows (0: none began), its exit status
    and what the tool reports."""

    began: list[str]
    known: int
    status: int
    report: str


_BEGINS = re.compile(r"\d+ of (\d+): (.+)\n")


def each(names: list[str], arguments: list[str]) -> Iterator[str]:
    """The checks to run, told as each begins: those with a word in their name, behind another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--after", metavar="NAME")
    parser.add_argument("words", nargs="*", metavar="WORD")
    given = parser.parse_args(arguments)
    if given.words:
        names = [name for name in names if any(word in name for word in given.words)]
    first = names.index(given.after) + 1 if given.after else 0
    for number, name in enumerate(names[first:], first + 1):
        print(f"{number} of {len(names)}: {name}", flush=True)
        yield name


def judge(tool: str, run: Run) -> list[str]:
    """What is wrong; nothing where the run is as it should be."""
    wrong = []
    broken = re.search(r"Internal Sanitizer Error: .+", run.report)
    if run.status or broken:
        where = f"at check `{run.began[-1]}`" if run.began else "before a check began"
        own = f", {broken[0]}" if broken else ""
        wrong.append(f"failed {where}: status {run.status}{own}")
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", run.report)
    found = pairs(run.report.splitlines())
    if summary is None:
        wrong.append(f"{tool} gave no summary")
    elif tool != "racecheck" and int(summary[1]):
        wrong.append(f"{tool} found {summary[1]} errors")
    elif int(summary[1]) and not found and not wrong:
        wrong.append(f"{summary[1]} hazards are reported in a form that is not understood")
    for pair in found:
        if pair not in KNOWN:
            both = " and ".join(f"{kind} at `{text}`" for kind, text in sorted(pair.accesses))
            wrong.append(f"new in {pair.kernel}: {both}")
    return wrong


# torch's own kernels, which make inputs and references: their names are C++ or a library's. Those
# of cuBLAS for Hopper, nvjet, are watched: left out, the first launch of one under racecheck 2025.3
# ends the process with an illegal access, with no kernel of ours before it.
NOT_OURS = "regex=^(_Z|sm[0-9]|cutlass|ampere)"


def watch(tool: str, command: list[str]) -> Run:
    """Runs checks under the tool; what they print is shown as it comes."""
    began, known = [], 0
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as log:
        watched = [
            "compute-sanitizer", "--tool", tool, "--print-limit", "0",
            "--kernel-name-exclude", NOT_OURS, "--log-file", log.name, *command,
        ]  # fmt: skip
        with subprocess.Popen(watched, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                print(line, end="", flush=True)
                if begins := _BEGINS.fullmatch(line):
                    known = int(begins[1])
                    began.append(begins[2])
        return Run(began, known, process.returncode, log.read())


def watch_all(tool: str, command: list[str]) -> Iterator[Run]:
    """Processes until no check is left, or one ends before it began any."""
    run = watch(tool, command)
    yield run
    begun = len(run.began)
    while run.status and run.began and begun < run.known:
        run = watch(tool, [*command, "--after", run.began[-1]])
        yield run
        begun += len(run.began)


def main(tool: str, words: list[str], checks: Path = TESTS / "sanitized.py") -> int:
    runs, wrong = [], []
    for run in watch_all(tool, [sys.executable, str(checks), *words]):
        runs.append(run)
        if faults := judge(tool, run):
            wrong += faults
            print(run.report, flush=True)
    begun, known = sum(len(run.began) for run in runs), runs[0].known
    if begun < known or not begun:
        wrong.append("not all checks ran")
    found = {pair for run in runs for pair in pairs(run.report.splitlines())}
    for reason, count in Counter(KNOWN[pair] for pair in found if pair in KNOWN).items():
        print(f"known, {count} pairs: {reason}")
    for fault in dict.fromkeys(wrong):  # processes may run the same kernel
        print(fault)
    failed = sum(run.status != 0 and run.began != [] for run in runs)
    print(f"{tool}: {begun} of {known} checks ran, {failed} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
