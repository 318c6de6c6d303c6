"""Sizes that a reader can hold: the exception lists below may only shrink."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE_LINES = 600
FUNCTION_LINES = 80
PARAMETERS = 9
PUBLIC_METHODS = 16

SOURCES = ("tokenspeed", "kernels")


def _tracked(repo: Path, *patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=repo,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return [repo / name for name in listed if (repo / name).is_file()]


def _source_files(repo: Path) -> list[Path]:
    return [path for path in _tracked(repo, "*.py") if path.relative_to(repo).parts[0] in SOURCES]


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_stay_readable(repo: Path) -> None:
    files = _tracked(repo, "*.py", "*.cc", "*.h", "*.cu")
    assert len(files) > 20
    long = {
        str(path.relative_to(repo)): lines
        for path in files
        if (lines := len(path.read_text().splitlines())) > FILE_LINES
    }
    assert not long


def test_functions_stay_readable(repo: Path) -> None:
    long = [
        f"{path.relative_to(repo)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1}"
        for path in _source_files(repo)
        for node in _functions(path)
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]
    assert not long


def test_functions_take_few_things(repo: Path) -> None:
    """Kernels and what launches them take tensors and sizes one by one."""
    wide = [
        f"{path.relative_to(repo)}:{node.lineno} {node.name}: {count}"
        for path in _source_files(repo)
        if path.relative_to(repo).parts[0] == "tokenspeed" and not path.stem.endswith("_triton")
        for node in _functions(path)
        if (count := _parameters(node.args)) > PARAMETERS
    ]
    assert not wide


def _parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


def test_classes_do_one_thing(repo: Path) -> None:
    wide = []
    for path in _source_files(repo):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            public = [
                item.name
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
                and not item.name.startswith("_")
            ]
            if len(public) > PUBLIC_METHODS:
                wide.append(f"{path.relative_to(repo)}:{node.lineno} {node.name}: {len(public)}")
    assert not wide


def test_no_mixins(repo: Path) -> None:
    mixins = [
        f"{path.relative_to(repo)}:{node.lineno} {node.name}"
        for path in _source_files(repo)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and "mixin" in node.name.lower()
    ]
    assert not mixins


@pytest.mark.parametrize("folder", ["tests"])
def test_every_test_file_collects_something(repo: Path, folder: str) -> None:
    """A test file whose tests never run is worse than none."""
    empty = []
    for path in _tracked(repo, f"{folder}/**/test_*.py", f"{folder}/test_*.py"):
        tree = ast.parse(path.read_text())
        names = [
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        if not any(name.startswith(("test_", "Test")) for name in names):
            empty.append(str(path.relative_to(repo)))
    assert not empty
