"""The page of a plan: what will run, where the memory goes, how fast, and then why.

Drawn for a given number of columns, 60 or more. Where a table of four columns has no room, its
reasons go below their lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tokenspeed.cli.planning import Planned
from tokenspeed.cli.values import milliseconds, value_text
from tokenspeed.plan import KernelChoice, MemoryPlan, Plan, PredictionPlan
from tokenspeed.recipe.kinds import format_size
from tokenspeed.resolve.ledger import RECIPE, Decision

LEAST_COLUMNS = 60
# Reasons stand beside what they explain where at least so many columns are left for them.
_REASON_COLUMNS = 34
_NOTE_COLUMNS = 30
_BAR_COLUMNS = (12, 30)
# Both edges of the band stand beside a predicted step where the page is so wide.
_SPEED_COLUMNS = 76
_INDENT = 2
_GAP = 2  # between the columns of a table
SOURCE_STYLES = {"recipe": "cyan", "model": "magenta", "hardware": "yellow", "default": "dim"}
_ITEM_STYLES = ("blue", "green", "magenta", "yellow", "cyan", "red")
_OUTRANKED = " comes first"
AS_SAID = "as the recipe says"
DITTO = '"'


def plan_page(planned: Planned, with_origin: bool, columns: int) -> Group:
    """Everything there is to know before anything is started."""
    plan, width = planned.resolution.plan, max(columns, LEAST_COLUMNS) - _INDENT
    parts = [_header(planned)]
    if plan.unmet:
        parts.append(section("cannot run here: `up` would refuse this plan", _unmet(plan, width)))
    parts.append(section(_memory_title(plan), _memory(plan.memory, width)))
    if plan.prediction.steps or plan.prediction.note:
        parts.append(section("speed, predicted", _speed(plan.prediction, width)))
    parts.append(section("decisions", _decisions(planned, with_origin, width)))
    parts.append(section("kernels", _kernels(plan.kernels, width)))
    parts.append(section("kernels passed over", _passed_over(plan.kernels, width)))
    return Group(*parts)


def section(title: str | Text, body: Table | Group) -> Group:
    heading = title if isinstance(title, Text) else Text(title, style="bold")
    return Group(Text(), heading, Padding(body, (0, 0, 0, _INDENT)))


def grid(*columns: str, flexible: int) -> Table:
    """A table without lines; the column at index `flexible` wraps, the others keep their width."""
    table = Table(box=None, show_header=bool(columns[0]), pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index != flexible, overflow="fold")
    return table


# ---- what


def _header(planned: Planned) -> Group:
    plan = planned.resolution.plan
    count = f"{plan.device.count} x " if plan.device.count > 1 else ""
    weights = "random weights" if plan.model.load == "dummy" else plan.model.container
    title = Text.assemble((plan.name, "bold"), "  ", (plan.digest()[:12], "dim"))
    lines = [title, Text(f"{plan.model.source}, {weights}")]
    lines.append(Text(f"on {count}{plan.device.name} ({plan.hardware})"))
    for branch in planned.loaded.held:
        place = short_origin(str(branch.where), planned, whole=False)
        lines.append(Text(f"with what {place} says when {branch}", style="dim"))
    lines += [Text(f"note: {note}", style="dim") for note in planned.hardware.notes]
    return Group(*lines)


def _unmet(plan: Plan, width: int) -> Table | Group:
    longest = max(len(unmet.need) for unmet in plan.unmet)
    if width - longest - 1 < _REASON_COLUMNS:
        lines: list[Text | Padding] = []
        for unmet in plan.unmet:
            lines.append(Text(unmet.need, style="bold red"))
            lines.append(Padding(Text(unmet.detail), (0, 0, 0, _INDENT)))
        return Group(*lines)
    table = grid("", "", flexible=1)
    for unmet in plan.unmet:
        table.add_row(Text(unmet.need, style="bold red"), Text(unmet.detail))
    return table


def _memory_title(plan: Plan) -> Text:
    memory = plan.memory
    budget, device = format_size(memory.budget_bytes), format_size(memory.device_bytes)
    rank = "memory" if plan.parallel.world_size == 1 else "memory of each rank"
    return Text(f"{rank}: {budget} of {device}", style="bold")


def _memory(memory: MemoryPlan, width: int) -> Table | Group:
    names = max(len(item.name) for item in memory.items)
    fixed = names + len("1023.9MiB") + len("100.0 %") + 3 * _GAP
    beside = width - fixed - _BAR_COLUMNS[0] - _GAP >= _NOTE_COLUMNS
    room = width - fixed - (_GAP + _NOTE_COLUMNS if beside else 0)
    columns = max(_BAR_COLUMNS[0], min(_BAR_COLUMNS[1], room))
    table = grid("", "", "", "", *("",) * beside, flexible=4)
    table.columns[1].justify = table.columns[3].justify = "right"
    table.columns[2].width = columns
    for index, item in enumerate(memory.items):
        share = item.bytes / memory.budget_bytes
        style = "dim" if item.name == "headroom" else _ITEM_STYLES[index % len(_ITEM_STYLES)]
        cells = [
            Text(item.name),
            Text(format_size(item.bytes), style="bold"),
            Text(bar(share, columns), style=style),
            Text(f"{100 * share:.1f} %"),
        ]
        table.add_row(*cells, *([Text(item.note, style="dim")] if beside else []))
    if beside:
        return table
    notes = [Text.assemble((f"{item.name}: ", "none"), (item.note, "dim")) for item in memory.items]
    return Group(table, Text(), *notes)


def bar(share: float, columns: int) -> str:
    """A bar of at most `columns`, to an eighth of a column; anything above 0 can be seen."""
    eighths = round(max(0.0, min(1.0, share)) * columns * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def _speed(prediction: PredictionPlan, width: int) -> Table | Group:
    """Decode steps, by context and batch; what the cache does not hold is there, but dim."""
    if not prediction.steps:
        return Group(Text(prediction.note))
    wide = width >= _SPEED_COLUMNS
    band = ("fastest", "slowest") if wide else ()
    table = grid(
        "context", "batch", "step", *band, "tok/s user", "tok/min GPU", "bound by", flexible=9
    )
    for column in table.columns[:-1]:
        column.justify = "right"
    context = None
    for step in prediction.steps:
        edges = (milliseconds(step.fast_s), milliseconds(step.slow_s)) if wide else ()
        table.add_row(
            Text("" if step.context == context else str(step.context)),
            Text(str(step.batch)),
            Text(milliseconds(step.step_s), style="bold"),
            *map(Text, edges),
            Text(f"{step.tokens_per_s_user:.0f}"),
            Text(f"{step.tokens_per_min_device:,.0f}"),
            Text(step.bound if step.fits else f"{step.bound}; no room"),
            style="" if step.fits else "dim",
        )
        context = step.context
    return Group(table, *([Text(prediction.note, style="dim")] if prediction.note else []))


# ---- why


def _decisions(planned: Planned, with_origin: bool, width: int) -> Group:
    """By the part of the plan that they decide, in the order in which they were made."""
    decisions = planned.resolution.decisions
    parts = dict.fromkeys(_part(decision) for decision in decisions)
    ordered = sorted(decisions, key=lambda decision: list(parts).index(_part(decision)))
    values = [value_text(decision.field, decision.value) for decision in decisions]
    # One ruler for all parts; a value that is longer than most wraps.
    names = max(len(_rest(decision)) for decision in decisions)
    value = min(max(map(len, values)), max(12, width // 4))
    tables: list[Text | Padding] = []
    for part, group in groupby(ordered, _part):
        if part:
            tables.append(Text(part, style="underline dim"))
        body = _part_table(list(group), with_origin, width - _INDENT, names, value, planned)
        tables.append(Padding(body, (0, 0, 0, _INDENT)))
    return Group(*tables)


def _part_table(
    decisions: list[Decision],
    with_origin: bool,
    width: int,
    names: int,
    value: int,
    planned: Planned,
) -> Table | Group:
    reasons = _reasons(decisions, with_origin, planned)
    if width - names - value - len("hardware") - 3 < _REASON_COLUMNS:
        return _stacked(decisions, reasons, names, value)
    table = grid("", "", "", "", flexible=3)
    table.columns[0].width, table.columns[2].width = names, len("hardware")
    table.columns[1].width, table.columns[1].no_wrap = value, False
    for decision, reason in zip(decisions, reasons, strict=True):
        table.add_row(
            Text(_rest(decision)),
            Text(value_text(decision.field, decision.value), style="bold"),
            Text(decision.source, style=SOURCE_STYLES[decision.source]),
            Text(reason),
        )
    return table


def _stacked(decisions: list[Decision], reasons: list[str], names: int, value: int) -> Group:
    """Each decision on a line, its reason below it, said once for those that share it."""
    lines: list[Text | Padding] = []
    for decision, reason in zip(decisions, reasons, strict=True):
        said = value_text(decision.field, decision.value)
        brief = decision.source == RECIPE
        line = Text.assemble(
            _rest(decision).ljust(names + 1),
            (said, "bold"),
            " " * max(1, value + 1 - len(said)),
            (decision.source, SOURCE_STYLES[decision.source]),
        )
        if brief:
            line.append(f" {reason}", style="dim")
        lines.append(line)
        if not brief and reason != DITTO:
            lines.append(Padding(Text(reason, style="dim"), (0, 0, 0, 2 * _INDENT)))
    return Group(*lines)


def _reasons(decisions: list[Decision], with_origin: bool, planned: Planned) -> list[str]:
    """Why, and for a wish where it is said; a reason that repeats the one above is a ditto mark."""
    found: list[str] = []
    last = ""
    for decision in decisions:
        reason = decision.reason
        if decision.origin and (with_origin or reason == AS_SAID):
            place = short_origin(decision.origin, planned, with_origin)
            reason = place if reason == AS_SAID else f"{reason} ({place})"
        found.append(DITTO if reason == last else reason)
        last = reason
    return found


def short_origin(origin: str, planned: Planned, whole: bool) -> str:
    """`line 9` of the recipe itself, or the `whole` place; another file's without the folder."""
    own = f"{planned.loaded.file}:"
    if origin.startswith(own) and not whole:
        return f"line {origin.removeprefix(own).partition(':')[0]}"
    folder = str(planned.loaded.file.parent)
    return origin.removeprefix(f"{folder}/")


def _part(decision: Decision) -> str:
    return decision.field.partition(".")[0] if "." in decision.field else "instance"


def _rest(decision: Decision) -> str:
    return decision.field.partition(".")[2] or decision.field


# ---- kernels


def _kernels(kernels: tuple[KernelChoice, ...], width: int) -> Table | Group:
    ops = [f"{choice.op} {choice.variant}".rstrip() for choice in kernels]
    left = width - max(map(len, ops)) - max(len(choice.kernel) for choice in kernels) - 2
    if left < _REASON_COLUMNS:
        lines: list[Text | Padding] = []
        for op, choice in zip(ops, kernels, strict=True):
            lines.append(Text(f"{op.ljust(max(map(len, ops)))} ").append(_winner(choice)))
            lines.append(Padding(Text(choice.reason, style="dim"), (0, 0, 0, 2 * _INDENT)))
        return Group(*lines)
    table = grid("op", "kernel", "why", flexible=2)
    for op, choice in zip(ops, kernels, strict=True):
        table.add_row(Text(op), _winner(choice), Text(choice.reason))
    return table


def _winner(choice: KernelChoice) -> Text:
    return Text(choice.kernel, style="bold") if choice.kernel else Text("none", style="bold red")


def _passed_over(kernels: tuple[KernelChoice, ...], width: int) -> Group:
    """Every loser, below the requirement that it missed."""
    lines: list[Text | Padding] = []
    for reason, names in losers(kernels).items():
        lines.append(Text(reason))
        lines.append(Padding(Text(folded(names), style="dim"), (0, 0, 0, 2 * _INDENT)))
    return Group(*lines) if lines else Group(Text("none", style="dim"))


def losers(kernels: Iterable[KernelChoice]) -> Mapping[str, tuple[str, ...]]:
    """reason -> kernels turned down for it, most of them first. Those that would have done, had
    another not come first, are one group whoever that was."""
    grouped: dict[str, dict[str, None]] = {}
    for choice in kernels:
        for rejection in choice.rejected:
            outranked = rejection.reason.endswith(_OUTRANKED)
            reason = "meets the need, a better one comes first" if outranked else rejection.reason
            grouped.setdefault(reason, {})[rejection.kernel] = None
    ranked = sorted(grouped.items(), key=lambda item: -len(item[1]))
    return {reason: tuple(names) for reason, names in ranked}


def folded(names: Iterable[str]) -> str:
    """rms_norm_avx2, rms_norm_portable, sample_avx2 -> rms_norm_{avx2, portable}, sample_avx2"""
    stems: dict[str, list[str]] = {}
    for name in names:
        stem, _, last = name.rpartition("_")
        stems.setdefault(stem, []).append(last)
    return ", ".join(
        f"{stem}_{{{', '.join(ends)}}}" if len(ends) > 1 else f"{stem}_{ends[0]}".lstrip("_")
        for stem, ends in stems.items()
    )
