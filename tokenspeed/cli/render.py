"""Plans, differences and errors on a terminal; of the planning verbs' modules only this one and
`page` import rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from tokenspeed.cli.page import plan_page
from tokenspeed.cli.planning import Planned
from tokenspeed.resolve.diff import Difference

# Where there is no terminal to ask; wide enough that most reasons stay on one line.
PIPE_COLUMNS = 120
# Where a terminal has fewer, it breaks the lines itself: narrower columns would cut figures.
LEAST_COLUMNS = 60


def print_plan(planned: Planned, with_origin: bool) -> None:
    console = Console()
    if console.is_terminal:
        console.width = max(console.width, LEAST_COLUMNS)
        console.print(plan_page(planned, with_origin, console.width))
    else:
        print(plain_text(plan_page(planned, with_origin, PIPE_COLUMNS)), end="")


def plain_text(page: Group, columns: int = PIPE_COLUMNS) -> str:
    """The page as a pipe or a file gets it: no colour, no blanks at the ends of lines."""
    console = Console(width=columns, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(page)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def print_differences(found: Sequence[Difference], before: str, after: str) -> None:
    console = Console()
    page = differences_page(found, before, after)
    if console.is_terminal:
        console.print(page)
    else:
        print(plain_text(page), end="")


def differences_page(found: Sequence[Difference], before: str, after: str) -> Group:
    """Each field with both values, and below it why each side has it."""
    fields = "1 field differs" if len(found) == 1 else f"{len(found)} fields differ"
    lines: list[Text | Padding] = [
        Text.assemble((f"{before} -> {after}", "bold"), f": {fields}"),
        Text(),
    ]
    for one in found:
        was, now = one.values()
        lines.append(Text.assemble((one.field, "bold"), "  ", (was, "red"), " -> ", (now, "green")))
        reasons = [("was", one.reason_before), ("is", one.reason_after)]
        if one.reason_before == one.reason_after:
            reasons = [("both", one.reason_before)]
        for label, reason in reasons:
            if reason:
                lines.append(Padding(Text(f"{label:4} {reason}", style="dim"), (0, 0, 0, 4)))
    return Group(*lines)


def print_error(text: str) -> None:
    """`text` as `messages.render` makes it, coloured."""
    Console(stderr=True, soft_wrap=True).print(error_text(text), end="")


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
