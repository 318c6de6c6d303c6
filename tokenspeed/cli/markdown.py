"""A plan as Markdown, for a review: everything the page says, with every kernel's own losers."""

from __future__ import annotations

from collections.abc import Iterable

from tokenspeed.cli.planning import Planned
from tokenspeed.cli.values import value_text
from tokenspeed.plan import KernelChoice, Plan
from tokenspeed.recipe.kinds import format_size


def print_plan(planned: Planned, with_origin: bool) -> None:
    print(plan_markdown(planned, with_origin), end="")


def plan_markdown(planned: Planned, with_origin: bool) -> str:
    plan = planned.resolution.plan
    parts = [_head(plan)]
    if plan.unmet:
        rows = ((unmet.need, unmet.detail) for unmet in plan.unmet)
        parts.append("## Cannot run here\n\n" + _table(("need", "detail"), rows))
    parts.append(_memory(plan))
    columns = ("what", "value", "from", "why", *(("origin",) if with_origin else ()))
    decisions = (
        (
            f"`{decision.field}`",
            value_text(decision.field, decision.value),
            decision.source,
            decision.reason,
            *((decision.origin or "",) if with_origin else ()),
        )
        for decision in planned.resolution.decisions
    )
    parts.append("## Decisions\n\n" + _table(columns, decisions))
    parts.append("## Kernels\n\n" + _kernels(plan.kernels))
    return "\n".join(parts)


def _head(plan: Plan) -> str:
    count = f"{plan.device.count} x " if plan.device.count > 1 else ""
    return (
        f"# {plan.name}\n\n`{plan.model.source}` on {count}{plan.device.name} "
        f"({plan.hardware}), plan `{plan.digest()[:12]}`\n"
    )


def _memory(plan: Plan) -> str:
    memory = plan.memory
    title = f"{format_size(memory.budget_bytes)} of {format_size(memory.device_bytes)}"
    rows = (
        (
            item.name,
            format_size(item.bytes),
            f"{100 * item.bytes / memory.budget_bytes:.1f} %",
            item.note,
        )
        for item in memory.items
    )
    return f"## Memory of a rank: {title}\n\n" + _table(("item", "size", "share", "note"), rows)


def _kernels(kernels: tuple[KernelChoice, ...]) -> str:
    rows = []
    for choice in kernels:
        op = f"{choice.op} {choice.variant}".rstrip()
        rows.append((op, f"**{choice.kernel}**", choice.reason))
        rows += [("", f"not {loser.kernel}", loser.reason) for loser in choice.rejected]
    return _table(("op", "kernel", "why"), rows)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
