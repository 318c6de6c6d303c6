"""Plans and errors on a terminal. The only module of the planning verbs that imports rich."""

from __future__ import annotations

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tokenspeed.cli.planning import Planned
from tokenspeed.plan import KernelChoice, MemoryPlan, Plan
from tokenspeed.recipe.kinds import format_size
from tokenspeed.resolve.ledger import Decision, Value

# Where there is no terminal to ask; wide enough that most reasons stay on one line.
_PIPE_COLUMNS = 120
_ORIGIN_COLUMNS = 180
_BAR_COLUMNS = 30
_SOURCE_STYLES = {"recipe": "cyan", "model": "magenta", "hardware": "yellow", "default": "dim"}
_ITEM_STYLES = ("blue", "green", "magenta", "yellow", "cyan", "red")


def print_plan(planned: Planned, with_origin: bool) -> None:
    console = Console()
    if console.is_terminal:
        console.print(plan_page(planned, with_origin))
    else:
        print(plain_text(plan_page(planned, with_origin), with_origin), end="")


def plain_text(page: Group, with_origin: bool) -> str:
    """The page as a pipe or a file gets it: no colour, no blanks at the ends of lines."""
    console = Console(width=_ORIGIN_COLUMNS if with_origin else _PIPE_COLUMNS, no_color=True)
    with console.capture() as captured:
        console.print(page)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def plan_page(planned: Planned, with_origin: bool) -> Group:
    plan = planned.resolution.plan
    parts = [
        _header(plan, planned),
        _section("decisions", _decisions(planned.resolution.decisions, with_origin)),
        _section("kernels", _kernels(plan.kernels)),
        _section(_memory_title(plan), _memory(plan.memory)),
    ]
    if plan.unmet:
        parts.append(_section("not offered here: `up` would refuse this plan", _unmet(plan)))
    return Group(*parts)


def print_error(text: str) -> None:
    """`text` as `messages.render` makes it, coloured."""
    Console(stderr=True, soft_wrap=True).print(error_text(text), end="")


def _header(plan: Plan, planned: Planned) -> Group:
    count = f"{plan.device.count} x " if plan.device.count > 1 else ""
    weights = "random weights" if plan.model.load == "dummy" else plan.model.container
    title = Text.assemble((plan.name, "bold"), "  ", (plan.digest()[:12], "dim"))
    lines = [
        title,
        Text(f"{plan.model.source} ({weights}) on {count}{plan.device.name}, {plan.hardware}"),
        *(Text(f"note: {note}", style="dim") for note in planned.hardware.notes),
    ]
    return Group(*lines)


def _section(title: str, body: Table) -> Group:
    return Group(Text(), Text(title, style="bold"), Padding(body, (0, 0, 0, 2)))


def _grid(*columns: str, flexible: int) -> Table:
    """A table without lines; the column at index `flexible` wraps, the others keep their width."""
    table = Table(box=None, show_header=bool(columns[0]), pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index != flexible, overflow="fold")
    return table


def _decisions(decisions: tuple[Decision, ...], with_origin: bool) -> Table:
    columns = ("what", "value", "from", "why", *(("origin",) if with_origin else ()))
    table = _grid(*columns, flexible=3)
    for decision in decisions:
        cells = [
            Text(decision.field),
            Text(value_text(decision.field, decision.value), style="bold"),
            Text(decision.source, style=_SOURCE_STYLES[decision.source]),
            Text(decision.reason),
        ]
        if with_origin:
            cells.append(Text(decision.origin or "", style="dim"))
        table.add_row(*cells)
    return table


def value_text(field: str, value: Value) -> str:
    """A decided value for people: sizes with units, flags as the recipe spells them."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(value)
    if field.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    if field.endswith("_seconds"):
        return f"{value:g}s"
    return str(value)


def _kernels(kernels: tuple[KernelChoice, ...]) -> Table:
    table = _grid("op", "kernel", "why", flexible=2)
    for choice in kernels:
        op = f"{choice.op} {choice.variant}".rstrip()
        why = Text(choice.reason)
        for reason, names in _by_reason(choice).items():
            why.append(f"\nnot {names}: {reason}", style="dim")
        table.add_row(Text(op), Text(choice.kernel, style="bold"), why)
    return table


def _by_reason(choice: KernelChoice) -> dict[str, str]:
    """reason -> the kernels turned down for it, in the order of the table."""
    grouped: dict[str, list[str]] = {}
    for rejection in choice.rejected:
        grouped.setdefault(rejection.reason, []).append(rejection.kernel)
    return {reason: ", ".join(names) for reason, names in grouped.items()}


def _memory_title(plan: Plan) -> str:
    memory = plan.memory
    budget, device = format_size(memory.budget_bytes), format_size(memory.device_bytes)
    return f"memory of one rank: {budget} of {device}"


def _memory(memory: MemoryPlan) -> Table:
    table = _grid("", "", "", "", "", flexible=4)
    table.columns[1].justify = table.columns[3].justify = "right"
    for index, item in enumerate(memory.items):
        share = item.bytes / memory.budget_bytes
        free = item.name == "headroom"
        style = "dim" if free else _ITEM_STYLES[index % len(_ITEM_STYLES)]
        table.add_row(
            Text(item.name),
            Text(format_size(item.bytes), style="bold"),
            Text(bar(share), style=style),
            Text(f"{100 * share:.1f} %"),
            Text(item.note, style="dim"),
        )
    return table


def bar(share: float) -> str:
    """A bar of `_BAR_COLUMNS` columns, to an eighth of a column; anything above 0 can be seen."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR_COLUMNS * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def _unmet(plan: Plan) -> Table:
    table = _grid("", "", flexible=1)
    for unmet in plan.unmet:
        table.add_row(Text(unmet.need, style="bold red"), Text(unmet.detail))
    return table


def error_text(text: str) -> Text:
    """The same characters, styled line by line."""
    styled = Text()
    for line in text.splitlines(keepends=True):
        if line.startswith("error["):
            head, _, rest = line.partition("]: ")
            styled.append(f"{head}]", style="bold red").append(f": {rest}", style="bold")
        elif line.startswith("  help:"):
            styled.append("  help:", style="bold cyan").append(line.removeprefix("  help:"))
        else:
            styled.append(line, style="blue" if "|" in line or "-->" in line else "")
    return styled
