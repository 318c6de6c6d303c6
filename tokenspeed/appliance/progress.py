"""What a person sees while a recipe boots: stages with percent, on standard error.

On a terminal a bar that log lines scroll above; elsewhere one plain line per stage and per tenth
of it, so that a journal or a CI log stays readable.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.text import Text

from tokenspeed.log import QueueHandler


class Display(Protocol):
    """Shows the start of one instance. Called from several threads."""

    def stage(self, text: str) -> None:
        """Something new begins; how long it takes is not known yet."""

    def fraction(self, done: float, detail: str = "") -> None:
        """So much of the stage is done, 0 to 1."""


class Plain:
    """Lines such as `fetch: downloading x.whl` and `  30 %  28 of 93 MB`."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print = print_line
        self._stage = ""
        self._tenth = 0

    def stage(self, text: str) -> None:
        if text != self._stage:
            self._stage = text
            self._tenth = 0
            self._print(text)

    def fraction(self, done: float, detail: str = "") -> None:
        tenth = int(done * 10)
        changed, self._tenth = tenth != self._tenth, tenth
        if changed and tenth > 0:
            self._print(f"  {tenth * 10:3d} %  {detail}".rstrip())


class Bar:
    """One bar that is replaced by the next stage's."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None, detail="")

    def stage(self, text: str) -> None:
        self._progress.reset(self._task, total=None, description=text, detail="")

    def fraction(self, done: float, detail: str = "") -> None:
        self._progress.update(self._task, total=1.0, completed=done, detail=detail)


@contextlib.contextmanager
def display(handler: QueueHandler | None = None) -> Iterator[Display]:
    """The display that fits standard error. Log lines of `handler` keep clear of the bar, and
    plain lines go through it, so that a stream nobody reads holds up nothing."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield Plain(handler.put if handler else lambda text: _write(2, text))
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
        console=console,
        transient=True,
    )
    with bar:
        if handler:
            handler.write_through(
                lambda data: console.print(Text(data.decode().rstrip("\n")), soft_wrap=True)
            )
        try:
            yield Bar(bar)
        finally:
            if handler:
                handler.write_through(None)


class Rate:
    """Bytes done and in all as `28 of 93 MB  12 MB/s`; a call of it updates `display`."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._began = 0.0
        self._at_start = 0
        self._last = (0, 0)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if total != self._last[1] or done < self._last[0]:  # another file, or the same anew
            self._began, self._at_start = now, done
        self._last = (done, total)
        if total <= 0:
            return
        seconds = max(now - self._began, 1e-3)
        speed = (done - self._at_start) / seconds / 1e6
        detail = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB  {speed:,.0f} MB/s"
        self._display.fraction(done / total, detail)


def say(text: str) -> None:
    """Prints a line for people on standard output. Blocks while nobody reads there."""
    _write(1, text)


def _write(descriptor: int, text: str) -> None:
    # Past Python's buffer: a thread stuck in that one makes the interpreter's exit fail.
    data = f"{text}\n".encode(errors="backslashreplace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]
