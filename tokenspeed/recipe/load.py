"""A recipe file becomes a Recipe, or one error that lists everything wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tokenspeed.errors import Problem, RecipeError, Where
from tokenspeed.recipe.compose import compose
from tokenspeed.recipe.conditions import Branch, Facts
from tokenspeed.recipe.document import EMPTY, Mapping, Scalar, Sequence, Tree, strange_letters
from tokenspeed.recipe.keys import key_paths, section_of
from tokenspeed.recipe.kinds import show
from tokenspeed.recipe.overlay import merged, overlay
from tokenspeed.recipe.secrets import is_secret
from tokenspeed.recipe.types import DEFAULT_PORT, Recipe
from tokenspeed.recipe.words import nearest

UNKNOWN, MISSING, WRONG_SHAPE, CONTRADICTION = "TS-R010", "TS-R011", "TS-R015", "TS-R016"
USER_PREFIX = "x-"

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe as it is on the machine it was read for.

    `origins` has the place of every value and section by dotted key: a line of one of the `files`
    (the recipe, then what it extends), or the override that set it. `held` are the entries of
    `when` that hold. `values` are the composed recipe's, as they were written.
    """

    recipe: Recipe
    file: Path
    origins: dict[str, Where]
    files: tuple[Path, ...] = ()
    held: tuple[Branch, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)

    def folder_of(self, key: str) -> Path:
        """Where a relative path at `key` counts from: the folder of the file that says it."""
        where = self.origins.get(key)
        return Path(where.file).parent if where and where.line else self.file.parent


def load_recipe(
    path: Path, overrides: tuple[str, ...] = (), facts: Facts | None = None
) -> LoadedRecipe:
    """Read, compose, override and validate a recipe for a machine with these `facts`.

    Without facts no condition of `when` holds. What conditions would add is validated on any
    machine, each alone, over the recipe without the others.

    Raises NoInputError without a readable file, UsageError for an override that is not
    KEY=VALUE, RecipeError with every problem of the recipe in the order of its lines.
    """
    composed, problems = compose(path, facts)
    trees = [composed.root]
    if composed.branches:
        trees += [composed.plain, *(merged(composed.plain, b.then) for b in composed.branches)]
    validated = [_validate(tree, overrides, path) for tree in trees]
    for one in validated:
        problems += one.problems
    if problems:
        raise RecipeError(*_in_order(problems, path))
    first = validated[0]
    assert first.recipe is not None, "a recipe without problems is valid"
    return LoadedRecipe(
        first.recipe, path, first.origins, composed.files, composed.held, first.values
    )


@dataclass(frozen=True, slots=True)
class _Validated:
    recipe: Recipe | None
    origins: dict[str, Where]
    problems: list[Problem]
    values: dict[str, Any]


def _validate(root: Mapping, overrides: tuple[str, ...], path: Path) -> _Validated:
    root, problems = overlay(root, overrides)
    flattened = _Flattened(str(path))
    values = flattened.mapping(root, ())
    problems += flattened.problems
    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        details: list[dict[str, Any]] = [dict(one) for one in error.errors(include_url=False)]
        said = _misspelt(details)
        # A list whose items are all refused counts as too short as well.
        said |= {("too_short", detail["loc"][:-1]) for detail in details}
        problems += [
            _problem(detail, flattened)
            for detail in details
            if (detail["type"], detail["loc"]) not in said
        ]
    if recipe is not None:
        problems += _contradictions(recipe, flattened)
    origins = {dotted(loc): where for loc, where in flattened.values.items()}
    return _Validated(recipe, origins, problems, values)


def _misspelt(details: list[dict[str, Any]]) -> set[tuple[str, Loc]]:
    """The keys that unknown ones were most likely meant to be: to miss them as well would say
    the same twice."""
    unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
    return {("missing", (*loc[:-1], near)) for loc in unknown if (near := _near(loc))}


def dotted(loc: Loc) -> str:
    """("kv", "size") -> "kv.size"; ("model", "served_names", 0) -> "model.served_names[0]"."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class _Flattened:
    """Plain values for validation, and the places of keys and values by their path."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.keys: dict[Loc, Where] = {}
        self.values: dict[Loc, Where] = {}
        self.problems: list[Problem] = []

    def mapping(self, node: Mapping, loc: Loc) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for entry in node.entries:
            if entry.key.startswith(USER_PREFIX):
                continue
            inner = (*loc, entry.key)
            self.keys[inner] = entry.where
            if isinstance(entry.value, Scalar) and entry.value.value is None:
                self.problems.append(_empty(inner, entry.where))
                self.values[inner] = entry.where
                continue
            plain[entry.key] = self._plain(entry.value, inner)
        return plain

    def _plain(self, node: Tree, loc: Loc) -> Any:
        self.values[loc] = node.where
        if isinstance(node, Mapping):
            return self.mapping(node, loc)
        if isinstance(node, Sequence):
            return [self._plain(item, (*loc, i)) for i, item in enumerate(node.items)]
        return node.value

    def place(self, loc: Loc, of_key: bool = False) -> Where:
        """Where the value (or key) at `loc` is, or the nearest thing around it."""
        table = self.keys if of_key else self.values
        while loc:
            if loc in table:
                return table[loc]
            loc, table = loc[:-1], self.keys
        return Where(self.file, 1, 1)


def _empty(loc: Loc, where: Where) -> Problem:
    section = _model_at(loc) is not None
    hint = (
        "indent its keys by two spaces below it, or remove the line"
        if section
        else "write a value, or leave the key out to have it chosen"
    )
    what = "the section is empty" if section else "the key has no value"
    return Problem(code=EMPTY, message=what, path=dotted(loc), where=where, hint=hint)


def _length(context: dict[str, Any]) -> str:
    """Of a list, by what pydantic says of it."""
    actual = context["actual_length"]
    if actual == 0:
        return "the list is empty"
    if "min_length" in context:
        return f"the list has {actual} of at least {context['min_length']} entries"
    return f"the list has {actual} entries, and {context['max_length']} is the most"


def _problem(detail: dict[str, Any], flattened: _Flattened) -> Problem:
    kind, loc = str(detail["type"]), tuple(detail["loc"])
    context = detail.get("ctx") or {}
    if kind == "recipe":
        return Problem(
            code=context["code"],
            message=context["message"],
            path=dotted(loc),
            where=flattened.place(loc),
            hint=context["hint"],
        )
    if kind == "extra_forbidden":
        return _unknown(loc, flattened)
    if kind == "missing":
        # A key that stands there without a value was named already, as empty.
        return Problem(
            code=MISSING,
            message="the key is required",
            path=dotted(loc),
            where=flattened.place(loc, of_key=True),
            hint=_example(_field_at(loc)),
        )
    if kind in ("too_short", "too_long"):
        message = _length(context)
    else:
        wanted = "a list" if kind == "tuple_type" else "a mapping of keys to values"
        found = show(detail.get("input"))
        if is_secret(dotted(loc)) and isinstance(detail.get("input"), str):
            found = "what stands here (and is not shown)"
        message = f"{found} is not {wanted}"
    return Problem(
        code=WRONG_SHAPE,
        message=message,
        path=dotted(loc),
        where=flattened.place(loc),
        hint=_example(_field_at(loc)),
    )


def _unknown(loc: Loc, flattened: _Flattened) -> Problem:
    key, section = str(loc[-1]), _model_at(loc[:-1])
    known = list(section.model_fields) if section else []
    near = _near(loc)
    homes = [path for path in key_paths() if path.rpartition(".")[2] == key]
    if key == "<<":
        hint = "merge keys are not part of YAML 1.2; write the values out"
    elif near:
        hint = f"did you mean {near}?"
    elif homes:
        hint = f"did you mean {' or '.join(homes[:3])}? indent it below its section"
    else:
        place = f"{dotted(loc[:-1])} has" if len(loc) > 1 else "a recipe has"
        hint = f"{place}: {', '.join(known)}; keys of your own begin with x-"
    strange = strange_letters(key)
    message = f"unknown key; it has {strange}" if strange else "unknown key"
    where = flattened.place(loc, of_key=True)
    return Problem(code=UNKNOWN, message=message, path=dotted(loc), where=where, hint=hint)


def _near(loc: Loc) -> str | None:
    """The key of that section that `loc` is nearest to."""
    section = _model_at(loc[:-1])
    return nearest(str(loc[-1]), list(section.model_fields)) if section else None


def _contradictions(recipe: Recipe, flattened: _Flattened) -> Iterator[Problem]:
    """What each key allows and the two together do not."""
    port = recipe.observability.metrics_port
    api_port = DEFAULT_PORT if recipe.serve.port is None else recipe.serve.port
    if port is not None and port == api_port:
        yield Problem(
            code=CONTRADICTION,
            message=f"the API and the metrics cannot both listen on port {port}",
            path="observability.metrics_port",
            where=flattened.place(("observability", "metrics_port")),
            hint="write another port, or leave the key out: the API serves /metrics too",
        )
    if recipe.kv.size is not None and recipe.kv.blocks is not None:
        yield Problem(
            code=CONTRADICTION,
            message="kv.size and kv.blocks both set the size of the cache",
            path="kv.blocks",
            where=flattened.place(("kv", "blocks"), of_key=True),
            hint="keep one of them",
        )


def _in_order(problems: list[Problem], path: Path) -> list[Problem]:
    """By file (the recipe first) and line; one problem of a kind for each key."""
    unique = {(problem.path, problem.code, problem.where): problem for problem in problems}
    empty = {problem.path for problem in problems if problem.code == EMPTY}
    kept = (p for p in unique.values() if not (p.code == MISSING and p.path in empty))

    def place(problem: Problem) -> tuple[bool, str, int, int]:
        where = problem.where or Where(str(path))
        return where.file != str(path), where.file, where.line, where.column

    return sorted(kept, key=place)


def _field_at(loc: Loc) -> FieldInfo | None:
    model = _model_at(loc[:-1])
    return model.model_fields.get(str(loc[-1])) if model else None


def _model_at(loc: Loc) -> type[BaseModel] | None:
    model: type[BaseModel] | None = Recipe
    for part in loc:
        field = model.model_fields.get(str(part)) if model else None
        model = section_of(field) if field else None
    return model


def _example(field: FieldInfo | None) -> str:
    if field is None:
        return ""
    if field.examples:
        return f"for example {show_example(field.examples[0])}"
    inner = section_of(field)
    return f"its keys are {', '.join(inner.model_fields)}" if inner else ""


def show_example(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(str(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    return show(value).strip("'")
