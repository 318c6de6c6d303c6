"""The picture of sweeps: speed of each user against what the device gets done.

    python -m tokenspeed.bench.agentic.pareto PICTURE.png RESULT.json...

draws what `bench agentic --out` kept, each file with a name of its own: `label`, else its recipe.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tokenspeed.bench.agentic.records import Level


class Point(msgspec.Struct):
    """As much of a `Level` as the picture shows; `tpm` is None where nobody counted it."""

    users: int
    tps_user: float
    output_s: float
    tpm: float | None = None


class Kept(msgspec.Struct):
    """A kept result."""

    device: str
    recipe: str
    levels: dict[str, list[Point]]
    label: str = ""


def draw(curves: Mapping[str, Sequence[Level] | Sequence[Point]], title: str, path: Path) -> None:
    """A PNG with a line for each curve: tokens/s of a user across, tokens/min of a device up,
    all of them on the left, those of answers on the right; points carry their number of users, by
    which the line goes."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    every, answers = figure.subplots(1, 2)
    figure.suptitle(title)
    for name, given in curves.items():
        levels: list[Level | Point] = sorted(given, key=lambda level: level.users)
        # The same colour on both sides, also where a curve is on one of them only.
        colour = f"C{list(curves).index(name)}"
        counted = [(level, level.tpm / 1e6) for level in levels if level.tpm is not None]
        answered = [(level, level.output_s * 60 / 1e3) for level in levels]
        for axes, points in ((every, counted), (answers, answered)):
            if not points:
                continue
            speeds = [level.tps_user for level, _ in points]
            values = [value for _, value in points]
            axes.plot(speeds, values, marker="o", label=name, color=colour)
            for level, value in points:
                axes.annotate(
                    str(level.users), (level.tps_user, value), xytext=(4, 4),
                    textcoords="offset points", fontsize=8,
                )  # fmt: skip
    for axes, what in (
        (every, "million tokens/min, cached ones included"),
        (answers, "thousand answer tokens/min"),
    ):
        axes.set_xlabel("tokens/s of each user")
        axes.set_ylabel(f"{what}, per device")
        axes.margins(0.08)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper right", fontsize=9)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def main(picture: Path, results: Sequence[Path]) -> None:
    kept = [msgspec.json.decode(path.read_bytes(), type=Kept) for path in results]
    curves = {
        f"{one.label or one.recipe}, {workload}": levels
        for one in kept
        for workload, levels in one.levels.items()
    }
    draw(curves, f"agents on {kept[0].device}", picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
