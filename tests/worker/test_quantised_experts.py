"""Quantised checkpoints: greedy answers are those of the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.rigs import Oracle, rand_prompts
from tests.rigs.drive import driver
from tests.rigs.experts import build_experts
from tests.rigs.packed import to_float8, to_int4, to_modelopt, to_mxfp4, to_nvfp4
from tests.rigs.plans import tiny_plan
from tokenspeed.plan import Plan, WeightFormat

# Widths that differ, so that no axis can stand for another, and end within a block of 128.
_WIDE = {"hidden_size": 192, "intermediate_size": 160}
_DEEP = {
    "hidden_size": 256, "intermediate_size": 320, "moe_intermediate_size": 128,
    "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
    "v_head_dim": 32,
}  # fmt: skip
RIGS: Mapping[str, tuple[str, Callable[[Path], object], Mapping[str, int]]] = {
    "mxfp4": ("gpt_oss", to_mxfp4, _WIDE),
    "int4_g32": ("qwen3_moe", to_int4, {"hidden_size": 96, "moe_intermediate_size": 64}),
    "fp8_block": ("deepseek_v3", to_float8, _DEEP),
}
# With all projections in it, beside the experts.
NVFP4: Mapping[str, tuple[str, Callable[[Path], object], Mapping[str, int]]] = {
    "modelopt": ("deepseek_v3", to_modelopt, {"moe_intermediate_size": 48}),
    "compressed-tensors": ("qwen3_moe", to_nvfp4, {"hidden_size": 96}),
}


def float_twin(folder: Path, family: str, exact: Mapping[str, torch.Tensor], facts: object) -> Path:
    assert isinstance(facts, Mapping)
    twin = build_experts(folder, family, seed=11, **facts)
    path = twin / "model.safetensors"
    save_file({**load_file(path), **exact}, path, metadata={"format": "pt"})
    return twin


def rewritten(
    path: Path, family: str, rewrite: Callable[[Path], object], facts: Mapping[str, int]
) -> tuple[Path, Path]:
    """A model as `rewrite` stores it, and the one of floats that it stands for."""
    folder = build_experts(path / "model", family, seed=11, **facts)
    exact = rewrite(folder)
    assert isinstance(exact, dict)
    return folder, float_twin(path / "twin", family, exact, facts)


@pytest.mark.parametrize("kept", list(RIGS))
def test_tokens_are_those_of_the_dequantised_model(tmp_path: Path, kept: str) -> None:
    folder, twin = rewritten(tmp_path, *RIGS[kept])
    # transformers reads MXFP4 itself; of the others it is given what they stand for.
    oracle = Oracle(folder if kept == "mxfp4" else twin)
    plan = tiny_plan(folder, experts_format=WeightFormat(kept), max_step_tokens=24)
    check_answers(plan, folder, oracle)


@pytest.mark.parametrize("maker", list(NVFP4))
def test_nvfp4_throughout(tmp_path: Path, maker: str) -> None:
    folder, twin = rewritten(tmp_path, *NVFP4[maker])
    plan = tiny_plan(
        folder, linear_format=WeightFormat.NVFP4, head_format=WeightFormat.FLOAT32,
        max_step_tokens=24,
    )  # fmt: skip
    check_answers(plan, folder, Oracle(twin))


def check_answers(plan: Plan, folder: Path, oracle: Oracle) -> None:
    prompts = [rand_prompts(1, length, seed=6)[0] for length in (1, 7, 33, 64)]
    with driver(plan, folder) as run:
        for _ in range(2):
            for prompt, answer in zip(prompts, run.generate(prompts, 16), strict=True):
                assert len(answer.tokens) == 16
                oracle.check_greedy(prompt, answer.tokens)
