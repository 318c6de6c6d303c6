"""What differs between two plans, field by field, with what each side says about why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenspeed.plan import Plan
from tokenspeed.recipe.kinds import format_size
from tokenspeed.resolve.ledger import Decision
from tokenspeed.resolve.lock import Lock, plain

# The name of a list's entry, where it has one: entries are compared by it, not by their position.
_NAMES = {
    "plan.kernels": ("op", "variant"),
    "plan.memory.items": ("name",),
    "plan.model.files": ("name",),
    "plan.unmet": ("need",),
    "plan.cache.tiers": ("name",),
    "plan.cache.groups": ("kind",),
    "plan.model.weights": ("name",),
    "plan.prediction.steps": ("context", "batch"),
    "files": ("name",),
}
# Said about a value, not a value: they change with it, and are shown as its reason.
_TALK = ("reason", "rejected", "note", "detail")
# Says nothing that another field does not say.
_DERIVED = (
    *("digests", "recipe", "why", "version", "plan.version", "plan.model.files"),
    "plan.prediction.assumptions",
)
# Of a predicted step, what the rest follows from.
_PREDICTED = "step_s"
# Causes before what follows from them.
_ORDER = ("name", "wishes", "versions", "hardware", "files", "plan")
PREDICTION = "plan.prediction"


@dataclass(frozen=True, slots=True)
class View:
    """A plan to compare: values by dotted field, and reasons for some of them.

    `parts` are the first words of its fields: only parts that both sides have are compared.
    """

    fields: Mapping[str, Any]
    reasons: Mapping[str, str]
    parts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Difference:
    """`before` or `after` is None where that side has no such field. Reasons are "" where nobody
    gave one."""

    field: str
    before: Any
    after: Any
    reason_before: str
    reason_after: str

    def __str__(self) -> str:
        before, after = self.values()
        return f"{self.field}: {before} -> {after}"

    def values(self) -> tuple[str, str]:
        """Both for people; sizes with units, unless that would make them look alike."""
        before, after = say(self.field, self.before), say(self.field, self.after)
        return (before, after) if before != after else (str(self.before), str(self.after))


def say(field: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(say("", item) for item in value) or "-"
    if "bytes" in field.rpartition(".")[2] and isinstance(value, int):
        return format_size(value)
    if field.endswith(f".{_PREDICTED}"):
        return f"{1000 * value:.4g} ms"
    return str(value)


def view_of_plan(plan: Plan, decisions: tuple[Decision, ...] = ()) -> View:
    """Of a plan alone, as `plan.json` has it, or with its decisions."""
    why = {decision.field: f"{decision.source}: {decision.reason}" for decision in decisions}
    return _view({"plan": plain(plan)}, plan, why)


def view_of_lock(lock: Lock) -> View:
    return _view(plain(lock), lock.plan, lock.why)


def differences(before: View, after: View) -> tuple[Difference, ...]:
    """In the order of the fields, causes before what follows from them."""
    parts = before.parts & after.parts
    names = sorted(
        dict.fromkeys((*before.fields, *after.fields)),
        key=lambda name: _ORDER.index(name.partition(".")[0]),
    )
    return tuple(
        Difference(
            name,
            before.fields.get(name),
            after.fields.get(name),
            before.reasons.get(name, ""),
            after.reasons.get(name, ""),
        )
        for name in names
        if name.partition(".")[0] in parts and before.fields.get(name) != after.fields.get(name)
    )


def _view(data: dict[str, Any], plan: Plan, why: Mapping[str, str]) -> View:
    fields = {
        name: value
        for name, value in _flat(data, "")
        if not any(name == part or name.startswith(f"{part}.") for part in _DERIVED)
    }
    reasons = {f"plan.{field}": text for field, text in why.items()}
    for choice in plan.kernels:
        name = f"plan.kernels.{':'.join(filter(None, (choice.op, choice.variant)))}.kernel"
        reasons[name] = choice.reason
    for item in plan.memory.items:
        reasons[f"plan.memory.items.{item.name}.bytes"] = item.note
    for unmet in plan.unmet:
        reasons[f"plan.unmet.{unmet.need}"] = unmet.detail
    return View(fields, reasons, frozenset(name.partition(".")[0] for name in fields))


def _flat(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in _TALK:
                yield from _flat(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list) and path in _NAMES:
        keys = _NAMES[path]
        for item in node:
            name = ":".join(str(item[key]) for key in keys if item[key] != "")
            rest = {key: value for key, value in item.items() if key not in keys}
            if path == f"{PREDICTION}.steps":
                rest = {_PREDICTED: item[_PREDICTED]}
            left = [key for key in rest if key not in _TALK]
            if left:
                yield from _flat(rest, f"{path}.{name}")
            else:
                yield f"{path}.{name}", True
    elif isinstance(node, list) and any(isinstance(item, dict | list) for item in node):
        for index, item in enumerate(node):
            yield from _flat(item, f"{path}.{index}")
    else:
        yield path, node
