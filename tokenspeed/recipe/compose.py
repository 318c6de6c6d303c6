"""A recipe of several files and conditions becomes one mapping.

Order, the later over the earlier: the parent (`extends`) with what its `when` adds on this
machine, the file itself, what its own `when` adds, `--set`. So a file can override all that its
parent came to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tokenspeed.errors import NoInputError, Problem, RecipeError, Where
from tokenspeed.recipe.conditions import Branch, Facts, read_branches
from tokenspeed.recipe.document import Entry, Mapping, Scalar, read_document
from tokenspeed.recipe.overlay import merged

BAD_PARENT = "TS-R030"
MAX_PARENTS = 8


@dataclass(frozen=True, slots=True)
class Composed:
    """`root` as it is on the machine asked about; `plain` without any condition.

    `branches` are all entries of `when`, `held` those that hold on the machine, `files` every file
    that was read, the recipe first.
    """

    root: Mapping
    plain: Mapping
    branches: tuple[Branch, ...]
    held: tuple[Branch, ...]
    files: tuple[Path, ...]


def compose(path: Path, facts: Facts | None) -> tuple[Composed, list[Problem]]:
    """Read `path` with its parents. No condition holds where `facts` is None.

    Raises NoInputError without a readable file, RecipeError when one is no YAML mapping or the
    parents cannot be followed.
    """
    problems: list[Problem] = []
    layers = _layers(path, problems)
    empty = Mapping((), Where(str(path), 1, 1))
    root, plain = empty, empty
    held: list[Branch] = []
    for layer in reversed(layers):
        root, plain = merged(root, layer.body), merged(plain, layer.body)
        for branch in layer.branches:
            if facts is not None and branch.holds(facts):
                held.append(branch)
                root = merged(root, branch.then)
    branches = tuple(branch for layer in layers for branch in layer.branches)
    files = tuple(layer.file for layer in layers)
    return Composed(root, plain, branches, tuple(held), files), problems


@dataclass(frozen=True, slots=True)
class _Layer:
    file: Path
    body: Mapping
    branches: tuple[Branch, ...]


def _layers(path: Path, problems: list[Problem]) -> list[_Layer]:
    """The file, its parent, the parent's parent and so on."""
    layers: list[_Layer] = []
    seen: list[Path] = []
    said: Entry | None = None
    while True:
        if path.resolve() in seen:
            chain = " -> ".join(p.name for p in (*seen[seen.index(path.resolve()) :], path))
            raise _bad_parent(said, f"the files extend one another: {chain}", "cut the circle")
        if len(seen) > MAX_PARENTS:
            message = f"more than {MAX_PARENTS} files, one extending the next"
            raise _bad_parent(said, message, "put some of them together")
        seen.append(path.resolve())
        root, faults = _read(path, said)
        problems += faults
        taken = {entry.key: entry for entry in root.entries if entry.key in ("extends", "when")}
        body = replace(root, entries=tuple(e for e in root.entries if taken.get(e.key) is not e))
        when = taken.get("when")
        branches = read_branches(when.value, problems) if when else ()
        layers.append(_Layer(path, body, branches))
        said = taken.get("extends")
        if said is None:
            return layers
        path = _parent(path, said)


def _read(path: Path, said: Entry | None) -> tuple[Mapping, list[Problem]]:
    try:
        return read_document(path)
    except NoInputError as error:
        if said is None:
            raise
        reason = error.problems[0].message.removeprefix("the recipe ")
        hint = "a relative path counts from the folder of the file that says it"
        raise _bad_parent(said, f"{path} {reason}", hint) from error


def _parent(path: Path, said: Entry) -> Path:
    value = said.value.value if isinstance(said.value, Scalar) else None
    if not isinstance(value, str):
        raise _bad_parent(said, "a recipe extends one file", "write extends: base.yaml")
    if Path(value).expanduser().is_absolute():
        hint = "write it relative to this file, so that both can move together"
        raise _bad_parent(said, f"{value} is an absolute path", hint)
    return path.parent / value


def _bad_parent(said: Entry | None, message: str, hint: str) -> RecipeError:
    assert said is not None, "only a file that extends leads to another"
    problem = Problem(
        code=BAD_PARENT, message=message, path="extends", where=said.value.where, hint=hint
    )
    return RecipeError(problem)
