"""`when`: parts of a recipe that hold on some machines only.

    when:
      - if: {arch: [sm_100, sm_103], count: ">=4", memory: ">=140GiB", link: nvlink}
        then:
          kv: {dtype: fp8}

All conditions of an `if` must hold. The parts are put over the recipe in their order.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from tokenspeed.errors import Problem, Where
from tokenspeed.recipe.document import Entry, Mapping, Scalar, Sequence, Tree
from tokenspeed.recipe.kinds import SIZE_UNITS, show
from tokenspeed.recipe.words import nearest

BAD_WHEN = "TS-R031"

_COMPARISON = re.compile(r"(?P<sign>>=|<=|>|<|) ?(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>\w*)")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
LINKS = ("none", "pcie", "nvlink", "xgmi")
DEVICES = ("cpu", "cuda", "rocm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What conditions may ask of a machine.

    `device` is what kind of device would compute, `arch` its architecture ("sm_90", "gfx950", of a
    CPU "x86_64"), `memory_bytes` that of one device, `count` how many equal ones there are, `link`
    what joins them: "none", "pcie", "nvlink" or "xgmi".
    """

    device: str
    arch: str
    memory_bytes: int
    count: int
    link: str


@dataclass(frozen=True, slots=True)
class Branch:
    """One entry of `when`: conditions, and what to put over the recipe where all of them hold."""

    conditions: tuple[Entry, ...]
    then: Mapping
    where: Where

    def holds(self, facts: Facts) -> bool:
        return all(_holds(entry, facts) for entry in self.conditions)

    def __str__(self) -> str:
        asked = (f"{entry.key} {_words(entry.value)}" for entry in self.conditions)
        return " and ".join(asked)


def read_branches(value: Tree, problems: list[Problem]) -> tuple[Branch, ...]:
    """The entries of `when`; what is wrong with them is added to `problems`."""
    if not isinstance(value, Sequence):
        hint = "write a list: - if: {arch: sm_90} and below it then: with the keys"
        problems.append(_fault("when", "this is not a list of conditions", value.where, hint))
        return ()
    found = (_branch(item, f"when[{index}]", problems) for index, item in enumerate(value.items))
    return tuple(branch for branch in found if branch is not None)


def _branch(item: Tree, path: str, problems: list[Problem]) -> Branch | None:
    parts = {entry.key: entry for entry in item.entries} if isinstance(item, Mapping) else {}
    before = len(problems)
    for key in ("if", "then"):
        if key not in parts:
            hint = f"write {key}: with its keys below it"
            problems.append(_fault(f"{path}.{key}", f"{key} is missing", item.where, hint))
        elif not isinstance(parts[key].value, Mapping) or not _entries(parts[key]):
            hint = "indent its keys below it"
            problems.append(_fault(f"{path}.{key}", f"{key} has no keys", parts[key].where, hint))
    for key, entry in parts.items():
        if key not in ("if", "then") and not key.startswith("x-"):
            hint = "an entry has if: and then:, nothing else"
            problems.append(_fault(f"{path}.{key}", "unknown key", entry.where, hint))
    if len(problems) > before:
        return None
    then = parts["then"].value
    assert isinstance(then, Mapping)
    for entry in then.entries:
        if entry.key in ("extends", "when", "version", "name"):
            hint = "write it at the root of the file"
            message = f"{entry.key} cannot depend on the machine"
            problems.append(_fault(f"{path}.then.{entry.key}", message, entry.where, hint))
    conditions = _entries(parts["if"])
    for entry in conditions:
        _check(entry, f"{path}.if.{entry.key}", problems)
    return Branch(conditions, then, item.where) if len(problems) == before else None


def _entries(part: Entry) -> tuple[Entry, ...]:
    return part.value.entries if isinstance(part.value, Mapping) else ()


def _check(entry: Entry, path: str, problems: list[Problem]) -> None:
    """Adds what keeps the condition from being asked of a machine."""
    checks = {
        "arch": _check_words(None),
        "device": _check_words(DEVICES),
        "link": _check_words(LINKS),
        "memory": _check_size,
        "count": _check_count,
    }
    if entry.key not in checks:
        near = nearest(entry.key, tuple(checks))
        hint = f"did you mean {near}?" if near else f"ask for {', '.join(checks)}"
        problems.append(_fault(path, "unknown condition", entry.where, hint))
        return
    hint = checks[entry.key](entry.value)
    if hint:
        message = f"{_words(entry.value)} is not a condition of {entry.key}"
        problems.append(_fault(path, message, entry.value.where, hint))


def _check_words(known: tuple[str, ...] | None) -> Callable[[Tree], str]:
    example = " or ".join(known) if known else "sm_90, or a list of such words"

    def check(value: Tree) -> str:
        words = _list(value)
        good = words and all(isinstance(w, str) and (known is None or w in known) for w in words)
        return "" if good else f"write {example}"

    return check


def _check_size(value: Tree) -> str:
    match = _match(value)
    good = match is not None and match["unit"] in SIZE_UNITS
    return "" if good else 'write a sign and a size: ">=80GiB"'


def _check_count(value: Tree) -> str:
    match = _match(value)
    good = match is not None and not match["unit"] and "." not in match["number"]
    return "" if good else 'write a number, or a sign and a number: ">=4"'


def _match(value: Tree) -> re.Match[str] | None:
    if not isinstance(value, Scalar) or isinstance(value.value, bool | float):
        return None
    return _COMPARISON.fullmatch(str(value.value))


def _holds(entry: Entry, facts: Facts) -> bool:
    if entry.key in ("arch", "device", "link"):
        return getattr(facts, entry.key) in _list(entry.value)
    match = _match(entry.value)
    assert match is not None, "conditions are checked when they are read"
    bound = float(match["number"]) * SIZE_UNITS.get(match["unit"], 1)
    actual = facts.memory_bytes if entry.key == "memory" else facts.count
    return _SIGNS[match["sign"]](actual, bound)


def _list(value: Tree) -> list[object]:
    if isinstance(value, Sequence):
        return [item.value for item in value.items if isinstance(item, Scalar)]
    return [value.value] if isinstance(value, Scalar) else []


def _words(value: Tree) -> str:
    words = _list(value)
    if not words:
        return show({})
    return " or ".join(str(word) for word in words)


def _fault(path: str, message: str, where: Where, hint: str) -> Problem:
    return Problem(code=BAD_WHEN, message=message, path=path, where=where, hint=hint)
