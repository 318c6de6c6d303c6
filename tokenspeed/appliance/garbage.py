"""What the weights store holds that nobody needs any more.

Roots are what may start again: the locks that recipes left with the store (`Store.hold`), the
generations of installed recipes, and the instances that run. Everything that no root leads to is
garbage: models with the blobs that only they link to, downloads that stopped, generations that no
rollback leads to, and compiled kernels once no root computes on a GPU. A lock of a recipe that
cannot be read here, as it is another user's or of another version, may need any of that but
generations.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tokenspeed.appliance.generations import RECIPE, Generations, acting_for
from tokenspeed.appliance.store import Store, open_gate, partial_name
from tokenspeed.checkpoint.source import Source, parse
from tokenspeed.errors import Problem, ResolveError, TryAgainError
from tokenspeed.plan import Plan
from tokenspeed.resolve.lock import lock_path, read_lock

KERNELS = ("triton", "inductor", "cuda")


@dataclass(frozen=True, slots=True)
class Root:
    """Who needs a model: `who` is for people, `plan` what would start."""

    who: str
    plan: Plan

    @property
    def source(self) -> Source:
        return parse(self.plan.model.source)


@dataclass(frozen=True, slots=True)
class Item:
    """Something in the store. `bytes` are what deleting it gives back; `needed_by` is () for
    garbage; `paths` are deleted in that order."""

    kind: str
    name: str
    bytes: int
    needed_by: tuple[str, ...]
    paths: tuple[Path, ...]


class Garbage:
    """Of one data root, which has `weights` and the generations of installed recipes.

    `caches` are folders of compiled kernels.
    """

    def __init__(self, data_root: Path, caches: Collection[Path]) -> None:
        self._data = data_root
        self._weights = data_root / "weights"
        self._store = Store(self._weights)
        self._caches = caches

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody fetches meanwhile. Raises TryAgainError when somebody does."""
        if not self._weights.is_dir():
            yield
            return
        with acting_for(self._data):  # whose file it is, if it is new
            gate = open_gate(self._weights)
        with gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _being_fetched(self._weights) from None
            yield

    def items(self, running: Mapping[str, Plan]) -> list[Item]:
        """All that there is; `running` are the plans of running instances by name, asked for while
        nobody fetches. Raises ResolveError when the lock of a generation cannot be read: what
        it needs is not known then, and nothing may be deleted."""
        locks = self._locks()
        roots = self._roots(running)
        roots += [Root(str(path), plan) for path, plan in locks.items() if plan is not None]
        found = [*self._models(roots), *self._repositories(roots), *self._partials(roots)]
        found += self._kernels(roots)
        if unread := tuple(str(path) for path, plan in locks.items() if plan is None):
            found = [replace(item, needed_by=item.needed_by or unread) for item in found]
        return [*found, *self._generations()]

    def unreadable(self) -> list[Path]:
        """The locks of recipes that do not tell what they need."""
        return [path for path, plan in self._locks().items() if plan is None]

    def forget_gone(self) -> None:
        """Lets go of locks that are there no more."""
        for link in self._links():
            if not _is_there(link):
                link.unlink()

    def delete(self, item: Item) -> None:
        assert not item.needed_by, f"{item.name} is needed"
        for path in item.paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    # ---- roots

    def _roots(self, running: Mapping[str, Plan]) -> list[Root]:
        roots = [Root(f"instance {name}", plan) for name, plan in running.items()]
        for generations in self._installed():
            gone = generations.garbage()
            roots += [
                Root(
                    f"generation {number} of {generations.root.name}",
                    read_lock(lock_path(generations.recipe(number))).plan,
                )
                for number in generations.numbers()
                if number not in gone
            ]
        return roots

    def _locks(self) -> dict[Path, Plan | None]:
        """Plans of the locks of recipes, None for one that cannot be read."""
        found: dict[Path, Plan | None] = {}
        for path in sorted(link.readlink() for link in self._links() if _is_there(link)):
            try:
                found[path] = read_lock(path).plan
            except ResolveError:
                found[path] = None
        return found

    def _links(self) -> list[Path]:
        return [path for path in _sorted(self._weights / "roots") if path.is_symlink()]

    def _installed(self) -> list[Generations]:
        folders = sorted(self._data.glob(f"*/generations/*/{RECIPE}"))
        names = dict.fromkeys(path.parents[2] for path in folders)
        return [generations for path in names if (generations := Generations(path)).exist]

    def _needed(self, roots: list[Root]) -> dict[str, tuple[str, ...]]:
        """Who needs it, by the name of a model's folder."""
        found: dict[str, tuple[str, ...]] = {}
        for root in roots:
            if root.source.kind != "path":
                name = self._store.folder(root.source, root.plan.model.files).name
                found[name] = (*found.get(name, ()), root.who)
        return found

    # ---- what there is

    def _models(self, roots: list[Root]) -> list[Item]:
        """Folders of links into blobs. A blob is given back with the first folder of garbage that
        has it, where no other needs it; one without a folder stands for itself."""
        needed = self._needed(roots)
        folders = [path for path in _sorted(self._weights / "models") if not path.is_symlink()]
        blobs = {
            path: {link.resolve() for link in path.rglob("*") if link.is_symlink()}
            for path in folders
        }
        kept = {blob for path in folders if path.name in needed for blob in blobs[path]}
        left = {path for path in _sorted(self._weights / "blobs") if path.resolve() not in kept}
        items = []
        for folder in folders:
            who = needed.get(folder.name, ())
            own = set() if who else {blob for blob in left if blob.resolve() in blobs[folder]}
            left -= own
            counted = own or (blobs[folder] if who else set())
            size = sum(_bytes(path) for path in counted)
            items.append(Item("model", folder.name, size, who, (folder, *sorted(own))))
        items += [Item("file", path.name, _bytes(path), (), (path,)) for path in sorted(left)]
        return items

    def _repositories(self, roots: list[Root]) -> list[Item]:
        """Those of `hub`, by revision; one that a root names but that is not whole stays as it
        is, for the next try."""
        needed = self._needed(roots)
        named = {root.source.name: root.who for root in roots if root.source.kind == "hf"}
        links = [path for path in _sorted(self._weights / "models") if path.is_symlink()]
        items: list[Item] = []
        for repository in sorted((self._weights / "hub").glob("models--*")):
            name = repository.name.removeprefix("models--").replace("--", "/")
            own = [link for link in links if repository in link.resolve().parents]
            held = [link for link in own if link.name in needed]
            if not held:
                wanted = (named[name],) if name in named else ()
                paths = (*own, repository)
                items.append(Item("model", f"hf:{name}", _bytes(repository), wanted, paths))
                continue
            who = tuple(one for link in held for one in needed[link.name])
            kept = {link.resolve() for link in held}
            files = {file.resolve() for snapshot in kept for file in snapshot.rglob("*")}
            size = sum(_bytes(file) for file in files if file.is_file())
            items.append(Item("model", f"hf:{name}", size, who, ()))
            blobs = [path for path in _sorted(repository / "blobs") if path.resolve() not in files]
            old = [path for path in _sorted(repository / "snapshots") if path.resolve() not in kept]
            if old or blobs:
                size = sum(map(_bytes, blobs))
                paths = (*(link for link in own if link not in held), *old, *blobs)
                items.append(Item("model", f"hf:{name}, other revisions", size, (), paths))
        return items

    def _partials(self, roots: list[Root]) -> list[Item]:
        needed = {partial_name(root.source): root.who for root in roots}
        return [
            Item(
                "download",
                path.name,
                _bytes(path),
                (needed[path.name],) if path.name in needed else (),
                (path,),
            )
            for path in _sorted(self._weights / "partial")
        ]

    def _generations(self) -> list[Item]:
        items = []
        for generations in self._installed():
            for number in generations.garbage():
                folder = generations.recipe(number).parent
                name = f"{number} of {generations.root.name}"
                items.append(Item("generation", name, _bytes(folder), (), (folder,)))
        return items

    def _kernels(self, roots: list[Root]) -> list[Item]:
        who = tuple(root.who for root in roots if root.plan.device.kind != "cpu")
        folders = (cache / name for cache in self._caches for name in KERNELS)
        return [
            Item("kernels", str(path), _bytes(path), who, (path,))
            for path in folders
            if path.is_dir()
        ]


def _is_there(path: Path) -> bool:
    """Also where nobody lets us look."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _sorted(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _bytes(path: Path) -> int:
    """Of a file, or of all files below a folder; links count nothing."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_symlink():
            return 0
        if path.is_file():
            return path.stat().st_size
    below = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return sum(_bytes(file) for file in below)


def _being_fetched(weights: Path) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S270",
            message=f"a model is being fetched into {weights}",
            hint="run this again when that is done",
        )
    )
