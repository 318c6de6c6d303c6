"""The pool has the planned size, and costs memory only where it is used."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import pytest
import torch

from tests.rigs import build_rand
from tests.rigs.plans import tiny_plan
from tokenspeed.cache.kv import allocate
from tokenspeed.plan import Plan


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return tiny_plan(build_rand(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pool_has_the_planned_shape_and_bytes(plan: Plan, dtype: str) -> None:
    element = {"float32": 4, "bfloat16": 2}[dtype]
    wanted = dataclasses.replace(plan.cache, dtype=dtype, num_blocks=9, block_size=4)
    cache = allocate(wanted, plan.model.config, torch.device("cpu"))
    assert len(cache.keys) == len(cache.values) == 2
    for pool in (*cache.keys, *cache.values):
        assert pool.shape == (9, 4, 2, 16)
        assert pool.dtype == getattr(torch, dtype)
        assert pool.is_contiguous()
        assert not pool.any()
    assert cache.bytes == 2 * 2 * 9 * 4 * 2 * 16 * element


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_unused_blocks_take_no_memory(plan: Plan) -> None:
    big = dataclasses.replace(plan.cache, num_blocks=2**17, block_size=16)
    before = _resident_bytes()
    cache = allocate(big, plan.model.config, torch.device("cpu"))
    assert cache.bytes == 2**30
    assert _resident_bytes() - before < 2**27
