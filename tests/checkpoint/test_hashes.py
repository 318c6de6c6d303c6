from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tokenspeed.checkpoint import hashes
from tokenspeed.checkpoint.hashes import known_sha256, note_sha256


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that was written a while ago, as far as the clock of its reader goes."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    monkeypatch.setattr(hashes.time, "time", lambda: path.stat().st_ctime + 60)
    return path


def test_what_was_hashed_is_known_until_it_changes(path: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    assert known_sha256(path, notes) is None
    digest = note_sha256(path, notes)
    assert digest == hashlib.sha256(b"weights").hexdigest()
    assert known_sha256(path, notes) == digest
    assert known_sha256(path.parent / "." / path.name, notes) == digest
    before = path.stat()
    path.write_bytes(b"other  ")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as `cp -p` and rsync do
    assert known_sha256(path, notes) is None
    assert note_sha256(path, notes) == hashlib.sha256(b"other  ").hexdigest()


def test_another_file_of_that_name_is_not_known(path: Path, tmp_path: Path) -> None:
    note_sha256(path, tmp_path / "notes")
    other = path.with_name("other")
    other.write_bytes(b"weights")
    other.replace(path)
    assert known_sha256(path, tmp_path / "notes") is None


def test_a_file_that_was_just_written_is_not_noted(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes.time, "time", lambda: path.stat().st_ctime + 1)
    assert note_sha256(path, tmp_path / "notes")
    assert known_sha256(path, tmp_path / "notes") is None


def test_a_damaged_note_or_none_only_costs_time(path: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    digest = note_sha256(path, notes)
    (note,) = notes.iterdir()
    note.write_bytes(note.read_bytes()[:30])
    assert known_sha256(path, notes) is None
    readonly = tmp_path / "file"
    readonly.touch()
    assert note_sha256(path, readonly) == digest  # no folder can be made there
