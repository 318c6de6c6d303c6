"""The terms of a step: equal to published arithmetic, and to counts by hand.

python -m tests.resolve.points      prints the table of floors beside the reference figures
"""

from __future__ import annotations

import pytest

from tests.resolve.points import BATCHES, FLOORS, floor_ms, roofline
from tokenspeed.plan import Moe, ParallelPlan
from tokenspeed.resolve.roofline import Decode, met


@pytest.mark.parametrize("case", FLOORS, ids=str)
@pytest.mark.parametrize("context", [1_000, 50_000])
def test_floors_are_those_of_the_reference(case: tuple[str, str, str], context: int) -> None:
    """Fed the same ceiling, every point is within the rounding of the table's two digits."""
    line = roofline(*case)
    for batch, milliseconds in zip(BATCHES, FLOORS[case][context], strict=True):
        assert floor_ms(line, batch, context) == pytest.approx(milliseconds, rel=0.03)


MOE = Moe(experts=64, top_k=6, inner=1, scoring="softmax", renormalise=False)


def test_experts_met() -> None:
    assert met(MOE, 1) == pytest.approx(6 / 64)
    assert met(MOE, 1, spread=0.5) == pytest.approx(6 / 64)
    assert met(MOE, 10_000) == pytest.approx(1.0)
    assert met(MOE, 10_000, spread=0.5) == pytest.approx(0.5)
    assert met(MOE, 2) == pytest.approx(1 - (1 - 6 / 64) ** 2)


def test_a_step_multiplies_what_a_token_meets() -> None:
    """Two operations per active matrix element, the embedding left out."""
    line = roofline("llama-3.1-8b", "bfloat16", "bfloat16")
    operations = line.operations(Decode(4, 1))
    mixing = operations.pop("mixing")
    matrices = 8_030_261_248 - 128_256 * 4_096 - 65 * 4_096
    assert sum(operations.values()) == 2 * 4 * matrices
    assert mixing == 4 * 32 * 4 * 32 * 128


def test_ranks_share_the_work() -> None:
    one = roofline("deepseek-v3", "checkpoint", "bfloat16")
    step = Decode(32, 4_000)
    eight = roofline("deepseek-v3", "checkpoint", "bfloat16", tp=8)
    whole, part = (sum(line.operations(step).values()) for line in (one, eight))
    assert part / whole == pytest.approx(1 / 8, rel=0.12)  # the latents are computed by every rank
    assert one.messages(step).count == 0
    # after attention and after the feed-forward of 61 layers, and the logits
    assert eight.messages(step).count == 2 * 61 + 1


def test_replicas_that_share_experts_exchange_tokens() -> None:
    parallel = ParallelPlan(attention_tp=1, attention_dp=8, world_size=8, expert_ep=8)
    line = roofline("deepseek-v3", "checkpoint", "bfloat16", parallel=parallel)
    step = Decode(64, 1_000)
    assert line.rows(step) == 8
    messages = line.messages(step)
    assert messages.count == 2 * 58
    assert messages.bytes == 58 * 2 * 8 * 8 * 7168 * 2
    # a replica reads the cache of its own rows only
    alone = roofline("deepseek-v3", "checkpoint", "bfloat16")
    assert line.cache_bytes(step) == alone.cache_bytes(step) / 8


def test_the_busiest_rank_nears_the_mean_as_batches_grow() -> None:
    parallel = ParallelPlan(attention_tp=8, attention_dp=1, world_size=8, dense_tp=8, expert_ep=8)
    line = roofline("deepseek-v3", "checkpoint", "bfloat16", parallel=parallel)
    skews = [line.busiest(Decode(batch, 1), 1.0) for batch in (1, 8, 64, 512)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 2
    assert skews[-1] < 1.1  # every expert is met
    assert line.busiest(Decode(1, 1), 0.0) == 1.0
    shared = roofline("deepseek-v3", "checkpoint", "bfloat16", tp=8)
    assert shared.busiest(Decode(1, 1), 1.0) == 1.0


@pytest.mark.parametrize(
    ("card", "kernels"),
    [("llama-3.1-8b", 6 + 32 * 8), ("qwen3-30b-a3b", 6 + 48 * 12), ("gpt-oss-20b", 6 + 24 * 12)],
)
def test_kernels_of_a_step(card: str, kernels: int) -> None:
    assert roofline(card, "bfloat16", "bfloat16").kernels() == kernels
