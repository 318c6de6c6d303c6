"""The table of codes is whole: every code that is raised is explained, and no other."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.cli.run import tokenspeed
from tokenspeed.cli import main
from tokenspeed.cli.explain import codes, explanation

CODE = re.compile(r"TS-[A-Z][0-9]{3}")


def raised(repo: Path) -> set[str]:
    """Codes that stand in the sources as values; those in docstrings are only talked about."""
    found: set[str] = set()
    for folder in ("tokenspeed", "kernels/tokenspeed_kernels"):
        for path in (repo / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= {node.value} if CODE.fullmatch(node.value) else set()
    return found


def test_every_code_is_explained_and_no_other(repo: Path) -> None:
    known, used = set(codes()), raised(repo)
    assert len(used) > 60
    assert not used - known, "explain these in tokenspeed/cli/codes.toml"
    assert not known - used, "these are raised nowhere"


def test_no_code_is_made_of_parts(repo: Path) -> None:
    """A code that is put together could not be found by the test above, nor by a reader."""
    for path in (repo / "tokenspeed").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                assert not any(re.search(r"TS-[A-Z]?$", str(text)) for text in texts) or (
                    path.name == "explain.py"
                ), path


@pytest.mark.parametrize("code", codes())
def test_explanations_are_whole(code: str) -> None:
    entry = codes()[code]
    assert set(entry) == {"title", "text", "example"}
    assert CODE.fullmatch(code)
    assert 40 < len(entry["text"]) < 500
    assert entry["text"].endswith((".", ")"))
    assert "\n" not in entry["title"] + entry["text"]
    assert not entry["title"].endswith(".")
    assert entry["example"].strip()
    assert max(map(len, explanation(code, entry).splitlines())) <= 110


def test_titles_tell_codes_apart() -> None:
    titles = [entry["title"] for entry in codes().values()]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("written", ["TS-R010", "ts-r010", "R010", "r010"])
def test_the_verb(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", written]) == 0
    assert capsys.readouterr().out == (
        "TS-R010: an unknown key\n\n"
        "No key of that name exists at that place, so it would have no effect. The nearest key is\n"
        "named, or the section in which a key of that name exists. Keys of your own may stand\n"
        "anywhere and begin with x-.\n\n"
        "For example:\n\n"
        "    kv:\n      blok_size: 16        # block_size\n"
    )


def test_an_unknown_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "TS-R011x"]) == 64
    assert "did you mean TS-R011?" in capsys.readouterr().err


def test_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(codes())
    assert main(["explain", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == codes()


def test_nothing_heavy_is_needed() -> None:
    outcome = tokenspeed("explain", "TS-M001", blocked=("pydantic", "yaml", "rich", "torch"))
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    ("code", "name"), [("TS-W003", "hf:Qwen/Qwen3-8B"), ("TS-H001", "nvidia-h200x8")]
)
def test_names_that_a_message_has_no_room_for(
    code: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", code]) == 0
    assert f"\n    {name}\n" in capsys.readouterr().out
