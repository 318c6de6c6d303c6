"""The rule table is complete at compile time: what is left out of it does not compile."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Edit = Callable[[str], str]


def drop_cell(text: str) -> str:
    """Leaves out what happens when a waiting request is preempted."""
    begin = text.index("kRow<Waiting>")
    cell = re.compile(r"\.preempt = kReject, ")
    return text[:begin] + cell.sub("", text[begin:], count=1)


def drop_row(text: str) -> str:
    return re.sub(
        r"template <> inline constexpr Row kRow<Finishing> = \{.*?\};", "", text, flags=re.S
    )


def drop_column(text: str) -> str:
    """An event that `Row` has a cell for, forgotten in the list of events."""
    return text.replace("event::Preempt,", "")


def claim_a_transition(text: str) -> str:
    begin = text.index("kRow<Waiting>")
    return text[:begin] + text[begin:].replace(".sampled = kReject", ".sampled = kGo", 1)


def deny_a_transition(text: str) -> str:
    begin = text.index("kRow<Finishing>")
    return text[:begin] + text[begin:].replace(".sampled = kGo", ".sampled = kIgnore", 1)


def add_state(text: str) -> str:
    return text.replace(
        "using State = std::variant<",
        "struct Dreaming {};\n\nusing State = std::variant<Dreaming, ",
    )


def compiles(directory: Path) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler is not None, "a C++ compiler is missing: apt-get install g++"
    source = directory / "table.cc"
    source.write_text('#include "rules.h"\n')
    return subprocess.run(
        [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def sources(repo: Path, tmp_path: Path) -> Path:
    for header in (repo / "tokenspeed/scheduler/csrc").glob("*.h"):
        shutil.copy(header, tmp_path)
    return tmp_path


def test_the_table_as_it_is_compiles(sources: Path) -> None:
    done = compiles(sources)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("header", "edit", "message"),
    [
        (
            "rules.h",
            drop_cell,
            r"deleted (function|constructor)|Rule::Rule\(\)|missing initializer",
        ),
        ("rules.h", drop_row, r"a_state_needs_a_row_of_rules"),
        ("rules.h", drop_column, r"every column of the table is an event"),
        ("rules.h", claim_a_transition, r"says go exactly where there is a noexcept transition"),
        ("rules.h", deny_a_transition, r"says go exactly where there is a noexcept transition"),
        ("states.h", add_state, r"a_state_needs_a_row_of_rules"),
    ],
)
def test_what_is_left_out_does_not_compile(
    sources: Path, header: str, edit: Edit, message: str
) -> None:
    path = sources / header
    text = path.read_text()
    edited = edit(text)
    assert edited != text, "the edit found nothing to leave out"
    path.write_text(edited)
    done = compiles(sources)
    assert done.returncode != 0
    assert re.search(message, done.stderr), done.stderr
