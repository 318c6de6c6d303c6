"""Weights in float8 compute what the numbers that they stand for compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.rigs import build_rand, rand_prompts
from tests.rigs.drive import driver
from tests.rigs.experts import build_experts
from tests.rigs.plans import tiny_plan
from tokenspeed.plan import WeightFormat
from tokenspeed.weights.formats.fp8 import quantised

PROMPTS = [rand_prompts(1, length, seed=4)[0] for length in (3, 17, 40)]


FAMILIES: dict[str, Callable[..., Path]] = {
    "llama": build_rand,
    "qwen3": build_rand,
    "qwen3_moe": build_experts,
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_answers_are_those_of_the_dequantised_model(tmp_path: Path, family: str) -> None:
    """Experts and all other products; the router keeps its numbers."""
    build = FAMILIES[family]
    model, plain = (build(tmp_path / name, family, seed=11) for name in ("model", "plain"))
    tensors = load_file(plain / "model.safetensors")
    for name, floats in tensors.items():
        if name.endswith(("_proj.weight", "_proj", "lm_head.weight")):
            tensors[name] = quantised(floats.bfloat16(), WeightFormat.FP8).floats()
    save_file(tensors, plain / "model.safetensors")
    answers = []
    for folder, kept in ((model, WeightFormat.FP8), (plain, WeightFormat.FLOAT32)):
        plan = tiny_plan(folder, linear_format=kept, experts_format=kept)
        with driver(plan, folder) as run:
            answers.append([answer.tokens for answer in run.generate(PROMPTS, 20)])
    assert answers[0] == answers[1]
