"""A plan as Markdown, for a review: everything the page says, with every kernel's own losers."""

from __future__ import annotations

from collections.abc import Iterable

from tokenspeed.cli.planning import Planned
from tokenspeed.cli.values import milliseconds, value_text
from tokenspeed.plan import KernelChoice, Plan, PredictionPlan
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
    if plan.prediction.steps or plan.prediction.note:
        parts.append("## Speed, predicted\n\n" + _speed(plan.prediction))
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
    parts.append("## Kernels\n\n" + kernels_markdown(plan.kernels))
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


def _speed(prediction: PredictionPlan) -> str:
    columns = ("context", "batch", "step", "fastest", "slowest", "tok/s user", "tok/min GPU")
    rows = (
        (
            str(step.context),
            str(step.batch),
            milliseconds(step.step_s),
            milliseconds(step.fast_s),
            milliseconds(step.slow_s),
            f"{step.tokens_per_s_user:.0f}",
            f"{step.tokens_per_min_device:,.0f}",
            step.bound if step.fits else f"{step.bound}; no room",
        )
        for step in prediction.steps
    )
    text = _table((*columns, "bound by"), rows) if prediction.steps else ""
    factors = (
        (one.name, f"{one.expected:g}", f"{one.fast:g} to {one.slow:g}", one.source)
        for one in prediction.assumptions
    )
    if prediction.assumptions:
        text += "\n" + _table(("assumed", "expected", "band", "source"), factors)
    return "\n".join(filter(None, (prediction.note, text)))


def kernels_markdown(kernels: tuple[KernelChoice, ...]) -> str:
    """For each op the winner and why, and below it each loser with the requirement it missed."""
    rows = []
    for choice in kernels:
        op = f"{choice.op} {choice.variant}".rstrip()
        rows.append((op, f"**{choice.kernel or 'none'}**", choice.reason))
        rows += [("", f"not {loser.kernel}", loser.reason) for loser in choice.rejected]
    return _table(("op", "kernel", "why"), rows)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
