"""Matrices of 4-bit values: read as they are, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenspeed_kernels.dequantise import dequantise

from tests.rigs.experts import build_experts
from tests.rigs.packed import Tensors, to_float8, to_int4, to_modelopt, to_mxfp4, to_nvfp4
from tokenspeed.checkpoint.describe import describe, read_config
from tokenspeed.checkpoint.formats import matrix_bytes
from tokenspeed.checkpoint.inventory import EXPERTS, GROUPS
from tokenspeed.errors import CheckpointError
from tokenspeed.models.registry import parameters
from tokenspeed.plan import WeightFormat
from tokenspeed.weights.formats.nibbles import nvfp4
from tokenspeed.weights.load import load_weights
from tokenspeed.weights.parameter import Weights

MXFP4, NVFP4, FLOAT32 = WeightFormat.MXFP4, WeightFormat.NVFP4, WeightFormat.FLOAT32
BLOCKS = "model.layers.1.mlp.experts.down_proj_blocks"
SCALES = "model.layers.1.mlp.experts.down_proj_scales"


def load(folder: Path, experts: WeightFormat, other: WeightFormat = FLOAT32) -> Weights:
    seen: list[tuple[int, int]] = []
    formats = dict.fromkeys(GROUPS, other) | {EXPERTS: experts}
    config = read_config(folder)
    weights = load_weights(
        parameters(config, "safetensors", formats),
        config,
        folder,
        "safetensors",
        device=torch.device("cpu"),
        dtype=torch.float32,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1]
    return weights


def oss(folder: Path) -> tuple[Path, Tensors]:
    built = build_experts(folder, "gpt_oss", hidden_size=96, intermediate_size=64)
    return built, to_mxfp4(built)


@pytest.mark.parametrize("kept", [MXFP4, FLOAT32])
def test_gate_and_up_are_parted(tmp_path: Path, kept: WeightFormat) -> None:
    folder, exact = oss(tmp_path)
    weights = load(folder, kept)
    gate_up, down = (weights.matrices[f"layers.1.experts.{name}"] for name in ("gate_up", "down"))
    stem = "model.layers.1.mlp.experts."
    turned = exact[f"{stem}gate_up_proj"].transpose(1, 2)  # [experts, 2 inner, hidden], in turn
    halves = torch.cat((turned[:, ::2], turned[:, 1::2]), 1).flatten(0, 1)
    assert torch.equal(dequantise(gate_up), halves)
    assert torch.equal(dequantise(down), exact[f"{stem}down_proj"].transpose(1, 2).flatten(0, 1))
    if kept == MXFP4:
        # 4.25 bits a weight, as the plan counts them.
        assert gate_up.nbytes * 8 == 4.25 * halves.numel()


def test_integers_of_four_bits(tmp_path: Path) -> None:
    folder = build_experts(tmp_path, "qwen3_moe", moe_intermediate_size=64)
    exact = to_int4(folder)
    loaded = load(folder, WeightFormat.INT4_G32).matrices["layers.0.experts.down"]
    names = [f"model.layers.0.mlp.experts.{expert}.down_proj.weight" for expert in range(8)]
    assert torch.equal(dequantise(loaded), torch.cat([exact[name] for name in names]))


@pytest.mark.parametrize("kept", [NVFP4, FLOAT32])
@pytest.mark.parametrize("rewrite", [to_modelopt, to_nvfp4])
def test_each_part_keeps_its_global_scale(
    tmp_path: Path, rewrite: Callable[[Path], Tensors], kept: WeightFormat
) -> None:
    """Of experts and of what is joined; exact, also where pairs of rows become halves."""
    folder = build_experts(tmp_path, "deepseek_v3", moe_intermediate_size=48)
    exact = rewrite(folder)
    weights = load(folder, kept, kept)
    loaded = weights.matrices["layers.1.experts.gate_up"]
    stem = "model.layers.1.mlp.experts."
    names = [f"{stem}{e}.{part}_proj.weight" for e in range(8) for part in ("gate", "up")]
    assert torch.equal(dequantise(loaded), torch.cat([exact[name] for name in names]))
    if kept == NVFP4:
        # As the plan counts them.
        assert loaded.nbytes == matrix_bytes(NVFP4, *loaded.shape)
        assert len(loaded.row_scales.unique()) == 16
    expected = exact["model.layers.1.self_attn.q_b_proj.weight"].view(4, 24, 48)
    rope = expected[:, 16:].view(4, 4, 2, 48).transpose(1, 2).flatten(1, 2)
    made = dequantise(weights.matrices["layers.1.q_b"])
    assert torch.equal(made, torch.cat((expected[:, :16], rope), 1).flatten(0, 1))


def test_floats_become_nvfp4(tmp_path: Path) -> None:
    """No further off than half of e2m1's widest step, and the rounding of a group's scale."""
    folder = build_experts(tmp_path, "qwen3_moe")
    loaded, floats = (
        load(folder, kept).matrices["layers.0.experts.down"] for kept in (NVFP4, FLOAT32)
    )
    exact = floats.data.bfloat16().float().unflatten(1, (-1, 16))
    off = (dequantise(loaded).unflatten(1, (-1, 16)) - exact).abs().amax(-1)
    assert (off <= exact.abs().amax(-1) * (1 / 6 + 1 / 16)).all()
    assert not dequantise(loaded)[exact.flatten(1) == 0].any()


def test_nvfp4_goes_to_the_nearest_number() -> None:
    """A row whose scales are powers of two, and one of zeros."""
    row = [0.0, 0.2, 0.3, 0.7, 0.8, 1.2, 1.3, 1.7, 1.8, 2.4, 2.6, 3.4, 3.6, 4.9, 5.1, -6.0]
    near = [0, 0, 0.5, 0.5, 1, 1, 1.5, 1.5, 2, 2, 3, 3, 4, 4, 6, -6]
    made = nvfp4(torch.tensor([row, [0.0] * 16]) * 448).floats()
    assert torch.equal(made, torch.tensor([near, [0.0] * 16]) * 448)


def test_float8_rows_change_places_within_their_block(tmp_path: Path) -> None:
    """Rotary pairs become halves without another rounding."""
    folder = build_experts(
        tmp_path, "deepseek_v3", hidden_size=128, q_lora_rank=128, kv_lora_rank=128,
        qk_nope_head_dim=128, qk_rope_head_dim=64, moe_intermediate_size=128,
    )  # fmt: skip
    exact = to_float8(folder)
    weights = load(folder, WeightFormat.FP8_BLOCK, WeightFormat.FP8_BLOCK)
    expected = exact["model.layers.1.self_attn.q_b_proj.weight"].view(4, 192, 128)
    rope = expected[:, 128:].view(4, 32, 2, 128).transpose(1, 2).flatten(1, 2)
    made = dequantise(weights.matrices["layers.1.q_b"])
    assert torch.equal(made, torch.cat((expected[:, :128], rope), 1).flatten(0, 1))


def _no_scales(tensors: Tensors) -> None:
    del tensors[SCALES]


def _no_blocks(tensors: Tensors) -> None:
    del tensors[BLOCKS]


def _short_scales(tensors: Tensors) -> None:
    tensors[SCALES] = tensors[SCALES][..., :1].clone()


def _float_scales(tensors: Tensors) -> None:
    tensors[SCALES] = tensors[SCALES].float()


def _no_number(tensors: Tensors) -> None:
    tensors[SCALES][2, 3, 1] = 255


def _other_width(tensors: Tensors) -> None:
    for name in (BLOCKS, SCALES):
        tensors[name] = tensors[name][:, :-1].clone()


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (_no_scales, "TS-W045"),
        (_no_blocks, "TS-W040"),
        (_short_scales, "TS-W046"),
        (_float_scales, "TS-W046"),
        (_no_number, "TS-W046"),
        (_other_width, "TS-W042"),
    ],
)
def test_malformed_tensors_are_refused_by_name(
    tmp_path: Path, damage: Callable[[Tensors], None], code: str
) -> None:
    folder, _ = oss(tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    damage(tensors)
    save_file(tensors, path)
    with pytest.raises(
        CheckpointError, match=r"model\.layers\.1\.mlp\.experts\.down_proj"
    ) as raised:
        load(folder, MXFP4)
    assert raised.value.problems[0].code == code
    if code in ("TS-W040", "TS-W042"):
        # Headers say as much before any weight is wanted.
        with pytest.raises(CheckpointError):
            describe(folder)


@pytest.mark.parametrize(
    ("tensor", "value", "said"),
    [
        ("weight_scale_2", torch.tensor(float("nan")), "a global scale that is negative or no"),
        ("weight_scale_2", torch.ones(1, dtype=torch.bfloat16), "a global scale of type BF16"),
        ("weight_scale", torch.full((64, 2), -1.0).to(torch.float8_e4m3fn), "a scale that is neg"),
        ("weight_scale_2", None, "no global scale"),
    ],
)
def test_global_scales_are_looked_at(
    tmp_path: Path, tensor: str, value: torch.Tensor | None, said: str
) -> None:
    folder = build_experts(tmp_path, "qwen3_moe")
    to_modelopt(folder)
    path, name = folder / "model.safetensors", "model.layers.0.mlp.experts.3.down_proj"
    tensors = load_file(path)
    del tensors[f"{name}.{tensor}"]
    if value is not None:
        tensors[f"{name}.{tensor}"] = value
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=rf"experts\.3\.down_proj\.weight .*{said}") as raised:
        load(folder, NVFP4, NVFP4)
    assert raised.value.problems[0].code == "TS-W046"


def test_another_format_than_planned_is_refused(tmp_path: Path) -> None:
    folder = build_experts(tmp_path, "gpt_oss")
    with pytest.raises(CheckpointError, match="float32, the plan keeps mxfp4"):
        load(folder, MXFP4)
