"""`tokenspeed version`."""

from __future__ import annotations

import json

import pytest

from tests.cli.run import tokenspeed
from tokenspeed import __version__
from tokenspeed.cli import main


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert f"tokenspeed  {__version__}\n" in capsys.readouterr().out


def test_the_usual_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_json_names_torch_without_importing_it() -> None:
    outcome = tokenspeed("version", "--output", "json", blocked=("torch",))
    assert outcome.code == 0
    assert set(json.loads(outcome.out)) >= {"tokenspeed", "python", "torch"}
