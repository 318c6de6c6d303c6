"""Every recipe in a document loads: what is printed there is what people copy."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tokenspeed.cli import main
from tokenspeed.recipe.load import load_recipe

BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# ([\w-]+\.yaml)\b")


def recipes_in(text: str) -> list[str]:
    """Blocks that are recipes: they say their version, or extend one."""
    return [
        block
        for block in BLOCK.findall(text)
        if re.search(r"^(version: 1|extends: .*)$", block, re.MULTILINE)
        and re.search(r"^name:", block, re.MULTILINE)
    ]


def documents(repo: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=repo, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    return [repo / name for name in listed if (repo / name).is_file()]


def load_all(text: str, folder: Path) -> int:
    """Loads every recipe of `text`; one whose first line is `# name.yaml` can be extended."""
    count = 0
    for count, block in enumerate(recipes_in(text), start=1):
        named = NAME.match(block)
        path = folder / (named[1] if named else f"block-{count}.yaml")
        path.write_text(block)
        load_recipe(path)
    return count


def test_recipes_in_documents_load(repo: Path, tmp_path: Path) -> None:
    for document in documents(repo):
        load_all(document.read_text(encoding="utf-8"), tmp_path)


def test_this_test_would_find_a_wrong_one(tmp_path: Path) -> None:
    good = "```yaml\n# base.yaml\nversion: 1\nname: a\nmodel: {source: hf:a/b}\n```\n"
    assert load_all(f"{good}text\n```yaml\nextends: base.yaml\nname: b\n```\n", tmp_path) == 2
    assert load_all("```yaml\nservices: {}\n```\n", tmp_path) == 0
    with pytest.raises(Exception, match="unknown key"):
        load_all(good[:-4] + "kv: {sise: 1GiB}\n```\n", tmp_path)


def test_the_recipe_in_the_schema_verb_s_help_is_where_recipes_have_it(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    (line,) = re.findall(r"`(# yaml-language-server: \S+)`", out)
    for path in (repo / "recipes").glob("*.yaml"):
        assert path.read_text().startswith(f"{line}\n")
