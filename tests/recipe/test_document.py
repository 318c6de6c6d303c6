"""YAML, tamed: each trap is refused at its place, or read by the core schema."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tokenspeed.errors import NoInputError, Problem, RecipeError, Where
from tokenspeed.recipe.document import (
    MAX_BYTES,
    Mapping,
    Scalar,
    decode,
    parse,
    parse_value,
    read_document,
    strange_letters,
)


def value_of(text: str) -> Any:
    root, problems = parse(f"key: {text}\n", "r.yaml")
    assert not problems
    value = root.entries[0].value
    assert isinstance(value, Scalar)
    return value.value


def fault(text: str) -> Problem:
    """The only fault of `text`, whether it ends the reading or not."""
    try:
        _, problems = parse(text, "r.yaml")
    except RecipeError as error:
        problems = list(error.problems)
    assert len(problems) == 1
    return problems[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("NO", "NO"),
        ("true", True),
        ("False", False),
        ("22:22", "22:22"),
        ("4e3", 4000.0),
        ("4_096", "4_096"),
        ("0o10", 8),
        ("0x1F", 31),
        ("-1", -1),
        ("1.5", 1.5),
        (".5", 0.5),
        ('"010"', "010"),
        ("2026-11-29", "2026-11-29"),
        ("1e3", 1000.0),
        ("'true'", "true"),
        ("9" * 50, "9" * 50),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    read = value_of(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "way_out"),
    [("010", "write 10, or 0o10"), ("-08", "write -8;"), ("0_7", "write 7, or 0o7")],
)
def test_a_leading_zero_is_refused(text: str, way_out: str) -> None:
    problem = fault(f"key: {text}\n")
    assert problem.code == "TS-R017"
    assert way_out in problem.hint
    assert problem.where == Where("r.yaml", 1, 6)


@pytest.mark.parametrize("text", [".inf", "-.Inf", ".nan"])
def test_numbers_are_finite(text: str) -> None:
    assert fault(f"key: {text}\n").code == "TS-R017"


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("a: 1\na: 2\n", "TS-R006", (2, 1)),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", "TS-R006", (4, 3)),
        ("a: 1\n---\nb: 2\n", "TS-R004", (2, 1)),
        ("[]\n", "TS-R005", (1, 1)),
        ("just words\n", "TS-R005", (1, 1)),
        ("", "TS-R005", (1, 1)),
        ("# nothing\n", "TS-R005", (1, 1)),
        ("a:\n\tb: 1\n", "TS-R003", (2, 1)),
        ("a: [1, 2\nb: 3\n", "TS-R003", (2, 2)),
        ('a: "open\n', "TS-R003", (2, 1)),
        ("a: !!python/object:os.system 1\n", "TS-R009", (1, 4)),
        ("a: !!str 5\n", "TS-R009", (1, 4)),
        ("? [a, b]\n: 1\n", "TS-R018", (1, 3)),
        ("a: \x07\n", "TS-R003", (1, 4)),
    ],
)
def test_traps_are_refused_at_their_place(text: str, code: str, place: tuple[int, int]) -> None:
    problem = fault(text)
    assert (problem.code, problem.where) == (code, Where("r.yaml", *place))
    assert problem.hint


def test_a_line_too_deep_names_the_one_above() -> None:
    """The fault may be in either line; YAML itself speaks of "mapping values"."""
    problem = fault("a:\n  b: 1\n    c: 2\n")
    assert (problem.code, problem.where) == ("TS-R003", Where("r.yaml", 3, 6))
    assert problem.message == "this line is indented deeper than line 2, which has a value already"


def test_a_tab_is_named() -> None:
    assert "tab" in fault("a:\n\tb: 1\n").message


def test_anchors_may_not_grow() -> None:
    """Nine lines that stand for a billion values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert fault("\n".join(lines)).code == "TS-R008"


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "a: " + "[" * 5000])
def test_nesting_ends(text: str) -> None:
    assert fault(text).code in ("TS-R008", "TS-R003")


def test_small_anchors_are_fine() -> None:
    root, problems = parse("x-common: &c 5\na: *c\n", "r.yaml")
    assert not problems
    assert root.entries[1].value == Scalar(5, Where("r.yaml", 1, 11))


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    root, problems = read_document(path)
    assert not problems
    assert root.entries[0].key == "a"
    assert root.entries[0].where == Where(str(path), 1, 1)


def test_other_encodings_are_refused_at_the_byte() -> None:
    with pytest.raises(RecipeError) as caught:
        decode(b"a: 1\nb: \xff\n", "r.yaml")
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("TS-R002", Where("r.yaml", 2, 4))


@pytest.mark.parametrize("name", [b"a\xff.yaml", b"a\xff/a.yaml"])
def test_a_path_that_no_plan_could_say_is_refused(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("a: 1\n")
    with pytest.raises(RecipeError) as caught:
        read_document(path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.message) == ("TS-R002", "the path is not UTF-8")


def test_huge_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(RecipeError) as caught:
        read_document(path)
    assert caught.value.problems[0].code == "TS-R008"


def test_what_has_no_end_is_read_as_far_as_a_recipe_may_go() -> None:
    with pytest.raises(RecipeError) as caught:
        read_document(Path("/dev/zero"))
    assert caught.value.problems[0].code == "TS-R008"


def test_a_pipe_is_read_whole(tmp_path: Path) -> None:
    """Longer than a pipe holds at once, so it arrives in parts."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = f"a: {'x' * 200_000}\n"
    writer = threading.Thread(target=path.write_text, args=(text,))
    writer.start()
    root, problems = read_document(path)
    writer.join()
    assert not problems
    assert root.entries[0].value == Scalar("x" * 200_000, Where(str(path), 1, 4))


def test_a_missing_file_is_not_a_wrong_recipe(tmp_path: Path) -> None:
    with pytest.raises(NoInputError) as caught:
        read_document(tmp_path / "none.yaml")
    assert caught.value.exit_code == 66


def test_values_of_overrides_are_yaml_too() -> None:
    tree, problems = parse_value("{a: [1, true]}", "--set k={a: [1, true]}")
    assert not problems
    assert isinstance(tree, Mapping)
    assert tree.entries[0].where.line == 0


def test_strange_letters_are_named() -> None:
    assert strange_letters("m\u043edel") == "U+043E CYRILLIC SMALL LETTER O"
    assert strange_letters("model") == ""
