"""The plan of every shipped recipe, on a stored machine, as a file to review.

A change of behaviour shows as a change of these files. When it is meant, write them anew and
review the difference:

    python -m tests.recipes.golden
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tokenspeed.cli.markdown import kernels_markdown
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
    "deepseek-v2-lite-h200x1-agentic": "nvidia-h200",
    "deepseek-v2-lite-h200x1-latency": "nvidia-h200",
    "deepseek-v3-h200x8-agentic": "nvidia-h200x8",
    "deepseek-v3-mi355x8-throughput": "amd-mi355x-x8",
    "glm45-air-h200x2-agentic": "nvidia-h200x2",
    "gpt-oss-120b-h200x1-agentic": "nvidia-h200",
    "gpt-oss-20b-h200x1-latency": "nvidia-h200",
    "kimi-k25-b200x4-agentic": "nvidia-b200x8",
    "kimi-linear-48b-h200x1-longcontext": "nvidia-h200",
    "llama31-8b-h200x1-fp8": "nvidia-h200",
    "llama31-8b-h200x1-latency": "nvidia-h200",
    "llama31-8b-l4x1-cheap": "nvidia-l4",
    "llama33-70b-h200x2-chat": "nvidia-h200x2",
    "minimax-m2-h200x4-agentic": "nvidia-h200x4",
    "moonlight-16b-a3b-h200x1-latency": "nvidia-h200",
    "qwen3-06b-laptop-private": "cpu",
    "qwen3-30b-a3b-h200x1-fp8": "nvidia-h200",
    "qwen3-30b-a3b-h200x1-throughput": "nvidia-h200",
    "qwen3-32b-h200x1-agentic": "nvidia-h200",
    "qwen3-8b-anygpu-chat": "nvidia-rtx-4090",
    "qwen3-8b-h200x1-agentic": "nvidia-h200",
    "qwen3-8b-h200x1-latency": "nvidia-h200",
    "qwen35-397b-b200x8-agentic": "nvidia-b200x8",
    "smollm2-135m-cpu": str(HARDWARE / "cpu-2core-avx512.json"),
}
# Machines whose kernels for one dense model are kept as tables.
TABLES = HERE / "kernels"
TABLE_RECIPE = RECIPES / "qwen3-8b-anygpu-chat.yaml"
TABLE_MACHINES = ("nvidia-h200", "nvidia-b200x8", "amd-mi355x-x8", "cpu")
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


def kernel_table(machine: str) -> str:
    """Markdown: for each op the winner with its reason, and each loser with what it missed."""
    plan = plan_recipe(TABLE_RECIPE, (), load_hardware(machine), BUILD).resolution.plan
    return f"# {plan.model.source} on {machine}\n\n" + kernels_markdown(plan.kernels)


def main() -> None:
    TABLES.mkdir(exist_ok=True)
    for machine in TABLE_MACHINES:
        (TABLES / f"{machine}.md").write_text(kernel_table(machine))
    PLANS.mkdir(exist_ok=True)
    for name in MACHINES:
        for file, content in texts(name).items():
            (PLANS / file).write_text(content)
            print(PLANS / file)


if __name__ == "__main__":
    main()
