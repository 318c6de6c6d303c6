"""What compute-sanitizer reports is told apart: looked into, or new."""

from __future__ import annotations

import pytest

from tests.kernels.triton.sanitize import KERNELS, KNOWN, judge, pairs


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
    assert judge("racecheck", text, 0) == []


@pytest.mark.parametrize(
    "other",
    [
        ("Read", "if TAKERS == 2:"),
        ("Write", "largest.index(parity * 2 + which).store(mine)"),
        ("Write", "largest = gl.allocate_shared_memory(gl.float32, [4, M], flat)"),
    ],
)
def test_another_access_or_statement_is_new(other):
    (wrong,) = judge("racecheck", report(*GROUPED, ROLE, other), 0)
    assert wrong.startswith("new in _grouped: ") and other[1] in wrong


def test_the_same_statements_in_another_kernel_are_new():
    text = report("grouped_hopper.py", "_other", ROLE, ("Write", "def _grouped("))
    (wrong,) = judge("racecheck", text, 0)
    assert "_other" in wrong


def test_a_check_that_fails_a_cut_run_and_a_stray_access_are_told():
    clean = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
    assert judge("racecheck", clean, 0) == []
    assert judge("racecheck", clean, 1) == ["the checks ended with status 1"]
    assert judge("racecheck", "========= COMPUTE-SANITIZER", 0) == ["racecheck gave no summary"]
    assert judge("memcheck", "========= ERROR SUMMARY: 3 errors", 0) == ["memcheck found 3 errors"]
    unread = "========= Error: hazard 7\n========= RACECHECK SUMMARY: 1 hazard displayed"
    (wrong,) = judge("racecheck", unread, 0)
    assert "not understood" in wrong


def test_an_access_without_a_line_is_new():
    text = report(*GROUPED, ROLE).replace(" in grouped_hopper.py:", " at ")
    other = "=========     and Write access at _grouped+0x10\n"
    text = text.replace("========= \n", other)
    (wrong,) = judge("racecheck", text, 0)
    assert wrong.startswith("new in")
