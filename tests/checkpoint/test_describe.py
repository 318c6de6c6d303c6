"""A model folder in facts, proved whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.rigs.gguf_file import build_gguf
from tests.rigs.rand import build_rand
from tokenspeed.checkpoint.describe import describe
from tokenspeed.errors import CheckpointError


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        describe(path)
    return str(caught.value)


def test_a_folder_of_safetensors(tmp_path: Path) -> None:
    described = describe(build_rand(tmp_path / "model", "qwen3", shards=2))
    assert (described.container, described.linear_formats) == ("safetensors", ("float32",))
    assert [file.name for file in described.files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert all(
        file.bytes == (tmp_path / "model" / file.name).stat().st_size for file in described.files
    )


def test_a_gguf_folder_and_a_gguf_file(tmp_path: Path) -> None:
    folder = build_gguf(tmp_path, "llama").gguf
    (path,) = folder.glob("*.gguf")
    described = describe(folder)
    assert described == describe(path)
    assert (described.container, described.linear_formats, described.embedding_format) == (
        "gguf",
        ("q4_1",),
        "q8_0",
    )


def test_end_tokens_of_the_generation_config(tmp_path: Path) -> None:
    """C04: they count, single or in a list, beside those of the config."""
    folder = build_rand(tmp_path / "model", eos_token_id=3)
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 3], "top_k": 1}')
    assert describe(folder).config.eos_token_ids == (3, 5)
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert describe(folder).config.eos_token_ids == (3, 7)


def drop_projection(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.self_attn.v_proj.weight"]
    save_file(tensors, path)


def shrink_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 64}))


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (drop_projection, "lack 1 of"),
        (shrink_config, "the config makes it"),
        (lambda folder: (folder / "config.json").unlink(), "neither a .gguf file nor config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "not a JSON object"),
        (lambda folder: (folder / "model.safetensors").unlink(), "neither model.safetensors"),
        (
            lambda folder: (folder / "generation_config.json").write_text('{"eos_token_id": "a"}'),
            "eos_token_id",
        ),
        (shutil.rmtree, "no such folder"),
    ],
)
def test_a_folder_that_is_not_whole(
    tmp_path: Path, breakage: Callable[[Path], object], message: str
) -> None:
    """C07 d, f and the rest of what a folder can lack."""
    folder = build_rand(tmp_path / "model")
    breakage(folder)
    assert message in refusal(folder)


def test_a_file_of_a_folder(tmp_path: Path) -> None:
    build_rand(tmp_path)
    assert "a lone file has to be a .gguf" in refusal(tmp_path / "model.safetensors")


def test_several_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    (tmp_path / "b.gguf").write_bytes(b"")
    assert "a.gguf, b.gguf" in refusal(tmp_path)


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_numbers_in_an_order_that_nothing_reads_are_refused(tmp_path: Path, method: str) -> None:
    found = {"quant_method": method, "bits": 4, "group_size": 128}
    folder = build_rand(tmp_path, quantization_config=found)
    with pytest.raises(CheckpointError, match=f"packed by {method}"):
        describe(folder)


def test_modelopt_says_beside_the_config_how_it_quantised(tmp_path: Path) -> None:
    folder = build_rand(tmp_path)
    path = folder / "hf_quant_config.json"
    found = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["*self_attn*"]}
    path.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": found}))
    assert describe(folder).group_formats == dict.fromkeys(
        ("dense", "shared experts", "experts"), "nvfp4"
    )
    path.write_text(json.dumps({"quantization": {"quant_algo": None}}))
    assert describe(folder).group_formats == {}
    path.write_text(json.dumps({"quantization": {"quant_algo": "MIXED_PRECISION"}}))
    assert "hf_quant_config.json" in refusal(folder) and "MIXED_PRECISION" in refusal(folder)
    path.write_text(json.dumps({"quantization": [1]}))
    assert "not a mapping" in refusal(folder)
