"""Loading: everything the model needs exactly once, nothing that it does not, or a clear refusal
(cases C06 and C07), and GGUF blocks equal to the floats that they stand for."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tokenspeed_kernels.dequantise import dequantise

from tests.rigs import FAMILIES, build_rand
from tests.rigs.gguf_file import build_gguf
from tests.rigs.late_road import LateRoad
from tests.rigs.plans import tiny_plan
from tokenspeed.checkpoint.describe import describe, read_config
from tokenspeed.checkpoint.inventory import EMBEDDING, GROUPS
from tokenspeed.errors import CheckpointError
from tokenspeed.models.registry import parameters
from tokenspeed.plan import ModelConfig, WeightFormat
from tokenspeed.weights.arrivals import Flow
from tokenspeed.weights.dummy import dummy_weights
from tokenspeed.weights.load import load_weights
from tokenspeed.weights.parameter import Matrix, Progress, Weights
from tokenspeed.weights.road import Road

CPU = torch.device("cpu")
INDEX = "model.safetensors.index.json"
F32, Q4_1, Q8_0 = WeightFormat.FLOAT32, WeightFormat.Q4_1, WeightFormat.Q8_0


# So small that every tensor of a tiny model is cut up, or travels with others.
LITTLE = Flow(readers=2, slots_each=2, slot_bytes=3000, parcel_bytes=10_000, ahead_bytes=50_000)


def formats_of(linear: WeightFormat, embedding: WeightFormat) -> dict[str, WeightFormat]:
    return dict.fromkeys(GROUPS, linear) | {EMBEDDING: embedding}


def load(
    folder: Path,
    config: ModelConfig | None = None,
    container: str = "safetensors",
    linear: WeightFormat = F32,
    embedding: WeightFormat = F32,
    progress: Progress = lambda done, total: None,
) -> Weights:
    """One by one, and the same through a ring that holds next to nothing."""
    config = config or read_config(folder)
    wanted = parameters(config, container, formats_of(linear, embedding))

    def loaded(progress: Progress, road: Road | None) -> Weights:
        return load_weights(
            wanted, config, folder, container,
            device=CPU, dtype=torch.float32, progress=progress, road=road, flow=LITTLE,
        )  # fmt: skip

    weights = loaded(progress, None)
    streamed = loaded(lambda done, total: None, road := LateRoad())
    assert road.closed
    assert tensors_of(weights).keys() == tensors_of(streamed).keys()
    for name, tensor in tensors_of(streamed).items():
        assert torch.equal(tensor.view(torch.uint8), tensors_of(weights)[name].view(torch.uint8))
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, f"{name} holds on to more"
    return weights


def tensors_of(weights: Weights) -> dict[str, torch.Tensor]:
    matrices = weights.matrices
    scales = {f"{name} scales": matrix.scales for name, matrix in matrices.items()}
    found = {name: matrix.data for name, matrix in matrices.items()} | dict(weights.vectors)
    return found | {name: scale for name, scale in scales.items() if scale is not None}


def test_fused_rows_are_the_tensors_of_the_files(tmp_path: Path) -> None:
    folder = build_rand(tmp_path, "qwen2", shards=3)
    files: dict[str, np.ndarray] = {}
    for path in folder.glob("*.safetensors"):
        files |= load_file(path)
    weights = load(folder)
    attention = "model.layers.1.self_attn"
    for kind, loaded in (
        ("weight", weights.matrices["layers.1.qkv"].data),
        ("bias", weights.vectors["layers.1.qkv.bias"]),
    ):
        parts = [files[f"{attention}.{part}_proj.{kind}"] for part in "qkv"]
        assert np.array_equal(loaded.numpy(), np.concatenate(parts))
    assert weights.bytes == sum(tensor.nbytes for tensor in files.values())


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    folder = build_rand(tmp_path, shards=2)
    seen: list[tuple[int, int]] = []
    load(folder, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {seen[-1][0]}


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_half_floats_become_the_planned_format(stored: torch.dtype, tmp_path: Path) -> None:
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    folder = build_rand(tmp_path)
    halves = {
        name: tensor.to(stored) for name, tensor in load_torch(folder / "model.safetensors").items()
    }
    save_torch(halves, folder / "model.safetensors")
    head = load(folder).matrices["head"]
    assert torch.equal(head.data, halves["lm_head.weight"].float())
    kept = load(folder, linear=WeightFormat.BFLOAT16).matrices["head"]
    assert kept.data.dtype == torch.bfloat16


# ---- C06: files that are not whole


def _header(length: int) -> Callable[[bytes], bytes]:
    return lambda data: struct.pack("<Q", length) + data[8:]


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-8],
    "grown": lambda data: data + bytes(8),
    "empty header": _header(0),
    "header past the end": lambda data: _header(len(data) + 1)(data),
    "zeroed header": lambda data: data[:8] + bytes(len(data) - 8),
    "endless header": _header(2**63),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_damaged_file_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    folder = build_rand(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(BROKEN[damage](path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(folder)


# ---- C07: index, files and config that do not agree


def _edit_index(folder: Path, edit: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    edit(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def _shard(folder: Path, number: int) -> Path:
    return folder / f"model-{number:05d}-of-00003.safetensors"


def _lose_shard(folder: Path) -> str:
    _shard(folder, 2).unlink()
    return "model-00002-of-00003.safetensors"


def _misplace_tensor(folder: Path) -> str:
    _edit_index(folder, lambda names: names.update({"lm_head.weight": _shard(folder, 2).name}))
    assert "lm_head.weight" not in load_file(_shard(folder, 2))
    return "lm_head.weight"


def _double_tensor(folder: Path) -> str:
    other = load_file(_shard(folder, 2))
    name = "lm_head.weight"
    assert name in load_file(_shard(folder, 1))
    save_file(other | {name: np.zeros((512, 64), np.float32)}, _shard(folder, 2))
    return name


def _drop_projection(folder: Path) -> str:
    name = "model.layers.1.mlp.up_proj.weight"
    for number in (1, 2, 3):
        tensors = load_file(_shard(folder, number))
        if tensors.pop(name, None) is not None:
            save_file(tensors, _shard(folder, number))
    _edit_index(folder, lambda names: names.pop(name))
    return name


def _stale_names(folder: Path) -> str:
    _edit_index(folder, lambda names: names.update(dict.fromkeys(names, "old.safetensors")))
    return r"old\.safetensors"


def _other_shape(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    return "mlp"


def _extra_tensor(folder: Path) -> str:
    tensors = load_file(_shard(folder, 1))
    save_file(tensors | {"model.layers.0.extra": np.zeros(4, np.float32)}, _shard(folder, 1))
    _edit_index(
        folder, lambda names: names.update({"model.layers.0.extra": _shard(folder, 1).name})
    )
    return r"model\.layers\.0\.extra"


@pytest.mark.parametrize(
    "damage",
    [
        _lose_shard,
        _misplace_tensor,
        _double_tensor,
        _drop_projection,
        _stale_names,
        _other_shape,
        _extra_tensor,
    ],
)
def test_disagreement_is_refused_by_name(damage: Callable[[Path], str], tmp_path: Path) -> None:
    folder = build_rand(tmp_path, shards=3)
    load(folder)
    named = damage(folder)
    with pytest.raises(CheckpointError, match=named):
        load(folder)


def test_tied_output_and_rotary_tables_may_lie_in_the_files(tmp_path: Path) -> None:
    folder = build_rand(tmp_path, "qwen2")
    path = folder / "model.safetensors"
    tensors: dict[str, Any] = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    save_file(tensors, path)
    assert "head" not in load(folder).matrices


# ---- GGUF


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kept", ["raw", "floats"])
def test_gguf_stands_for_the_same_weights(family: str, kept: str, tmp_path: Path) -> None:
    pair = build_gguf(tmp_path, family, seed=2)
    config = describe(pair.gguf).config
    linear, embedding = (Q4_1, Q8_0) if kept == "raw" else (F32, F32)
    blocks = load(pair.gguf, config, "gguf", linear, embedding)
    floats = load(pair.floats)
    assert blocks.matrices.keys() == floats.matrices.keys()
    for name, matrix in blocks.matrices.items():
        assert matrix.format == (embedding if name == "embedding" else linear)
        assert torch.equal(dequantise(matrix), floats.matrices[name].data), name
    for name, vector in blocks.vectors.items():
        assert torch.equal(vector, floats.vectors[name]), name


def test_gguf_formats_without_a_kernel_become_floats(tmp_path: Path) -> None:
    pair = build_gguf(tmp_path, linear="q5_1", embedding="f16")
    config = describe(pair.gguf).config
    blocks = load(pair.gguf, config, "gguf")
    floats = load(pair.floats)
    assert torch.equal(blocks.matrices["layers.0.down"].data, floats.matrices["layers.0.down"].data)


def test_gguf_in_another_format_than_planned_is_refused(tmp_path: Path) -> None:
    pair = build_gguf(tmp_path, linear="q8_0")
    config = describe(pair.gguf).config
    with pytest.raises(CheckpointError, match="q8_0, the plan keeps q4_1"):
        load(pair.gguf, config, "gguf", Q4_1, Q8_0)


def test_folder_with_two_gguf_files_is_refused(tmp_path: Path) -> None:
    pair = build_gguf(tmp_path)
    config = describe(pair.gguf).config
    (pair.gguf / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"other\.gguf"):
        load(pair.gguf, config, "gguf")


# ---- dummy weights


@pytest.mark.parametrize(
    "kept",
    [
        *(F32, WeightFormat.BFLOAT16, Q4_1, Q8_0),
        *(WeightFormat.MXFP4, WeightFormat.NVFP4, WeightFormat.INT4_G32),
    ],
)
def test_dummy_weights_have_the_planned_shapes_and_scale(
    kept: WeightFormat, tmp_path: Path
) -> None:
    config = tiny_plan(build_rand(tmp_path, "qwen2")).model.config
    wanted = parameters(config, "none", formats_of(kept, kept))

    def make() -> Weights:
        return dummy_weights(
            wanted, device=CPU, dtype=torch.float32, progress=lambda done, total: None
        )

    weights, again = make(), make()
    for parameter in wanted:
        if not isinstance(parameter, Matrix):
            assert len(weights.vectors[parameter.name]) == parameter.size
            continue
        matrix = weights.matrices[parameter.name]
        assert (matrix.shape, matrix.format) == (parameter.shape, kept)
        assert torch.equal(matrix.data, again.matrices[parameter.name].data)
        values = dequantise(matrix)
        assert values.std() == pytest.approx(matrix.shape[1] ** -0.5, rel=0.1)
        assert values.mean().abs() < 0.1 * values.std()
