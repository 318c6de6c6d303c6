"""The measurements of the bare engine, on a CPU where they mean nothing but must add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs import build_rand
from tests.rigs.experts import build_experts
from tests.rigs.plans import dummy_plan, tiny_plan
from tokenspeed.bench import decode, prefill
from tokenspeed.bench.engine import engine
from tokenspeed.bench.floors import CEILINGS, Ceilings, Floors, floors
from tokenspeed.errors import UsageError
from tokenspeed.plan import CacheGroup, Moe, WeightFormat

KEPT = CacheGroup(kind="full", layers=1, bytes_per_token=10, bytes_per_request=0)
SLOW = Floors(1000, 0, 0, 0.0, (KEPT,), 10.0, 10.0, Ceilings(1e6, 1e6, "none"))
BF16 = WeightFormat.BFLOAT16


def silent(_: str) -> None:
    pass


def test_measures_contexts_that_were_never_computed(tmp_path: Path) -> None:
    plan = dummy_plan(
        tiny_plan(
            build_rand(tmp_path / "model"), in_flight_depth=1, max_step_tokens=64, num_blocks=600
        )
    )
    with engine(plan, silent) as run:
        assert decode.fits(run, 4, 300)
        assert not decode.fits(run, 4, 1000)  # the model ends at 1,024
        assert not decode.fits(run, 17, 10)
        point = decode.measure(run, SLOW, batch=4, context=300, turns=20)
        assert 300 < point.mean_context < 340
        assert run.stats().running == run.stats().blocks_cached == 0
        behind = prefill.measure(run, SLOW, new=100, cached=320, runs=2)
        cold = prefill.measure(run, SLOW, new=100, cached=0, runs=2)
        beside = prefill.measure_beside(run, new=40, cached=160, batch=3, context=100, runs=2)
    assert beside.longest_ms > 0 and beside.step_ms > 0
    assert point.experts_read is None
    assert point.tps_user == pytest.approx(1e3 / point.step_ms)
    assert point.fraction == pytest.approx(point.floor_ms / point.step_ms)
    assert behind.cached == 320
    assert cold.tokens_s == pytest.approx(100 / cold.ttft_ms * 1e3)


def test_experts_that_are_read_are_counted_and_spread(tmp_path: Path) -> None:
    folder = build_experts(tmp_path / "model", "qwen3_moe")
    plan = dummy_plan(tiny_plan(folder, max_step_tokens=64))
    feed = plan.model.config.sequence()[0].feed_forward
    assert isinstance(feed, Moe)
    least = Floors(1000, 800, feed.experts, 0.5, (KEPT,), 10.0, 10.0, Ceilings(1e6, 1e6, "none"))
    for uniform in (None, 0, feed.top_k):
        with engine(plan, silent, uniform) as run:
            point = decode.measure(run, least, batch=2, context=20, turns=4)
            assert run.routes.read(100) is None
        assert point.experts_read is not None
        most = feed.top_k if uniform else min(feed.experts, 2 * feed.top_k)
        assert feed.top_k <= point.experts_read <= most
        kept = 2 * point.mean_context * 10
        read = 1000 + 800 * point.experts_read / feed.experts + kept
        assert point.floor_ms == pytest.approx(read / 1e3)


def test_too_few_experts_to_choose_among_are_refused(tmp_path: Path) -> None:
    plan = dummy_plan(tiny_plan(build_experts(tmp_path / "model", "qwen3_moe")))
    with pytest.raises(UsageError, match="a token passes 3 experts"), engine(plan, silent, 1):
        pass


def test_floors_count_what_a_step_reads(tmp_path: Path) -> None:
    kept = {"linear_format": BF16, "embedding_format": BF16, "kv_dtype": "bfloat16"}
    plan = tiny_plan(build_rand(tmp_path / "model"), **kept)
    least = floors(plan, "NVIDIA H200")
    # 2 layers of 64 x (64 q, 2 x 32 kv, 64 out, 3 x 128 inner), and 512 outputs, in bfloat16.
    assert least.weight_bytes == 2 * (2 * 64 * (64 + 64 + 64 + 384) + 64 * 512)
    size = least.weight_bytes + 3 * 7 * (2 * 2 * 2 * 16 * 2)
    assert least.decode_seconds(3, 7) == size / CEILINGS["NVIDIA H200"].read


def test_floors_count_the_experts_that_are_chosen(tmp_path: Path) -> None:
    kept = {"linear_format": BF16, "embedding_format": BF16, "kv_dtype": "bfloat16"}
    plan = tiny_plan(build_experts(tmp_path / "model", "gpt_oss"), **kept)
    least = floors(plan, "NVIDIA H200")
    # 2 layers of 4 experts of 3 x 64 x 32, of which a token takes 2; the output and the router.
    assert least.expert_bytes == 2 * 2 * 4 * 3 * 64 * 32
    assert least.chosen == 0.5
    read = least.weight_bytes + least.expert_bytes * 0.75
    # One of both layers has a window of 8.
    read += 2 * (100 + 8) * (2 * 2 * 16 * 2)
    assert least.decode_seconds(2, 100) == pytest.approx(read / CEILINGS["NVIDIA H200"].read)
