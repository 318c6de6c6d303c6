from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tokenspeed.appliance import packages
from tokenspeed.appliance.packages import Settings, Wheel


def test_the_environment_goes_before_sections_and_download_before_global() -> None:
    listing = "\n".join(
        [
            ":env:.timeout='7'",
            "download.cert='/d.pem'",
            "freeze.timeout='10'",
            "global.cert='/g.pem'",
            "global.timeout='60'",
            "global.extra-index-url='file:///a\\nfile:///b'",
            "not a line of it",
        ]
    )
    found = packages.parse_config(listing)
    assert found["timeout"] == "7"
    assert found["cert"] == "/d.pem"
    assert found["extra-index-url"] == "file:///a\nfile:///b"


def test_pip_s_own_configuration_is_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nproxy = http://proxy:3128\ntimeout = 41\ncert = /ca.pem\n")
    for name in ("PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_TIMEOUT", "PIP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert packages.settings() == Settings(
        certificates="/ca.pem", proxy="http://proxy:3128", timeout=41.0
    )
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "9")
    assert packages.settings().timeout in (9.0, 41.0)  # which of its two names wins is pip's


@pytest.mark.parametrize(
    "archive",
    [{"hash": "sha256=ab"}, {"hashes": {"sha256": "ab"}}, {"hash": "md5=x"}, {}],
)
def test_reports_of_old_and_new_pips_are_read(archive: dict[str, object]) -> None:
    item = {
        "download_info": {"url": "http://i/f/a-1-py3-none-any.whl", "archive_info": archive},
        "metadata": {"name": "a", "version": "1"},
    }
    (wheel,) = packages.parse_report(json.dumps({"version": "1", "install": [item]}))
    known = "ab" if "ab" in json.dumps(archive) else None
    assert wheel == Wheel("a", "1", "http://i/f/a-1-py3-none-any.whl", known)
    assert wheel.filename == "a-1-py3-none-any.whl"


def test_an_interpreter_without_pip_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(packages.TryAgainError, match="ensurepip"):
        packages.run("config", "list")


def test_a_pip_that_is_no_longer_wanted_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    def wanted() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        packages.run("config", "list", wanted=wanted)
