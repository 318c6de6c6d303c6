"""`tokenspeed bundle`: a recipe with all that it needs, in one file."""

from __future__ import annotations

import argparse
import errno
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

import yaml

from tokenspeed import __version__, env
from tokenspeed.appliance import bundle, wheels
from tokenspeed.appliance.bundle import Entry, Manifest
from tokenspeed.appliance.download import check_room
from tokenspeed.appliance.hub import WANTED
from tokenspeed.appliance.order import refuse_unmet
from tokenspeed.appliance.progress import Rate, display
from tokenspeed.appliance.store import Store
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint.source import Source, parse
from tokenspeed.cli.locking import lock_of
from tokenspeed.cli.planning import Planned, plan_recipe
from tokenspeed.errors import ExitCode, OutputError, Problem, UsageError
from tokenspeed.plan import Plan
from tokenspeed.resolve.lock import lock_path

HELP = (
    "pack RECIPE into one file with all that a machine without a network needs: the recipes it "
    "extends, its lock, the model's files and the wheels of this installation"
)
STDOUT = Path("-")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A recipe whose model is a folder: there the folder lies beside it.
_BESIDE = "model"
_README = """\
{name}: a recipe of tokenspeed {version} with all that it needs, for {python} on {machine}.

Where tokenspeed is installed:

    tokenspeed unbundle {file}

Where it is not:

    tar -xf {file} wheels
    python3 -m venv tokenspeed
    tokenspeed/bin/pip install --no-index --find-links wheels '{requirement}'
    tokenspeed/bin/tokenspeed unbundle {file}
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe, a YAML file")
    parser.add_argument(
        "-o",
        dest="file",
        type=Path,
        metavar="FILE",
        help="write here (default: NAME.bundle.tar); - is standard output",
    )
    parser.add_argument("--offline", action="store_true", help="download nothing")
    packages = parser.add_mutually_exclusive_group()
    packages.add_argument(
        "--wheels", type=Path, metavar="DIR", help="pack these wheels instead of asking pip"
    )
    packages.add_argument(
        "--no-wheels", action="store_true", help="tokenspeed is already installed there"
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    planned = plan_recipe(args.recipe)
    plan = planned.resolution.plan
    refuse_unmet(plan)
    file = args.file or Path(f"{plan.name}.bundle.tar")
    with display() as shown, _place(file) as place:
        watch = Watch(shown.stage, Rate(shown))
        weights = _weights(plan, watch, offline=args.offline)
        folder = args.wheels or place
        if not args.wheels and not args.no_wheels:
            watch.stage("asking pip for the wheels of this installation")
            wheels.gather(folder, watch.wanted)
        packed = [
            Entry.of_file(f"{bundle.WHEELS}/{name}", path)
            for name, path in bundle.members_of(folder)
            if path.suffix == ".whl"
        ]
        recipe, recipes = _recipe(planned)
        entries = [_readme(plan, file, bool(packed)), *packed, *recipes, *weights]
        manifest = Manifest(
            version=bundle.VERSION,
            tokenspeed=__version__,
            name=plan.name,
            recipe=recipe,
            source="" if parse(plan.model.source).kind == "path" else plan.model.source,
            files=plan.model.files,
            members=tuple(entry.member for entry in entries),
        )
        with _output(file, sum(member.bytes for member in manifest.members)) as stream:
            bundle.write(manifest, entries, stream, watch)
    if file != STDOUT:
        print(f"{file}: {file.stat().st_size / 1e6:,.0f} MB, {len(entries)} files")
        print(f"where there is no network: tokenspeed unbundle {file.name}")
    return int(ExitCode.OK)


# ---- what goes in


def _weights(plan: Plan, watch: Watch, *, offline: bool) -> list[Entry]:
    if plan.model.load == "dummy":
        return []
    source = parse(plan.model.source)
    pinned = {Path(file.name).name: file.sha256 for file in plan.model.files}
    if source.kind == "path":
        folder = source.directory(Path("/"))
    else:
        token = env.secret(plan.model.token).strip() if plan.model.token else None
        store = Store(env.data_root() / "weights")
        folder = store.obtain(source, plan.model.files, watch, offline=offline, token=token)
    entries = []
    for name, path in _files(folder, source):
        watch.stage(f"looking at {name}")
        # Files of the store are called what they are.
        known = pinned.get(name) or path.resolve().name
        sha256 = known if _SHA256.fullmatch(known) else None
        entries.append(Entry.of_file(f"{bundle.WEIGHTS}/{name}", path, sha256))
    return entries


def _files(folder: Path, source: Source) -> Iterator[tuple[str, Path]]:
    if folder.is_file():
        yield folder.name, folder
        return
    for name, path in bundle.members_of(folder):
        if source.kind != "path" or any(fnmatch(name, pattern) for pattern in WANTED):
            yield name, path


def _recipe(planned: Planned) -> tuple[str, list[Entry]]:
    """The name of the file to start, and all files: as they lie to each other here."""
    files = [path.resolve() for path in planned.loaded.files]
    if (template := planned.loaded.recipe.serve.chat_template) is not None:
        if template.startswith(("/", "~")):
            raise _elsewhere(template)
        folder = planned.loaded.folder_of("serve.chat_template")
        files.append((folder / template).resolve())
    root = Path(os.path.commonpath([path.parent for path in files]))
    names = [path.relative_to(root).as_posix() for path in dict.fromkeys(files)]
    texts = {name: (root / name).read_text(encoding="utf-8") for name in names}
    plan, start = planned.resolution.plan, names[0]
    source = parse(plan.model.source)
    if source.kind == "path":
        return _beside(planned, source, texts, start)
    lock = lock_path(planned.loaded.file)
    text = lock.read_text(encoding="utf-8") if lock.is_file() else lock_of(planned).to_yaml()
    texts[lock_path(Path(start)).as_posix()] = text
    return start, _texts(texts)


def _beside(
    planned: Planned, source: Source, texts: dict[str, str], start: str
) -> tuple[str, list[Entry]]:
    """For a model that is a folder: one more recipe over the others says where it lies there. The
    lock is left out, for it names the folder that the model has here."""
    folder = source.directory(Path("/"))
    place = f"{_BESIDE}/{folder.name}" if folder.is_file() else _BESIDE
    top = f"{planned.resolution.plan.name}.yaml"
    over = {"extends": f"parts/{start}", "model": {"source": f"path:{place}"}}
    moved = {f"parts/{name}": text for name, text in texts.items()}
    return top, _texts({top: yaml.safe_dump(over, sort_keys=False), **moved})


def _texts(texts: dict[str, str]) -> list[Entry]:
    return [Entry.of_text(f"{bundle.RECIPE}/{name}", text) for name, text in texts.items()]


def _readme(plan: Plan, file: Path, with_wheels: bool) -> Entry:
    has_torch = any(name == "torch" for name, _ in wheels.installed())
    text = _README.format(
        name=plan.name,
        version=__version__,
        python=f"Python {sys.version_info.major}.{sys.version_info.minor}",
        machine=platform.machine(),
        file=file.name if file != STDOUT else f"{plan.name}.bundle.tar",
        requirement=wheels.OURS[-1] + "[worker]" * has_torch,
    )
    if not with_wheels:
        text = text.partition("Where it is not:")[0]
    return Entry.of_text(bundle.README, text)


# ---- where it goes


@contextmanager
def _place(file: Path) -> Iterator[Path]:
    """A folder beside the file, for wheels until they are packed; so it is known early that the
    file can be written."""
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = tempfile.TemporaryDirectory(dir=None if file == STDOUT else file.absolute().parent)
    except OSError as error:
        raise OutputError(str(file), error) from error
    with folder as name:
        yield Path(name)


@contextmanager
def _output(file: Path, size: int) -> Iterator[IO[bytes]]:
    """The file is there whole, or not at all."""
    if file == STDOUT:
        yield sys.stdout.buffer
        return
    check_room(file.absolute().parent, size, "free some space, or write to another place with -o")
    draft = file.with_name(f".{file.name}.part")
    try:
        with draft.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(file)
    except OSError as error:
        raise OutputError(str(file), error) from error
    finally:
        draft.unlink(missing_ok=True)


def _elsewhere(template: str) -> UsageError:
    return UsageError(
        Problem(
            code="TS-C006",
            path="serve.chat_template",
            message=f"{template} is at a path that another machine does not have",
            hint="put it beside the recipe, and use a relative path",
        )
    )
