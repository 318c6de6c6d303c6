"""The picture of a sweep: speed of each user against what the device gets done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tokenspeed.bench.agentic.records import Level


def draw(curves: Mapping[str, Sequence[Level]], title: str, path: Path) -> None:
    """A PNG with a line for each curve: tokens/s of a user across, tokens/min of a device up,
    all of them on the left, those of answers on the right; points carry their number of users."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    every, answers = figure.subplots(1, 2)
    figure.suptitle(title)
    for name, levels in curves.items():
        speeds = [level.tps_user for level in levels]
        for axes, values in (
            (every, [level.tpm / 1e6 for level in levels]),
            (answers, [level.output_s * 60 / 1e3 for level in levels]),
        ):
            axes.plot(speeds, values, marker="o", label=name)
            for level, value in zip(levels, values, strict=True):
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
        axes.legend()
    figure.savefig(path, dpi=150, metadata={"Software": None})
