"""Whether a model's files hold what they held when the instance began.

A later worker reads them again, long after the plan was made of them and their tokenizer was read.
Where they were replaced meanwhile, it would serve another model under the old one's name, plan and
fingerprint. Files that were copied back are the same ones: their content counts, by samples, since
all of it would take as long to read as to load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

_SAMPLES = 16  # of a file, evenly spaced, the first bytes and the last among them
_SAMPLE_BYTES = 4096


class HeldFiles:
    """The files as they are now. Blocks: a mount may be slow."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._digests: Mapping[Path, bytes] = {
            path: digest for path in paths if (digest := _digest(path)) is not None
        }

    def changed(self) -> str | None:
        """What to say about files that hold something else now; None where none does. One that
        cannot be read is for the worker to report. Blocks."""
        for path, before in self._digests.items():
            now = _digest(path)
            if now is not None and now != before:
                return (
                    f"{path} was replaced after this instance began: restart it to plan and serve "
                    "what is there now, or put the file back"
                )
        return None


def _digest(path: Path) -> bytes | None:
    """Of a file's length and samples; None where it cannot be read."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            found.update(str(size).encode())
            last = max(0, size - _SAMPLE_BYTES)
            for place in range(_SAMPLES):
                stream.seek(last * place // (_SAMPLES - 1))
                found.update(stream.read(_SAMPLE_BYTES))
    except OSError:
        return None
    return found.digest()
