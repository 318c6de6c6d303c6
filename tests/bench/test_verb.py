from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed.bench import options
from tokenspeed.cli import main


@pytest.mark.parametrize("what", [[], ["planning"], ["front"], ["serving"]])
def test_an_installed_package_has_no_recipes_to_measure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: list[str],
) -> None:
    monkeypatch.setattr(options, "RECIPES", tmp_path / "recipes")
    assert main(["bench", *what]) == 64
    error = capsys.readouterr().err
    assert "TS-B004" in error and str(tmp_path) in error
