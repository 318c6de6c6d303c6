"""What instances on one machine need together: two plans that fit alone may not fit beside each
other."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenspeed.appliance.instance import Record, records
from tokenspeed.errors import Problem, TryAgainError
from tokenspeed.files import read_regular
from tokenspeed.plan import Plan

HEADROOM = "headroom"  # what a plan leaves free on purpose


def needed_bytes(plan: Plan) -> int:
    """Of one device, or of the host where it computes on the CPU."""
    return sum(item.bytes for item in plan.memory.items if item.name != HEADROOM)


def require_room(own: Record, plan: Plan, roots: Iterable[Path]) -> None:
    """Raises TryAgainError when the plans of those that began before and this one need more of
    their device than any of them would take.

    Of two that start at one moment the later one gives way, so they need no lock.
    """
    others = [
        (record, other)
        for root in roots
        for record in records(root)
        if _is_before(record, own) and (other := _plan_of(record)) is not None
        if other.device.kind == plan.device.kind
    ]
    # Ranks take the devices in order, so every plan of a kind is on the first one.
    taken = sum(needed_bytes(other) for _, other in others)
    budget = max([plan.memory.budget_bytes, *(other.memory.budget_bytes for _, other in others)])
    if taken == 0 or taken + needed_bytes(plan) <= budget:
        return
    names = ", ".join(record.name for record, _ in others)
    short = taken + needed_bytes(plan) - budget
    raise TryAgainError(
        Problem(
            code="TS-S206",
            message=f"{own.name} needs {_gib(needed_bytes(plan))} and {names} {_gib(taken)} of "
            f"{_gib(budget)} on {plan.device.name}: {_gib(short)} too much",
            hint=f"`tokenspeed down` one of them{_smaller_cache(plan, short)}",
        )
    )


def _is_before(record: Record, own: Record) -> bool:
    return (record.start_ticks, record.pid) < (own.start_ticks, own.pid)


def _plan_of(record: Record) -> Plan | None:
    try:
        return Plan.from_json(read_regular(record.folder / "plan.json"))
    except (OSError, ValueError):
        return None  # it ends just now, or was started by another version


def _smaller_cache(plan: Plan, short: int) -> str:
    cache = next((item.bytes for item in plan.memory.items if item.name == "kv cache"), 0)
    left = (cache - short) // 2**20
    return f", or let this one have less cache: --set kv.size={left}MiB" if left > 0 else ""


def _gib(count: int) -> str:
    return f"{count / 2**30:.3g}GiB"
