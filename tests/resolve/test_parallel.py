"""Groups of ranks: what is taken, why, and what cannot be."""

from __future__ import annotations

import pytest

from tests.resolve.conftest import DENSE, Resolver
from tokenspeed.errors import ResolveError
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import ParallelPlan

LARGE = """\
version: 1
name: large
model:
  source: hf:deepseek-ai/DeepSeek-V3-0324
"""
THIN = """\
version: 1
name: thin
model:
  source: hf:Qwen/Qwen3-30B-A3B
"""
HYBRID = """\
version: 1
name: hybrid
model:
  source: hf:Qwen/Qwen3-Next-80B-A3B-Instruct
"""


@pytest.fixture
def eight() -> Hardware:
    return load_hardware("nvidia-h200x8")


def groups(plan: ParallelPlan) -> tuple[int, int, int, int, int]:
    return (
        plan.attention_tp,
        plan.attention_dp,
        plan.dense_tp,
        plan.expert_tp,
        plan.expert_ep,
    )


@pytest.mark.parametrize(
    ("text", "wish", "expected"),
    [
        (DENSE, "{attention: {tp: 4}}", (4, 1, 4, 1, 1)),
        (DENSE, "{attention: {tp: 2, dp: 4}}", (2, 4, 2, 1, 1)),
        (LARGE, "{attention: {tp: 8}}", (8, 1, 8, 8, 1)),
        (LARGE, "{attention: {dp: 8}}", (1, 8, 1, 1, 8)),
        (LARGE, "{attention: {dp: 8}, dense: {tp: 8}}", (1, 8, 8, 1, 8)),
        (LARGE, "{attention: {tp: 8}, experts: {tp: 2}}", (8, 1, 8, 2, 4)),
        (LARGE, "{attention: {tp: 8}, experts: {ep: 4}}", (8, 1, 8, 2, 4)),
        # an eighth of 768 would be no whole tile of a product
        (THIN, "{attention: {tp: 8}}", (8, 1, 8, 1, 8)),
        (THIN, "{attention: {tp: 2}}", (2, 1, 2, 2, 1)),
    ],
)
def test_groups(
    resolved: Resolver, eight: Hardware, text: str, wish: str, expected: tuple[int, ...]
) -> None:
    assert groups(resolved(text, eight, f"parallel={wish}").plan.parallel) == expected


def test_every_group_has_a_reason(resolved: Resolver, eight: Hardware) -> None:
    decisions = {d.field: d for d in resolved(LARGE, eight, "parallel.attention.dp=8").decisions}
    assert "replicas exchange tokens" in decisions["parallel.expert_ep"].reason
    assert decisions["parallel.dense_tp"].source == "default"
    shared = {d.field: d for d in resolved(LARGE, eight, "parallel.attention.tp=8").decisions}
    assert "split over all ranks" in shared["parallel.expert_ep"].reason


@pytest.mark.parametrize(
    ("text", "wish", "code", "path"),
    [
        (LARGE, "{attention: {tp: 8}, experts: {tp: 3}}", "TS-R023", "parallel.experts.tp"),
        (LARGE, "{attention: {tp: 8}, experts: {tp: 8, ep: 8}}", "TS-R023", "parallel.experts.ep"),
        (LARGE, "{attention: {tp: 2}, dense: {tp: 4}}", "TS-R023", "parallel.dense.tp"),
        (DENSE, "{experts: {ep: 2}}", "TS-R023", "parallel.experts.ep"),
        (DENSE, "{attention: {dp: 5}, dense: {tp: 5}}", "TS-R022", "parallel.dense.tp"),
        (HYBRID, "{attention: {tp: 3}}", "TS-R022", "parallel.attention.tp"),
        (LARGE, "{attention: {dp: 3}, experts: {ep: 3}}", "TS-R022", "parallel.experts.ep"),
    ],
)
def test_groups_that_do_not_fit_together(
    resolved: Resolver, eight: Hardware, text: str, wish: str, code: str, path: str
) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(text, eight, f"parallel={wish}")
    assert (code, path) in [(p.code, p.path) for p in caught.value.problems]
    assert all(problem.hint for problem in caught.value.problems)


def test_blocks_are_not_cut(resolved: Resolver, eight: Hardware) -> None:
    """1536 over 8 ranks is 192 each, and fp8_block comes in squares of 128."""
    text = "version: 1\nname: m\nmodel: {source: 'hf:MiniMaxAI/MiniMax-M2'}\n"
    wish = "parallel={attention: {tp: 8}, experts: {tp: 8}}"
    with pytest.raises(ResolveError) as caught:
        resolved(text, eight, wish)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("TS-R024", "parallel.experts.tp")
    assert "192 each" in problem.message
    assert "parallel.experts.ep" in problem.hint


def test_more_ranks_than_the_machine_has(resolved: Resolver, h200: Hardware) -> None:
    plan = resolved(LARGE, h200, "parallel.attention.tp=8").plan
    assert {"parallel groups", "devices"} <= {unmet.need for unmet in plan.unmet}
