"""`tokenspeed unbundle`: what `bundle` packed, on a machine without a network."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tokenspeed import env
from tokenspeed.appliance import bundle
from tokenspeed.appliance.bundle import Manifest, Member, Reader, Unpacking
from tokenspeed.appliance.download import CHUNK_BYTES, check_room
from tokenspeed.appliance.progress import Rate, display, say
from tokenspeed.appliance.store import Store
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint.source import parse
from tokenspeed.errors import ExitCode, NoInputError, OutputError, Problem, UsageError
from tokenspeed.files import LIMIT, write_whole
from tokenspeed.plan import ModelFile
from tokenspeed.resolve.lock import lock_path

HELP = (
    "unpack a bundle: check every file, put the model into the weights store and the recipe into "
    "a folder. Needs no network"
)
_BESIDE = "model"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the bundle; - is standard input")
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="folder of the recipe (default: ./NAME)"
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="unpack the wheels too, into DIR"
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    with display() as shown, _input(args.file) as stream:
        watch = Watch(shown.stage, Rate(shown))
        unpacking = Unpacking(stream, args.file, watch)
        manifest = unpacking.manifest
        folder: Path = args.to or Path(manifest.name)
        recipe = folder / manifest.recipe
        try:
            with ExitStack() as stack:
                taking = _Taking(manifest, folder, args.wheels, watch, stack)
                unpacking.each(taking.take)
        except OSError as error:
            raise OutputError(error.filename or str(folder), error) from error
        taking.write_recipe()
    count = len(manifest.of(bundle.WEIGHTS))
    if manifest.source:
        Store(env.data_root() / "weights").hold(lock_path(recipe))
        say(f"{manifest.source} is in the weights store ({count} files)")
    say(f"{recipe}: every file is as it was packed")
    say(f"next: tokenspeed up --offline {recipe}")
    return int(ExitCode.OK)


class _Taking:
    """Where the members of a bundle go. The recipe is written last, once all else is there."""

    def __init__(
        self,
        manifest: Manifest,
        folder: Path,
        wheels: Path | None,
        watch: Watch,
        stack: ExitStack,
    ) -> None:
        self._folder = folder
        self._wheels = wheels
        self._texts: dict[Path, bytes] = {}
        self._keep = None
        weights = manifest.of(bundle.WEIGHTS)
        size = sum(member.bytes for member in weights)
        if manifest.source and weights:
            store = Store(env.data_root() / "weights")
            source = parse(manifest.source)
            quiet = Watch(watch.stage, wanted=watch.wanted)  # the bundle counts bytes by itself
            self._keep = stack.enter_context(store.intake(source, manifest.files, size, quiet))
        elif weights:
            check_room(_existing(folder.absolute()), size, "free some space, or name another --to")

    def take(self, member: Member, reader: Reader) -> None:
        if member.within(bundle.RECIPE):
            self._texts[self._folder / member.name] = _whole(member, reader)
            self._require_own(self._folder / member.name)
        elif member.within(bundle.WEIGHTS):
            if self._keep is not None:
                self._keep(member.name, _file(member), reader)
            else:
                _write(self._folder / _BESIDE / member.name, member, reader)
        elif member.within(bundle.WHEELS) and self._wheels is not None:
            _write(self._wheels / member.name, member, reader)

    def write_recipe(self) -> None:
        for path, data in self._texts.items():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, data)
            except OSError as error:
                raise OutputError(str(path), error) from error

    def _require_own(self, path: Path) -> None:
        """Nothing that somebody wrote is overwritten."""
        if path.exists() and path.read_bytes() != self._texts[path]:
            raise UsageError(
                Problem(
                    code="TS-C008",
                    message=f"{path} exists already and differs",
                    hint="choose another folder with --to",
                )
            )


def _file(member: Member) -> ModelFile:
    return ModelFile(name=member.name, bytes=member.bytes, sha256=member.sha256)


def _whole(member: Member, reader: Reader) -> bytes:
    if member.bytes > LIMIT:
        problem = Problem(code="TS-S280", message=f"{member.path} is too large for a recipe")
        raise NoInputError(problem)
    return b"".join(iter(lambda: reader.read(CHUNK_BYTES), b""))


def _write(path: Path, member: Member, reader: Reader) -> None:
    """Under its name only once it is whole, and right."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    try:
        with draft.open("wb") as file:
            while chunk := reader.read(CHUNK_BYTES):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if reader.sha256 == member.sha256:  # otherwise the bundle is refused for it
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _existing(path: Path) -> Path:
    return path if path.is_dir() else _existing(path.parent)


@contextmanager
def _input(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as stream:
            yield stream
    except OSError as error:
        if error.filename != name:
            raise
        raise NoInputError(
            Problem(
                code="TS-S280",
                message=f"{name} cannot be read: {error.strerror}",
                hint="give the file that `tokenspeed bundle` wrote",
            )
        ) from error
