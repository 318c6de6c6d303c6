"""Runs sanitized.py under compute-sanitizer and tells hazards that are new from those looked into.

    python tests/kernels/triton/sanitize.py racecheck [WORD...]

Fails on a check that fails, on any finding of memcheck, and on a pair of accesses that KNOWN does
not have. A pair is known by its kernel, what each access is and the statements they belong to.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
KERNELS = TESTS.parents[2] / "kernels" / "tokenspeed_kernels"

# racecheck follows mbarriers in part: "false positives involving mbarrier usage" and "when using
# warpgroup-level synchronizations on Hopper" are among what its release notes of 2025.4 to 2026.3
# say was mended, and all of it needs code by the assembler of CUDA 13.1; Triton 3.6 brings 12.9.
ROLES = (
    "The byte that tells a warp its role: written, a barrier of all warps, read, two more, and only"
    " then written again to end them (read so in the machine code)."
)
TURN = (
    "A turn of the ring of weights: read after `weighed`, written again after `used`, which one"
    " thread arrives at behind a barrier of its warpgroup's reads."
)
CLEANED = (
    "A kv tile: cleaned before `weighed` is arrived at and read after it; read before `empty` is"
    " arrived at, and filled and cleaned again after that."
)

Access = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two accesses to shared memory, "Read" or "Write" each, and their statements."""

    kernel: str
    accesses: frozenset[Access]


def _known() -> dict[Pair, str]:
    fade = "fade = fades.index(buffer).load(ROW)"
    factor = "factor = fades.index(buffer).load(ROW)"
    fades = (
        "fades.index(buffer).store(fade)",
        "fades.index(buffer).store(gl.where(whole, value_scale / sums, 1.0))",
    )
    known = {
        Pair(
            "_attend_latent_hopper",
            frozenset(
                {
                    ("Read", "two = two.permute((1, 0)).load(A)"),
                    (
                        "Write",
                        "box.store(gl.where((n < seq_len)[:, None], held, gl.zeros_like(held)))",
                    ),
                }
            ),
        ): CLEANED
    }
    for read in (fade, factor):
        for write in fades:
            accesses = frozenset({("Read", read), ("Write", write)})
            known[Pair("_attend_latent_hopper", accesses)] = TURN
    for kernel, given_out in (
        ("_grouped", "if TAKERS == 2:"),
        ("_attend_latent_hopper", "if SHARERS == 1:"),
        ("_attend_expanded", "gl.warp_specialize("),
        ("_attend_hopper", "gl.warp_specialize("),
    ):
        for write in (f"def {kernel}(", given_out):
            accesses = frozenset({("Read", f"def {kernel}("), ("Write", write)})
            known[Pair(kernel, accesses)] = ROLES
    return known


KNOWN = _known()

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


def judge(tool: str, report: str, status: int) -> list[str]:
    """What is wrong; nothing where the run is as it should be."""
    wrong = [f"the checks ended with status {status}"] if status else []
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", report)
    if summary is None:
        wrong.append(f"{tool} gave no summary")
    elif tool != "racecheck" and int(summary[1]):
        wrong.append(f"{tool} found {summary[1]} errors")
    found = pairs(report.splitlines())
    if summary and tool == "racecheck" and int(summary[1]) and not found:
        wrong.append(f"{summary[1]} hazards are reported in a form that is not understood")
    for pair in found:
        if pair not in KNOWN:
            both = " and ".join(f"{kind} at `{text}`" for kind, text in sorted(pair.accesses))
            wrong.append(f"new in {pair.kernel}: {both}")
    return wrong


def main(tool: str, words: list[str]) -> int:
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as log:
        command = [
            "compute-sanitizer", "--tool", tool, "--print-limit", "0", "--log-file", log.name,
            sys.executable, str(TESTS / "sanitized.py"), *words,
        ]  # fmt: skip
        status = subprocess.run(command).returncode
        report = log.read()
    wrong = judge(tool, report, status)
    if wrong:
        print(report, *wrong, sep="\n")
    known = Counter(KNOWN[pair] for pair in pairs(report.splitlines()) if pair in KNOWN)
    for reason, count in known.items():
        print(f"known, {count} pairs: {reason}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
