"""The schemas in the repository are those that the types give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tokenspeed.cli import main
from tokenspeed.cli.schema import SCHEMAS, schema_text

WAY_OUT = "python -m tokenspeed schema {what} > schemas/{what}.schema.json"


@pytest.mark.parametrize("what", SCHEMAS)
def test_files_are_generated(repo: Path, what: str) -> None:
    path = repo / "schemas" / f"{what}.schema.json"
    assert path.read_text() == schema_text(what), WAY_OUT.format(what=what)


@pytest.mark.parametrize("what", SCHEMAS)
def test_schemas_are_valid(what: str) -> None:
    schema = json.loads(schema_text(what))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def test_no_file_without_a_type(repo: Path) -> None:
    assert {path.name for path in (repo / "schemas").iterdir()} == {
        f"{what}.schema.json" for what in SCHEMAS
    }


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "tokenspeed recipe"
    assert main(["schema", "plan"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "tokenspeed plan"
