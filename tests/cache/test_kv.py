"""The pool has the planned size, and costs memory only where it is used."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import pytest
import torch
from tokenspeed_kernels.latent.op import LatentPool

from tests.rigs import build_rand
from tests.rigs.experts import build_experts
from tests.rigs.plans import tiny_plan
from tokenspeed.cache.kv import KvPool, allocate
from tokenspeed.plan import Plan


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return tiny_plan(build_rand(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pool_has_the_planned_shape_and_bytes(plan: Plan, dtype: str) -> None:
    element = {"float32": 4, "bfloat16": 2}[dtype]
    wanted = dataclasses.replace(plan.cache, dtype=dtype, num_blocks=9, block_size=4)
    cache = allocate(wanted, plan.model.config, torch.device("cpu"))
    assert len(cache.layers) == 2
    assert cache.group == (0, 0)
    for pool in cache.tensors:
        assert pool.shape == (9, 4, 2, 16)
        assert pool.dtype == getattr(torch, dtype)
        assert pool.is_contiguous()
        assert not pool.any()
    assert cache.bytes == 2 * 2 * 9 * 4 * 2 * 16 * element


def test_copies_move_whole_blocks_in_every_pool(plan: Plan) -> None:
    wanted = dataclasses.replace(plan.cache, dtype="fp8", num_blocks=9, block_size=4)
    cache = allocate(wanted, plan.model.config, torch.device("cpu"))
    for place, pool in enumerate(cache.tensors):
        raw = pool.view(torch.uint8)
        raw.copy_(torch.arange(raw.numel()).view(raw.shape).remainder(199) + place)
    before = [pool.view(torch.uint8).clone() for pool in cache.tensors]
    cache.copy(torch.tensor([2, 2, 5]), torch.tensor([3, 1, 8]))
    for old, pool in zip(before, cache.tensors, strict=True):
        assert torch.equal(pool.view(torch.uint8), old[[0, 2, 2, 2, 4, 5, 6, 7, 5]])


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_unused_blocks_take_no_memory(plan: Plan) -> None:
    big = dataclasses.replace(plan.cache, num_blocks=2**17, block_size=16)
    before = _resident_bytes()
    cache = allocate(big, plan.model.config, torch.device("cpu"))
    assert cache.bytes == 2**30
    assert _resident_bytes() - before < 2**27


@pytest.mark.parametrize(
    ("dtype", "layout", "token_bytes"),
    [
        ("float32", "latent", 4 * (32 + 8)),
        ("bfloat16", "latent", 2 * (32 + 8)),
        ("fp8", "latent", 32 + 8),
        ("fp8", "latent_scaled", 32 + 4 + 2 * 8),
    ],
)
def test_latent_pools_have_the_planned_bytes(
    tmp_path: Path, dtype: str, layout: str, token_bytes: int
) -> None:
    folder = build_experts(tmp_path, "deepseek_v2")
    plan = tiny_plan(folder, num_blocks=9, block_size=4, kv_dtype=dtype, kv_layout=layout)
    cache = allocate(plan.cache, plan.model.config, torch.device("cpu"))
    assert plan.cache.bytes_per_block == 3 * 4 * token_bytes
    assert cache.bytes == 9 * plan.cache.bytes_per_block
    for pool in cache.layers:
        assert isinstance(pool, LatentPool)
        assert pool.latent.shape == (9, 4, 32)
        assert pool.rope.shape == (9, 4, 8)
        assert (pool.scales is not None) == (layout == "latent_scaled")


def test_windows_share_the_memory_of_what_grows(tmp_path: Path) -> None:
    """Two layers, one of each kind: one tensor of keys, blocks for both kinds."""
    folder = build_experts(tmp_path, "gpt_oss")
    plan = tiny_plan(folder, num_blocks=9, block_size=4, max_running=5)
    cache = allocate(plan.cache, plan.model.config, torch.device("cpu"))
    assert cache.group == (1, 0)
    first, second = (layer for layer in cache.layers if isinstance(layer, KvPool))
    assert first.keys is second.keys and first.values is second.values
    # A window of 8 holds two blocks of 4, and one more while it moves on.
    assert plan.cache.pool_blocks == 9 + 5 * 3
    window = next(group for group in plan.cache.groups if group.kind == "window")
    assert cache.bytes == 9 * plan.cache.bytes_per_block + 5 * window.bytes_per_request
