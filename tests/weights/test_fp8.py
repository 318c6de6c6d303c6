"""float8 weights: what quantising keeps, and checkpoints that bring their scales along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenspeed_kernels.dequantise import dequantise

from tests.rigs import build_rand
from tests.weights.test_load import load
from tokenspeed.errors import CheckpointError
from tokenspeed.plan import WeightFormat
from tokenspeed.weights.formats.fp8 import Scaled, quantised, scaled
from tokenspeed.weights.load import Weights

FP8, FP8_BLOCK, BF16 = WeightFormat.FP8, WeightFormat.FP8_BLOCK, WeightFormat.BFLOAT16
# A checkpoint's scale for a quantised matrix, in each shape that there is.
SHAPES: dict[str, tuple[WeightFormat, Callable[[torch.Tensor], torch.Tensor]]] = {
    "matrix": (FP8, lambda scales: scales.amax().reshape(())),
    "one": (FP8, lambda scales: scales.amax().reshape(1)),
    "rows": (FP8, lambda scales: scales.unsqueeze(1)),
    "blocks": (FP8_BLOCK, lambda scales: scales),
}


@pytest.mark.parametrize("kept", [FP8, FP8_BLOCK])
def test_an_element_is_off_by_a_sixteenth_at_most(kept: WeightFormat) -> None:
    floats = torch.randn(200, 300) * torch.rand(200, 1) * 10
    floats[3] = 0
    made = quantised(floats, kept)
    assert made.kept == kept and made.scales.dtype is torch.float32
    largest = made.data.float().abs().amax()
    assert largest == 448
    # Half a step between neighbours, or of the least there is under the scale.
    least = made.scales.max() * 2**-10
    assert ((made.floats() - floats).abs() <= floats.abs() / 16 + least).all()
    assert not made.floats()[3].any()


def test_a_scale_of_another_shape_is_refused() -> None:
    data = torch.zeros(6 * 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="scale of shape"):
        scaled(data, (6, 4), torch.ones(4))


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0])
def test_a_scale_that_scales_nothing_is_refused(scale: float) -> None:
    data = torch.zeros(6 * 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="negative or no number"):
        scaled(data, (6, 4), torch.tensor([1.0, 1, 1, scale, 1, 1]))


def in_float8(folder: Path, shape: str, name: str = "weight_scale") -> dict[str, torch.Tensor]:
    """Rewrites the projections of the model in float8; what they now stand for, by name."""
    path = folder / "model.safetensors"
    tensors, exact = {}, {}
    kept, scale_of = SHAPES[shape]
    for key, floats in load_file(path).items():
        if not key.endswith("_proj.weight"):
            tensors[key] = floats
            continue
        scale = scale_of(quantised(floats, kept).scales)
        wide = quantised(torch.ones_like(floats), kept).scales * 448  # ones, to spread the scale
        if kept == FP8:
            every = wide * scale.reshape(-1)
            data = (floats / every.unsqueeze(1)).to(torch.float8_e4m3fn)
        else:
            every, data = scale, quantised(floats, kept).data
        stem = key.removesuffix("weight")
        tensors |= {key: data, stem + name: scale, stem + "input_scale": torch.ones(())}
        exact[key] = Scaled(data, every).floats()
    save_file(tensors, path)
    return exact


def fused(exact: dict[str, torch.Tensor], layer: int = 1) -> dict[str, torch.Tensor]:
    stem = f"model.layers.{layer}."
    return {
        f"layers.{layer}.{ours}": torch.cat([exact[f"{stem}{part}.weight"] for part in parts])
        for ours, parts in {
            "qkv": [f"self_attn.{name}_proj" for name in "qkv"],
            "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "down": ["mlp.down_proj"],
        }.items()
    }


def near(weights: Weights, expected: dict[str, torch.Tensor], relative: float) -> None:
    for name, exact in expected.items():
        error = (dequantise(weights.matrices[name]) - exact).norm() / exact.norm()
        assert error <= relative, f"{name}: {error}"


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_stored_scales_count(tmp_path: Path, shape: str, name: str) -> None:
    # Wide enough that the matrices of a layer meet between blocks.
    folder = build_rand(tmp_path, hidden_size=128, head_dim=64, intermediate_size=256)
    expected = fused(in_float8(folder, shape, name))
    same = SHAPES[shape][0]
    near(load(folder, linear=same), expected, 0.0)
    other = FP8 if same == FP8_BLOCK else FP8_BLOCK
    near(load(folder, linear=other), expected, 0.04)
    near(load(folder, linear=BF16), expected, 0.003)


def test_matrices_that_meet_within_a_block_are_rounded_again(tmp_path: Path) -> None:
    folder = build_rand(tmp_path, hidden_size=96)
    expected = fused(in_float8(folder, "blocks"))
    near(load(folder, linear=FP8_BLOCK), expected, 0.04)


@pytest.mark.parametrize("kept", [FP8, FP8_BLOCK])
def test_floats_are_quantised_at_load(tmp_path: Path, kept: WeightFormat) -> None:
    folder = build_rand(tmp_path)
    floats = fused(load_file(folder / "model.safetensors"))
    weights = load(folder, linear=kept)
    near(weights, floats, 0.04)
    assert weights.matrices["layers.0.qkv"].data.dtype is torch.float8_e4m3fn


def test_a_weight_without_scale_is_refused(tmp_path: Path) -> None:
    folder = build_rand(tmp_path)
    in_float8(folder, "matrix", "weight_zero")
    with pytest.raises(CheckpointError) as raised:
        load(folder, linear=FP8)
    # The scales that nobody knows are tensors without a place.
    assert {problem.code for problem in raised.value.problems} == {"TS-W041"}
    tensors = load_file(folder / "model.safetensors")
    kept = {name: one for name, one in tensors.items() if not name.endswith("weight_zero")}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as raised:
        load(folder, linear=FP8)
    assert {problem.code for problem in raised.value.problems} == {"TS-W045"}


def test_a_scale_of_unknown_shape_is_refused(tmp_path: Path) -> None:
    folder = build_rand(tmp_path)
    in_float8(folder, "matrix")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight_scale"
    save_file(tensors | {name: torch.ones(3, 1)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as raised:
        load(folder, linear=FP8)
    assert [problem.code for problem in raised.value.problems] == ["TS-W046"]
