"""The list of tensors that a model needs is the one that its files have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.gguf_file import build_gguf
from tests.rigs.rand import FAMILIES, rand_config, rand_tensors
from tokenspeed.checkpoint.config import model_config
from tokenspeed.checkpoint.gguf import read_gguf
from tokenspeed.checkpoint.tensors import compare, gguf_tensors, hf_tensors
from tokenspeed.errors import Where

WHERE = Where("model")


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_names_and_shapes(family: str, extra: dict[str, object]) -> None:
    written = rand_config(family, **extra)
    tensors = {name: array.shape for name, array in rand_tensors(written, seed=0).items()}
    assert hf_tensors(model_config(written)) == tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_shapes_in_gguf(tmp_path: Path, family: str) -> None:
    (path,) = build_gguf(tmp_path, family).gguf.glob("*.gguf")
    found = {name: tensor.shape for name, tensor in read_gguf(path).tensors.items()}
    assert gguf_tensors(model_config(rand_config(family))) == found


def test_every_difference_is_named() -> None:
    config = model_config(rand_config("llama"))
    needed = hf_tensors(config)
    found = dict(needed)
    del found["model.norm.weight"]
    found["model.layers.0.mlp.up_proj.weight"] = (1, 2)
    found["model.layers.7.mlp.up_proj.weight"] = (128, 64)
    codes = {p.code: p.message for p in compare(needed, found, config, WHERE)}
    assert set(codes) == {"TS-W040", "TS-W041", "TS-W042"}
    assert "model.norm.weight" in codes["TS-W040"]
    assert "model.layers.7" in codes["TS-W041"]
    assert "[1, 2]" in codes["TS-W042"]


def test_what_may_be_left_over() -> None:
    tied, untied = model_config(rand_config("qwen2")), model_config(rand_config("llama"))
    rotary = {"model.layers.0.self_attn.rotary_emb.inv_freq": (8,)}
    assert not compare(hf_tensors(untied), hf_tensors(untied) | rotary, untied, WHERE)
    head = {"lm_head.weight": (512, 64)}
    assert not compare(hf_tensors(tied), hf_tensors(tied) | head, tied, WHERE)
