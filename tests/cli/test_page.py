"""The page of a plan: whole, aligned and within its columns at any width from 60 up."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.recipes.golden import planned
from tokenspeed.cli.page import bar, folded, losers, plan_page
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.cli.render import plain_text, print_plan
from tokenspeed.cli.values import milliseconds
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.plan import KernelChoice, PredictedStep, PredictionPlan, Rejection
from tokenspeed.recipe.kinds import format_size

DENSE = "qwen3-8b-h200x1-latency"


@pytest.mark.parametrize("name", [DENSE, "smollm2-135m-cpu"])
@pytest.mark.parametrize("columns", [60, 61, 72, 80, 95, 100, 120, 200])
def test_lines_stay_within_their_columns(name: str, columns: int) -> None:
    lines = plain_text(plan_page(planned(name), True, columns), columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert all(line == line.rstrip() for line in lines)
    assert [line for line in lines if line and not line.startswith(" ")][3:] == [
        line for line in lines if re.match(r"(memory|speed|decisions|kernels)", line)
    ]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_nothing_is_lost_at_any_width(columns: int) -> None:
    """Every decision, kernel, loser and memory item is on the page; words only wrap."""
    plan = planned(DENSE)
    words = " ".join(plain_text(plan_page(plan, False, columns), columns).split())
    squeezed = words.replace(" ", "")
    for decision in plan.resolution.decisions:
        assert decision.field.rpartition(".")[2] in words
    for choice in plan.resolution.plan.kernels:
        assert choice.kernel in words
        for loser in choice.rejected:
            stem, _, end = loser.kernel.rpartition("_")
            assert stem in squeezed
            assert end in squeezed
    for item in plan.resolution.plan.memory.items:
        assert item.name in words


@pytest.mark.parametrize("name", [DENSE, "smollm2-135m-cpu"])
@pytest.mark.parametrize("columns", range(60, 130, 3))
def test_memory_rows_are_whole_at_any_width(name: str, columns: int) -> None:
    plan = planned(name)
    lines = plain_text(plan_page(plan, False, columns), columns).splitlines()
    memory = plan.resolution.plan.memory
    for item in memory.items:
        share = f"{100 * item.bytes / memory.budget_bytes:.1f} %"
        row = next(line for line in lines if line.startswith(f"  {item.name} "))
        assert format_size(item.bytes) in row
        assert re.search(rf" {re.escape(share)}( |$)", row)


def test_a_narrow_terminal_breaks_lines_and_cuts_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (
        ("FORCE_COLOR", "1"),
        ("COLUMNS", "30"),
        ("LINES", "24"),
        ("TERM", "xterm"),
    ):
        monkeypatch.setenv(name, value)
    plan = planned(DENSE)
    print_plan(plan, False)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    for item in plan.resolution.plan.memory.items:
        assert re.search(rf"  {item.name} +{re.escape(format_size(item.bytes))} ", shown)


def test_colour_changes_no_character() -> None:
    page = plan_page(planned(DENSE), False, 100)
    console = Console(width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    with console.capture() as captured:
        console.print(page)
    coloured = captured.get()
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert "".join(f"{line.rstrip()}\n" for line in bare.splitlines()) == plain_text(page, 100)


def test_conditions_and_parents_are_named(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "version: 1\nname: base\nmodel: {source: hf:Qwen/Qwen3-8B, load: dummy}\n"
        "when:\n  - if: {arch: sm_90}\n    then:\n      kv: {block_size: 32}\n"
    )
    child = tmp_path / "child.yaml"
    child.write_text("extends: base.yaml\nname: child\n")
    plan = plan_recipe(child, ("serve.port=9000",), load_hardware("nvidia-h200"))
    text = plain_text(plan_page(plan, False, 120), 120)
    assert "with what base.yaml:5:5 says when arch sm_90\n" in text
    assert re.search(r"block_size +32 +recipe +base\.yaml:7:", text)
    assert re.search(r"port +9000 +recipe +--set serve\.port=9000", text)


def test_bars() -> None:
    assert bar(0, 30) == ""
    assert bar(1, 30) == "█" * 30
    assert bar(0.5, 30) == "█" * 15
    assert bar(1e-9, 30) == "▏"
    assert bar(2, 30) == bar(1, 30)


def test_folding() -> None:
    assert folded(["a_x", "a_y", "b_z", "plain"]) == "a_{x, y}, b_z, plain"


def test_losers_are_grouped_by_what_they_missed() -> None:
    def choice(op: str, *rejected: tuple[str, str]) -> KernelChoice:
        losers = tuple(Rejection(kernel=kernel, reason=why) for kernel, why in rejected)
        return KernelChoice(op=op, variant="", kernel="k", reason="r", rejected=losers)

    grouped = losers(
        [
            choice("a", ("a_1", "runs on cpu"), ("a_2", "k comes first")),
            choice("b", ("b_1", "runs on cpu"), ("b_2", "other comes first")),
            choice("c", ("a_1", "runs on cpu")),
        ]
    )
    assert grouped == {
        "runs on cpu": ("a_1", "b_1"),
        "meets the need, a better one comes first": ("a_2", "b_2"),
    }


def predicted(batch: int, step_s: float, fits: bool = True) -> PredictedStep:
    return PredictedStep(
        batch=batch,
        context=50_000,
        fits=fits,
        step_s=step_s,
        fast_s=step_s * 0.9,
        slow_s=step_s * 1.2,
        bound="kv",
        tokens_per_s_user=1 / step_s,
        tokens_per_min_device=60 * batch / step_s,
    )


def test_speed() -> None:
    plan = planned(DENSE)
    steps = (predicted(1, 0.00423), predicted(128, 0.0731, fits=False))
    with_speed = replace(
        plan,
        resolution=replace(
            plan.resolution,
            plan=replace(plan.resolution.plan, prediction=PredictionPlan(steps=steps)),
        ),
    )
    text = plain_text(plan_page(with_speed, False, 100), 100)
    start = text.index("\nspeed, predicted\n") + 1
    assert text[start:].split("\n\n")[0].splitlines() == [
        "speed, predicted",
        "  context  batch     step  fastest  slowest  tok/s user  tok/min GPU  bound by",
        "    50000      1  4.23 ms  3.81 ms  5.08 ms         236       14,184  kv",
        "             128  73.1 ms  65.8 ms  87.7 ms          14      105,062  kv; no room",
    ]
    narrow = plain_text(plan_page(with_speed, False, 60), 60)
    assert "fastest" not in narrow
    assert max(map(len, narrow.splitlines())) <= 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0000123, "0.01 ms"), (0.00423, "4.23 ms"), (0.0731, "73.1 ms"), (1.5, "1500 ms")],
)
def test_milliseconds(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text
