"""What of a changed recipe a running instance can take over, and what the rest needs.

Each recipe key says in the schema what a change of it costs (`x-reload`). The live ones are read
by the front alone: a reload puts their part of the new plan into the plan that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tokenspeed.appliance.order import Order
from tokenspeed.plan import Plan
from tokenspeed.recipe.kinds import show
from tokenspeed.recipe.schema import reload_cost

# A live key and the field of the plan that it comes to.
LIVE = {
    "model.served_names": "model.served_names",
    "limits.max_waiting": "scheduler.max_waiting",
    "serve.drain": "serve.drain_seconds",
    "serve.api_keys": "serve.api_keys",
    "serve.log_requests": "serve.log_requests",
    "serve.sampling": "serve.sampling",
    "advanced.max_body": "serve.max_body_bytes",
    "advanced.max_choices": "serve.max_choices",
    "advanced.timeout": "serve.timeout_seconds",
}
NEEDS = {
    "drain": "a restart of the front, once open requests have ended",
    "restart": "a restart with new workers",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value differs, as people write it; `needs` is "" where it was taken over."""

    key: str
    before: str
    after: str
    needs: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The plan to go on with, and what became of each changed key. `moved`: what runs would also
    differ for another reason than the recipe, such as other weights or another machine."""

    plan: Plan
    changes: tuple[Change, ...]
    moved: bool

    @property
    def complete(self) -> bool:
        """Whether the new plan is taken over as a whole."""
        return not self.moved and not any(change.needs for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        return {
            "changes": [asdict(change) for change in self.changes],
            "moved": self.moved,
            "complete": self.complete,
        }


def reloaded(running: Order, wanted: Order) -> Reloaded:
    """`wanted` is the order of the recipe as it is now."""
    changes = []
    plan = running.plan
    for key in dict.fromkeys((*running.wishes, *wanted.wishes)):
        before, after = running.wishes.get(key), wanted.wishes.get(key)
        if before == after:
            continue
        cost = reload_cost(key)
        changes.append(Change(key, _said(before), _said(after), NEEDS.get(cost, "")))
        field = LIVE.get(key) or LIVE.get(key.rpartition(".")[0])
        if cost == "live" and field is not None:
            plan = _with(plan, wanted.plan, field)
    others = [change for change in changes if change.needs]
    return Reloaded(plan, tuple(changes), moved=not others and plan != wanted.plan)


def taken_over(wishes: Mapping[str, Any], wanted: Order, result: Reloaded) -> dict[str, Any]:
    """The wishes that hold after a reload: the new value of each key that was taken over."""
    held = dict(wishes)
    for change in result.changes:
        if not change.needs:
            held.pop(change.key, None)
            if change.key in wanted.wishes:
                held[change.key] = wanted.wishes[change.key]
    return held


def _with(plan: Plan, other: Plan, field: str) -> Plan:
    """`plan` with one field of `other`, such as serve.drain_seconds."""
    section, _, name = field.partition(".")
    value = getattr(getattr(other, section), name)
    changed: Any = replace(getattr(plan, section), **{name: value})
    return replace(plan, **{section: changed})


def _said(value: Any) -> str:
    return "not set" if value is None else show(value)
