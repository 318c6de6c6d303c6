"""Benchmark results as a table for people and a JSON file for the repository."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tokenspeed.bench.planning import Timing
from tokenspeed.files import write_whole

if TYPE_CHECKING:
    from tokenspeed.bench.serving import Measure


def commit() -> str:
    """The commit that was measured, "-dirty" when the tree differs, "unknown" outside git."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def cpu_name() -> str:
    """The processor's name as the kernel tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def keep(
    console: Console, folder: Path | None, kind: str, device: str, body: dict[str, Any]
) -> Path | None:
    """Writes <kind>-<device>.json into the folder, replacing the last run on such a device. Without
    a folder nothing is written, the console hears what would be, and None comes back."""
    name = f"{_slug(kind)}-{_slug(device)}.json"
    if folder is None:
        console.print(f"not kept: --out FOLDER writes {name} there", style="dim", highlight=False)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    header = {"device": device, "commit": commit(), "python": platform.python_version()}
    write_whole(path, (json.dumps(header | body, indent=2) + "\n").encode())
    console.print(f"kept in {path}", style="dim", highlight=False)
    return path


def _slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def serving_table(console: Console, measures: tuple[Measure, ...], ours: str, peer: str) -> None:
    table = Table(title="SmolLM2-135M-Instruct, one compute thread each", title_justify="left")
    for name in ("", "unit", ours, peer):
        table.add_column(name, justify="left" if name in ("", "unit") else "right")
    table.add_column("ratio", justify="right", style="bold")
    for measure in measures:
        table.add_row(
            measure.name, measure.unit,
            f"{measure.median(ours):.1f}", f"{measure.median(peer):.1f}",
            f"{measure.ratio(ours, peer):.2f}x",
        )  # fmt: skip
    console.print(table)


def planning_table(console: Console, timings: list[Timing]) -> None:
    table = Table(title="Planning, whole process", title_justify="left")
    table.add_column("command")
    for name in ("median s", "min s", "max s"):
        table.add_column(name, justify="right")
    for timing in timings:
        table.add_row(
            timing.command, f"{timing.median:.2f}",
            f"{min(timing.seconds):.2f}", f"{max(timing.seconds):.2f}",
        )  # fmt: skip
    console.print(table)
