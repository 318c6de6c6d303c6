"""What compute-sanitizer reports is told apart: looked into, or new."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.kernels.triton.sanitize import (
    KERNELS,
    KNOWN,
    NOT_OURS,
    TESTS,
    Run,
    judge,
    main,
    pairs,
)


def line_of(file, text):
    lines = next(KERNELS.rglob(file)).read_text().splitlines()
    return [line.strip() for line in lines].index(text) + 1


def report(file, kernel, first, *others):
    """As racecheck writes it. Accesses are a kind and a statement."""
    lines = [
        "========= COMPUTE-SANITIZER",
        f"========= Error: Race reported between {first[0]} access at {kernel}+0x1c0 in "
        f"{file}:{line_of(file, first[1])}",
    ]
    for kind, text in others:
        lines.append(
            f"=========     and {kind} access at {kernel}+0x29c0 in {file}:{line_of(file, text)}"
            " [7 hazards]"
        )
    lines += ["========= ", "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"]
    return "\n".join(lines)


def ended(text, status=0):
    return Run(["norm", "silu"], 2, status, text)


OWN = "Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception."

GROUPED = ("grouped_hopper.py", "_grouped")
ROLE = ("Read", "def _grouped(")


def test_every_known_statement_stands_in_its_kernels_file():
    files = {"_grouped": "grouped_hopper", "_attend_hopper": "attend_hopper",
             "_attend_latent_hopper": "attend_latent_hopper",
             "_attend_expanded": "attend_expanded_hopper",
             "_attend_decode": "attend_decode_hopper"}  # fmt: skip
    assert {pair.kernel for pair in KNOWN} == set(files)
    for pair in KNOWN:
        for _, text in pair.accesses:
            assert line_of(f"{files[pair.kernel]}.py", text)


def test_what_was_looked_into_passes():
    text = report(*GROUPED, ROLE, ("Write", "def _grouped("), ("Write", "if TAKERS == 2:"))
    assert sum(pairs(text.splitlines()).values()) == 2
    assert judge("racecheck", ended(text)) == []


@pytest.mark.parametrize(
    "other",
    [
        ("Read", "if TAKERS == 2:"),
        ("Write", "largest.index(parity * 2 + which).store(mine)"),
        ("Write", "largest = gl.allocate_shared_memory(gl.float32, [4, M], flat)"),
    ],
)
def test_another_access_or_statement_is_new(other):
    (wrong,) = judge("racecheck", ended(report(*GROUPED, ROLE, other)))
    assert wrong.startswith("new in _grouped: ") and other[1] in wrong


def test_the_same_statements_in_another_kernel_are_new():
    text = report("grouped_hopper.py", "_other", ROLE, ("Write", "def _grouped("))
    (wrong,) = judge("racecheck", ended(text))
    assert "_other" in wrong


def test_a_check_that_fails_a_cut_run_and_a_stray_access_are_told():
    clean = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
    assert judge("racecheck", ended(clean)) == []
    assert judge("racecheck", ended(clean, 1)) == ["failed at check `silu`: status 1"]
    assert judge("racecheck", ended("========= COMPUTE")) == ["racecheck gave no summary"]
    (wrong,) = judge("memcheck", ended("========= ERROR SUMMARY: 3 errors"))
    assert wrong == "memcheck found 3 errors"
    unread = "========= Error: hazard 7\n========= RACECHECK SUMMARY: 1 hazard displayed"
    (wrong,) = judge("racecheck", ended(unread))
    assert "not understood" in wrong


def test_an_access_without_a_line_is_new():
    text = report(*GROUPED, ROLE).replace(" in grouped_hopper.py:", " at ")
    other = "=========     and Write access at _grouped+0x10\n"
    text = text.replace("========= \n", other)
    (wrong,) = judge("racecheck", ended(text))
    assert wrong.startswith("new in")


@pytest.mark.parametrize("kernel", ["_grouped", "_quantise", "nvjet_sm90_qqtst_128x128_128x6_2x1"])
def test_ours_and_clustered_products_are_watched(kernel):
    assert not re.search(NOT_OURS.removeprefix("regex="), kernel)


def test_the_tools_own_error_is_told_though_the_checks_end_well():
    text = report(*GROUPED, ROLE, ("Write", "def _grouped("))
    (wrong,) = judge("racecheck", ended(text + f"\n========= {OWN}"))
    assert OWN in wrong


# As compute-sanitizer: runs a program, reports into a file what it saw and its own end, and ends as
# the program did, with a signal's number for a signal. What it sees is what checks leave in "seen".
TOOL = """#!{python}
import subprocess, sys
from pathlib import Path
log = sys.argv.index("--log-file") + 1
seen = Path(__file__).with_name("seen")
seen.write_text("")
status = subprocess.run(sys.argv[log + 1 :]).returncode
report = ["========= COMPUTE-SANITIZER", *seen.read_text().splitlines()]
report += ["========= {own}", "========= "] if status < 0 else []
count = len(report) - 1
report += ["========= Error: process didn't terminate successfully"] if status else []
report += [f"========= RACECHECK SUMMARY: {{count}} hazards displayed"]
Path(sys.argv[log]).write_text("\\n".join(report) + "\\n")
sys.exit(abs(status))
"""

CHECKS = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.kernels.triton.sanitize import each
checks = {checks!r}
{first}
for name in each(list(checks), sys.argv[1:]):
    with Path(__file__).with_name("seen").open("a") as seen:
        seen.write(checks[name][0])
    exec(checks[name][1])
"""


@pytest.fixture
def sanitized(tmp_path, monkeypatch, capfd):
    """Runs checks, each what the tool sees in it and what it does, and tells (status, output)."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(TOOL.format(python=sys.executable, own=OWN))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def run(checks, *words, first=""):
        path = tmp_path / "checks.py"
        path.write_text(CHECKS.format(root=str(TESTS.parents[2]), checks=checks, first=first))
        status = main("racecheck", list(words), path)
        return status, capfd.readouterr().out.splitlines()

    return run


def races(*others):
    return "\n".join(report(*GROUPED, ROLE, *others).splitlines()[1:-1]) + "\n"


LOOKED_INTO = races(("Write", "def _grouped("), ("Write", "if TAKERS == 2:"))
NEW = races(("Read", "if TAKERS == 2:"))
ABORT, FAIL = "os.abort()", "assert False"


def begun(output):
    return [line for line in output if " of " in line and line[0].isdigit()]


def test_checks_that_end_well_run_in_one_process(sanitized):
    status, output = sanitized({"a": ("", ""), "b": (LOOKED_INTO, ""), "c": ("", "")})
    assert status == 0
    assert begun(output) == ["1 of 3: a", "2 of 3: b", "3 of 3: c"]
    assert output[3].startswith("known, 2 pairs: ")
    assert output[4:] == ["racecheck: 3 of 3 checks ran, 0 failed"]


def test_the_checks_behind_one_that_dies_run(sanitized):
    checks = {
        "linear 40 fp8": (LOOKED_INTO, ABORT),
        "latent": ("", ""),
        "latent write": ("", ABORT),
        "wrong": ("", FAIL),
        "experts": (LOOKED_INTO + NEW, ""),
        "late": (NEW, ABORT),
    }
    status, output = sanitized(checks)
    assert status == 1
    assert begun(output) == [f"{n} of 6: {name}" for n, name in enumerate(checks, 1)]
    verdict = output[-7:]
    assert verdict[0].startswith("known, 2 pairs: ")
    assert verdict[1:4] == [
        f"failed at check `linear 40 fp8`: status 6, {OWN}",
        f"failed at check `latent write`: status 6, {OWN}",
        "failed at check `wrong`: status 1",
    ]
    assert verdict[4] == f"failed at check `late`: status 6, {OWN}"
    assert verdict[5].startswith("new in _grouped: ")
    assert verdict[6] == "racecheck: 6 of 6 checks ran, 4 failed"


def test_words_hold_behind_a_check_that_dies(sanitized):
    checks = {"a 1": ("", ABORT), "b 1": ("", FAIL), "a 2": ("", "")}
    status, output = sanitized(checks, "a ")
    assert status == 1
    assert begun(output) == ["1 of 2: a 1", "2 of 2: a 2"]
    assert output[-1] == "racecheck: 2 of 2 checks ran, 1 failed"


def test_a_run_without_checks_fails(sanitized):
    assert sanitized({"a": ("", "")}, "b") == (
        1, ["not all checks ran", "racecheck: 0 of 0 checks ran, 0 failed"]
    )  # fmt: skip


def test_a_process_that_begins_no_check_is_the_last(sanitized):
    checks = {"a": ("", ABORT), "b": ("", "")}
    status, output = sanitized(checks, first="if '--after' in sys.argv: sys.exit('no device')")
    assert status == 1
    assert output[-4:] == [
        f"failed at check `a`: status 6, {OWN}",
        "failed before a check began: status 1",
        "not all checks ran",
        "racecheck: 1 of 2 checks ran, 1 failed",
    ]
