"""Scales of a float8 cache (C41): read, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.rigs import build_rand, rand_prompts
from tests.rigs.drive import driver
from tests.rigs.plans import tiny_plan
from tokenspeed.checkpoint.describe import describe, read_config
from tokenspeed.checkpoint.kv_scales import kv_scale_of, scales_attention
from tokenspeed.errors import CheckpointError
from tokenspeed.weights.kv_scales import KvScales, read_kv_scales

AT = "model.layers.1.self_attn."


def add(folder: Path, **tensors: torch.Tensor) -> Path:
    """`k` and `v` scale the keys and values of layer 1."""
    path = folder / "model.safetensors"
    named = {f"{AT}{side}_proj.{side}_scale": tensor for side, tensor in tensors.items()}
    save_file(load_file(path) | named, path)
    return folder


def scales(folder: Path) -> KvScales:
    return read_kv_scales(read_config(folder), folder, "safetensors")


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_c41_scales_of_a_layer(tmp_path: Path, stored: torch.dtype, shape: tuple[int]) -> None:
    one = torch.full(shape, 0.5, dtype=stored)
    folder = add(build_rand(tmp_path), k=one, v=one * 3)
    assert scales(folder) == KvScales(((1.0, 1.0), (0.5, 1.5)), 2, 4)
    # The rest of the checkpoint is as whole as without them.
    describe(folder)


def test_c41_without_scales_they_are_one(tmp_path: Path) -> None:
    assert scales(build_rand(tmp_path)) == KvScales(((1.0, 1.0), (1.0, 1.0)), 0, 4)


@pytest.mark.parametrize(
    ("named", "value"),
    [
        ("nan", torch.tensor(float("nan"))),
        ("inf", torch.tensor(float("inf"))),
        ("0", torch.tensor(0.0)),
        ("-1", torch.tensor(-1.0)),
        (r"\[4\], not one float", torch.ones(4)),
        ("I64", torch.tensor(1)),
    ],
)
def test_c41_what_scales_nothing_is_refused_by_name(
    tmp_path: Path, named: str, value: torch.Tensor
) -> None:
    folder = add(build_rand(tmp_path), k=value, v=torch.tensor(1.0))
    with pytest.raises(CheckpointError, match=rf"self_attn\.k_proj\.k_scale is .*{named}"):
        scales(folder)


@pytest.mark.parametrize("side", ["k", "v"])
def test_c41_one_side_alone_is_refused_by_name(tmp_path: Path, side: str) -> None:
    folder = add(build_rand(tmp_path), **{side: torch.tensor(2.0)})
    with pytest.raises(CheckpointError, match=rf"{side}_proj\.{side}_scale scales one side"):
        scales(folder)


def test_c41_the_log_says_once_how_many_there_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = torch.tensor(0.5)
    folder = add(build_rand(tmp_path), k=one, v=one.clone())
    caplog.set_level("INFO")
    for kv_dtype, lines in (("fp8", 1), ("float32", 0)):
        caplog.clear()
        with driver(tiny_plan(folder, kv_dtype=kv_dtype), folder) as run:
            run.generate(rand_prompts(1, 20), 4)
        found = [one for one in caplog.records if "float8 cache" in one.message]
        assert [one.fields for one in found] == [{"loaded": 2, "of": 4, "others": 1.0}] * lines


def test_spellings() -> None:
    for name in ("k_proj.k_scale", "attn.k_scale", "k_scale"):
        assert kv_scale_of(AT + name) == (1, "k")
    assert kv_scale_of(AT + "v_proj.v_scale") == (1, "v")
    for name in ("k_proj.v_scale", "q_proj.q_scale", "k_proj.weight_scale"):
        assert kv_scale_of(AT + name) is None
    assert scales_attention(AT + "attn.q_scale") and not scales_attention(AT + "k_proj.v_scale")
