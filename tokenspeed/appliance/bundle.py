"""A recipe with all that it needs in one file, for a machine without a network.

A plain tar, written and read front to back, so that it may go through a pipe:

    bundle.json      the Manifest: what follows, in this order, with sizes and SHA-256
    README.txt       how to begin where tokenspeed is not installed
    wheels/          tokenspeed and all that it needs, for `pip install --no-index`
    recipe/          the recipe, what it extends or names, its lock
    weights/         the model's files

Weights are the last, and go from store to store without a copy beside them.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

import msgspec

from tokenspeed.appliance.download import CHUNK_BYTES
from tokenspeed.appliance.watch import Watch
from tokenspeed.errors import CheckpointError, NoInputError, Problem
from tokenspeed.files import LIMIT
from tokenspeed.plan import ModelFile

VERSION = 1
MANIFEST, README = "bundle.json", "README.txt"
WHEELS, RECIPE, WEIGHTS = "wheels", "recipe", "weights"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of a bundle; `path` begins with its folder."""

    path: str
    bytes: int
    sha256: str

    def within(self, folder: str) -> bool:
        return self.path.startswith(f"{folder}/")

    @property
    def name(self) -> str:
        """Without the folder."""
        return self.path.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`recipe` is the name of the file to start, in `recipe/`; `source` and `files` are the
    plan's, `source` "" where the weights belong beside the recipe."""

    version: int
    tokenspeed: str
    name: str
    recipe: str
    source: str
    files: tuple[ModelFile, ...]
    members: tuple[Member, ...]

    def of(self, folder: str) -> list[Member]:
        return [member for member in self.members if member.within(folder)]


@dataclass(frozen=True, slots=True)
class Entry:
    """A member and what it is made of: a file, or a text."""

    member: Member
    content: Path | bytes

    @classmethod
    def of_file(cls, path: str, file: Path, sha256: str | None = None) -> Entry:
        """`sha256`: known already; it is checked while the file is packed."""
        if sha256 is None:
            with file.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        return cls(Member(path=path, bytes=file.stat().st_size, sha256=sha256), file)

    @classmethod
    def of_text(cls, path: str, text: str) -> Entry:
        data = text.encode()
        digest = hashlib.sha256(data).hexdigest()
        return cls(Member(path=path, bytes=len(data), sha256=digest), data)


@dataclass(slots=True)
class _Meter:
    """Bytes of all members so far, for a display."""

    total: int
    watch: Watch
    done: int = 0

    def add(self, count: int) -> None:
        self.done += count
        self.watch.on_bytes(self.done, self.total)
        self.watch.wanted()


class Reader:
    """The bytes of one member as they pass, counted and hashed."""

    def __init__(self, source: IO[bytes], meter: _Meter) -> None:
        self._source = source
        self._meter = meter
        self._digest = hashlib.sha256()
        self.count = 0

    @property
    def sha256(self) -> str:
        """Of what was read so far."""
        return self._digest.hexdigest()

    def read(self, size: int, /) -> bytes:
        data = self._source.read(size)
        self.count += len(data)
        self._digest.update(data)
        self._meter.add(len(data))
        return data

    def skip(self) -> None:
        """Reads the rest."""
        while self.read(CHUNK_BYTES):
            pass


# ---- writing


def write(manifest: Manifest, entries: list[Entry], stream: IO[bytes], watch: Watch) -> None:
    """Raises CheckpointError when a file is not what the manifest says, as when it was damaged in
    the store; OSError when it cannot be read or written."""
    assert tuple(entry.member for entry in entries) == manifest.members
    meter = _Meter(sum(member.bytes for member in manifest.members), watch)
    head = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(_info(MANIFEST, len(head)), io.BytesIO(head))
        for entry in entries:
            watch.stage(f"packing {entry.member.path}")
            _add(tar, entry, meter)


def _add(tar: tarfile.TarFile, entry: Entry, meter: _Meter) -> None:
    member, content = entry.member, entry.content
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
        reader = Reader(source, meter)
        tar.addfile(_info(member.path, member.bytes), cast(IO[bytes], reader))
    if reader.sha256 != member.sha256:
        raise CheckpointError(
            Problem(
                code="TS-S281",
                message=f"{member.path} is damaged here: its SHA-256 is not {member.sha256}",
                hint="delete it, and fetch the model again with `tokenspeed pull`",
            )
        )


def _info(path: str, size: int) -> tarfile.TarInfo:
    """Without times and owners: two bundles of the same things are equal."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o644
    return info


# ---- reading


class Unpacking:
    """A bundle that is read. `manifest` is there at once; `each` must be gone through to the end.

    Nothing of a bundle is trusted: a member that the manifest does not announce, that is no plain
    file, or whose name leads anywhere else, ends the reading, and so does a wrong hash.
    """

    def __init__(self, stream: IO[bytes], file: str, watch: Watch) -> None:
        """Raises NoInputError when `file`, as `stream` is called in errors, is no bundle."""
        self._file = file
        self._watch = watch
        try:
            self._tar = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115 - closed by close
            head = self._tar.next()
            if head is None or head.name != MANIFEST or not 0 < head.size <= LIMIT:
                raise _no_bundle(file, f"it does not begin with {MANIFEST}")
            raw = self._open(head).read()
            self.manifest = msgspec.json.decode(raw, type=Manifest)
        except (tarfile.TarError, EOFError, msgspec.DecodeError) as error:
            raise _no_bundle(file, str(error)) from error
        if self.manifest.version != VERSION:
            raise _no_bundle(file, f"its version is {self.manifest.version}, not {VERSION}")
        _check_names(self.manifest, file)
        total = sum(member.bytes for member in self.manifest.members)
        self._meter = _Meter(total, watch)

    def each(self, take: Callable[[Member, Reader], None]) -> None:
        """Hands every member over in its order; what is not read of it is read over.

        A member is right only when the next one is handed over. Raises CheckpointError.
        """
        for member in self.manifest.members:
            self._watch.stage(f"unpacking {member.path}")
            reader = self._reader(member)
            try:
                take(member, reader)
                reader.skip()
            except (tarfile.ReadError, EOFError) as error:
                raise _cut(self._file, member, reader.count) from error
            if reader.count != member.bytes:
                raise _cut(self._file, member, reader.count)
            if reader.sha256 != member.sha256:
                raise _damaged(self._file, member)

    def close(self) -> None:
        self._tar.close()

    def _reader(self, member: Member) -> Reader:
        try:
            info = self._tar.next()
        except (tarfile.TarError, EOFError) as error:
            raise _cut(self._file, member, 0) from error
        if info is None:
            raise _cut(self._file, member, 0)
        if info.name != member.path or not info.isreg() or info.size != member.bytes:
            raise _unannounced(self._file, info)
        return Reader(self._open(info), self._meter)

    def _open(self, info: tarfile.TarInfo) -> IO[bytes]:
        opened = self._tar.extractfile(info)
        assert opened is not None, "a plain file can be opened"
        return opened


def _check_names(manifest: Manifest, file: str) -> None:
    """Names stay below the folders that they are unpacked into."""
    names = [member.path for member in manifest.members]
    bad = [name for name in (*names, f"{RECIPE}/{manifest.recipe}") if not _is_plain(name)]
    bad += [member.path for member in manifest.members if not _SHA256.fullmatch(member.sha256)]
    if f"{RECIPE}/{manifest.recipe}" not in names or len(set(names)) != len(names):
        bad.append(manifest.recipe)
    if bad:
        raise _no_bundle(file, f"its manifest names {bad[0]!r}")


def _is_plain(name: str) -> bool:
    if name == README:
        return True
    path = PurePosixPath(name)
    return (
        len(path.parts) > 1
        and path.parts[0] in (WHEELS, RECIPE, WEIGHTS)
        and str(path) == name
        and name.isprintable()
        and "\\" not in name
        and not any(part in ("..", ".") for part in path.parts)
    )


def members_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below, with its name from there, in order."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def _no_bundle(file: str, why: str) -> NoInputError:
    return NoInputError(
        Problem(
            code="TS-S280",
            message=f"{file} is not a bundle: {why}",
            hint="`tokenspeed bundle RECIPE -o FILE` makes one, where there is a network",
        )
    )


def _cut(file: str, member: Member, count: int) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-S282",
            message=f"{file} is cut: it ends inside {member.path}, after {count} of its "
            f"{member.bytes} bytes",
            hint="copy it again, completely",
        )
    )


def _damaged(file: str, member: Member) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-S283",
            message=f"{file} is damaged: {member.path} does not have the SHA-256 of its manifest",
            hint="copy it again, and compare the sums of both files",
        )
    )


def _unannounced(file: str, info: tarfile.TarInfo) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-S284",
            message=f"{file} holds {info.name!r}, which its manifest does not list at that place",
            hint="it was changed after it was made; do not trust where it comes from",
        )
    )
