"""Finds packages the way pip does: by asking pip.

Where packages come from (index, mirrors, find-links folders, proxy, certificates, time-outs) is
pip's configuration and stays there. No registry is named here or anywhere else in tokenspeed.
Needs nothing but the standard library, because the Makefile runs it before anything is installed.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenspeed import env
from tokenspeed.errors import CheckpointError, Problem, TryAgainError

CONFIG_HINT = "`pip config list` shows where pip looks and through which proxy"
_TURN_SECONDS = 0.2  # how often a running pip asks whether it is still wanted


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that pip chose. `sha256` is None where the index states no hash."""

    name: str
    version: str
    url: str
    sha256: str | None

    @property
    def filename(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Settings:
    """The part of pip's configuration that a download of our own has to follow.

    `timeout` in seconds of silence. `proxy` None means: as the environment says.
    """

    certificates: str | None = None
    client_certificate: str | None = None
    proxy: str | None = None
    timeout: float = 15.0


def settings(wanted: Callable[[], None] = lambda: None) -> Settings:
    """Raises TryAgainError when pip does not run."""
    values = parse_config(run("config", "list", wanted=wanted))
    timeout = values.get("timeout", values.get("default-timeout", ""))
    return Settings(
        certificates=values.get("cert") or env.certificate_bundle(),
        client_certificate=values.get("client-cert") or None,
        proxy=values.get("proxy") or None,
        timeout=float(timeout) if re.fullmatch(r"\d+(\.\d+)?", timeout) else Settings().timeout,
    )


def parse_config(listing: str) -> Mapping[str, str]:
    """The options of `pip config list` as `pip download` sees them.

    Its own section goes before [global], and the environment before both.
    """
    ranks = {"global": 0, "install": 1, "download": 2, ":env:": 3}
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        key, separator, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if not separator or section not in ranks:
            continue
        try:
            text = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            continue
        option = option.replace("_", "-")
        if isinstance(text, str) and ranks[section] >= found.get(option, (0, ""))[0]:
            found[option] = (ranks[section], text)
    return {option: text for option, (_, text) in found.items()}


def find(
    *requirements: str, wanted: Callable[[], None] = lambda: None, deps: bool = False
) -> list[Wheel]:
    """The wheels pip would install, without installing; with `deps` all that they need as well.

    `wanted` is called a few times a second and may raise to give up.
    Raises CheckpointError when there is none, TryAgainError when pip cannot say.
    """
    arguments = ["--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", "-"]
    if not deps:
        arguments.append("--no-deps")
    return parse_report(run("install", "--quiet", *arguments, *requirements, wanted=wanted))


def parse_report(report: str) -> list[Wheel]:
    """Reads pip's installation report, version 1."""
    wheels = []
    for item in json.loads(report)["install"]:
        download = item["download_info"]
        archive = download.get("archive_info", {})
        sha256 = archive.get("hashes", {}).get("sha256")
        if sha256 is None and archive.get("hash", "").startswith("sha256="):
            sha256 = archive["hash"].removeprefix("sha256=")
        metadata = item["metadata"]
        wheels.append(Wheel(metadata["name"], metadata["version"], download["url"], sha256))
    return wheels


def download(requirement: str, folder: Path, wanted: Callable[[], None] = lambda: None) -> Path:
    """Lets pip itself download one wheel into an empty folder: slower to resume, but pip knows
    every way to log in. Raises as `find` does."""
    arguments = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    run("download", *arguments, requirement, wanted=wanted)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run(*arguments: str, wanted: Callable[[], None] = lambda: None) -> str:
    """Runs pip of this interpreter and returns its standard output."""
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--no-input"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is ours to handle; pip would print a traceback
    ) as process:
        try:
            output, complaint = _communicate(process, wanted)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise _failure(arguments, complaint)
    return output


def _communicate(process: subprocess.Popen[str], wanted: Callable[[], None]) -> tuple[str, str]:
    while True:
        try:
            return process.communicate(timeout=_TURN_SECONDS)
        except subprocess.TimeoutExpired:
            wanted()


def _failure(arguments: tuple[str, ...], complaint: str) -> CheckpointError | TryAgainError:
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = "; ".join(errors or lines[-2:]) or "it printed no reason"
    if "No module named pip" in complaint:
        return TryAgainError(
            Problem(
                code="TS-S101",
                message=f"{sys.executable} has no pip, and pip is how packages are found",
                hint=f"{sys.executable} -m ensurepip --upgrade",
            )
        )
    # With a dead network pip says "no matching distribution" too, after warning of its retries.
    offline = "Retrying (" in complaint or "connection" in complaint.lower()
    if "No matching distribution" in complaint and not offline:
        return CheckpointError(
            Problem(code="TS-S102", message=f"no such package: {said}", hint=CONFIG_HINT)
        )
    return TryAgainError(
        Problem(
            code="TS-S103",
            message=f"pip {arguments[0]} failed: {said}",
            hint=f"try again when the network is back; {CONFIG_HINT}",
        )
    )
