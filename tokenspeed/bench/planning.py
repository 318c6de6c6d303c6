"""Seconds of the planning verbs as whole processes: what an operator waits for."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each run of one command, interpreter start included."""

    command: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def time_verb(arguments: list[str], runs: int) -> Timing:
    """Runs `tokenspeed ARGUMENTS` `runs` times after one warm-up that is not counted.

    Raises subprocess.CalledProcessError when the command fails.
    """
    command = [sys.executable, "-m", "tokenspeed", *arguments]
    seconds = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    # Recipes by name: where the checkout lies is nobody's business.
    shown = " ".join(Path(argument).name for argument in arguments)
    return Timing(f"tokenspeed {shown}", tuple(seconds[1:]))


def time_planning(recipes: Path, runs: int) -> list[Timing]:
    dense = str(recipes / "qwen3-8b-h200x1-latency.yaml")
    small = str(recipes / "smollm2-135m-cpu.yaml")
    return [
        time_verb(["check", small], runs),
        time_verb(["plan", dense, "--hardware", "nvidia-h200"], runs),
    ]
