"""Hashes of weight files that were read whole once, so that a start need not read them again.

    <folder>/<digest of the path>.json      the Note below

A note counts as long as the file is the same one, of the same size, and neither its content nor
anything else about it was changed: that sets the time of change, which no program can set back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokenspeed.files import read_regular

# A change within the grain of a file system's clock would leave the times as they are.
_GRAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """`path` has no links in it; times are nanoseconds since the epoch."""

    path: str
    device: int
    inode: int
    bytes: int
    modified: int
    changed: int
    sha256: str


def known_sha256(path: Path, folder: Path) -> str | None:
    """The sha256 that was noted of the file as it is; None where none was. Raises OSError when
    the file itself cannot be looked at."""
    now = path.stat()
    try:
        note = msgspec.json.decode(read_regular(_place(path, folder)), type=Note)
    except (OSError, msgspec.DecodeError):
        return None
    return note.sha256 if note == _note(path, now, note.sha256) else None


def note_sha256(path: Path, folder: Path) -> str:
    """Reads the file, and notes its sha256 where the folder can be written. Raises OSError."""
    before = path.stat()
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    note = _note(path, before, digest)
    still = note == _note(path, path.stat(), digest)
    if still and time.time() - before.st_ctime > _GRAIN_SECONDS:
        with contextlib.suppress(OSError):
            _write(_place(path, folder), msgspec.json.encode(note))
    return digest


def _place(path: Path, folder: Path) -> Path:
    return folder / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"


def _note(path: Path, stat: os.stat_result, sha256: str) -> Note:
    return Note(
        path=str(path.resolve()),
        device=stat.st_dev,
        inode=stat.st_ino,
        bytes=stat.st_size,
        modified=stat.st_mtime_ns,
        changed=stat.st_ctime_ns,
        sha256=sha256,
    )


def _write(place: Path, data: bytes) -> None:
    """Readers see it whole. Of two starts at once one may not write its note, or both the same."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = place.with_suffix(".new")
    draft.write_bytes(data)
    draft.replace(place)
