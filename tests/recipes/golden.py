"""The plan of every shipped recipe, on a stored machine, as a file to review.

A change of behaviour shows as a change of these files. When it is meant, write them anew and
review the difference:

    python -m tests.recipes.golden
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tokenspeed.cli.page import plan_page
from tokenspeed.cli.plan import to_json
from tokenspeed.cli.planning import Planned, plan_recipe
from tokenspeed.cli.render import plain_text
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.resolve.facts import THIS_BUILD

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
PLANS = HERE / "plans"
HARDWARE = HERE / "hardware"

# recipe -> a shipped profile, or a file in hardware/
MACHINES = {
    "smollm2-135m-cpu": str(HARDWARE / "cpu-2core-avx512.json"),
    "qwen3-8b-h200x1-latency": "nvidia-h200",
}
# A narrow terminal, and what a pipe gets.
WIDTHS = (72, 120)
# A release does not change the plans.
BUILD = replace(THIS_BUILD, version="golden")


def planned(name: str) -> Planned:
    return plan_recipe(RECIPES / f"{name}.yaml", (), load_hardware(MACHINES[name]), BUILD)


def texts(name: str) -> dict[str, str]:
    """File name -> content: the whole plan with its decisions, and the page at two widths."""
    plan = planned(name)
    body = to_json(plan).decode().replace(f"{RECIPES.parent}/", "")
    pages = {
        f"{name}.{columns}.txt": plain_text(plan_page(plan, False, columns), columns)
        for columns in WIDTHS
    }
    return {f"{name}.json": body, **pages}


def main() -> None:
    PLANS.mkdir(exist_ok=True)
    for name in MACHINES:
        for file, content in texts(name).items():
            (PLANS / file).write_text(content)
            print(PLANS / file)


if __name__ == "__main__":
    main()
