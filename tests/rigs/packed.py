"""Tiny models whose experts are rewritten as quantised checkpoints store them.

    to_mxfp4(folder)      # gpt-oss: X_blocks and X_scales
    to_int4(folder)       # compressed-tensors: weight_packed int32, weight_scale, weight_shape
    to_float8(folder)     # weight and weight_scale_inv, 128 x 128, of every projection
    to_modelopt(folder)   # NVFP4 of every projection: weight, weight_scale and weight_scale_2
    to_nvfp4(folder)      # the same by compressed-tensors: weight_packed and weight_global_scale

Each rewrites the folder's tensors and its config.json and gives what they now stand for, float32
by the names and in the shapes that they had.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenspeed_kernels.dequantise import E2M1, E8M0_BIAS

from tokenspeed.plan import WeightFormat
from tokenspeed.weights.formats.fp8 import quantised

Tensors = dict[str, torch.Tensor]
# What one tensor becomes, and what that stands for.
Rewrite = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]


def to_mxfp4(folder: Path) -> Tensors:
    names = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    found = {"quant_method": "mxfp4", "modules_to_not_convert": left}
    return _rewrite(folder, lambda name: name.endswith(names), _mxfp4, found)


def to_int4(folder: Path, group: int = 32) -> Tensors:
    weights = {"num_bits": 4, "type": "int", "group_size": group, "symmetric": True}
    found = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                   r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
        "config_groups": {"group_0": {"weights": weights}},
    }  # fmt: skip

    def rewrite(name: str, floats: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        return _int4(name, floats, group)

    return _rewrite(folder, lambda name: ".experts." in name, rewrite, found)


def to_float8(folder: Path) -> Tensors:
    found = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"],
    }
    return _rewrite(folder, lambda name: name.endswith("_proj.weight"), _float8, found)


def to_modelopt(folder: Path) -> Tensors:
    """As older ones are, whose config.json does not say what hf_quant_config.json says."""
    exact = _rewrite(folder, _is_projection, _modelopt, None)
    found = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
             "exclude_modules": ["lm_head", "model.layers.*.mlp.gate"]}  # fmt: skip
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": found}))
    return exact


def to_nvfp4(folder: Path) -> Tensors:
    each = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
    found = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "config_groups": {"group_0": {"weights": each, "input_activations": each}},
    }
    return _rewrite(folder, _is_projection, _nvfp4, found)


def _rewrite(
    folder: Path,
    chosen: Callable[[str], bool],
    rewrite: Rewrite,
    quantization: dict[str, Any] | None,
) -> Tensors:
    path = folder / "model.safetensors"
    tensors: Tensors = {}
    exact: Tensors = {}
    for name, floats in load_file(path).items():
        if not chosen(name):
            tensors[name] = floats
            continue
        made, exact[name] = rewrite(name, floats)
        tensors |= made
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return exact


def e2m1(floats: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[..., in] as codes uint8 [..., in], exponents uint8 [..., in / 32], and what they are."""
    groups = floats.unflatten(-1, (-1, 32))
    # The largest of a group comes to lie between 3 and 6.
    exponents = (groups.abs().amax(-1) / 6).clamp(min=2.0**-100).log2().ceil()
    units = groups / exponents.exp2().unsqueeze(-1)
    table = torch.tensor(E2M1)
    codes = (units.unsqueeze(-1) - table).abs().argmin(-1)
    stands = (table[codes] * exponents.exp2().unsqueeze(-1)).flatten(-2)
    return codes.flatten(-2).byte(), (exponents + E8M0_BIAS).byte(), stands


def _mxfp4(name: str, floats: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """A stack [n, in, out]."""
    codes, exponents, stands = e2m1(floats.transpose(1, 2).contiguous())
    pairs = codes[..., ::2] | codes[..., 1::2] << 4
    made = {f"{name}_blocks": pairs.unflatten(-1, (-1, 16)), f"{name}_scales": exponents}
    return made, stands.transpose(1, 2).contiguous()


def _int4(name: str, floats: torch.Tensor, group: int) -> tuple[Tensors, torch.Tensor]:
    rows, columns = floats.shape
    groups = floats.unflatten(-1, (-1, group))
    scales = (groups.abs().amax(-1) / 7).bfloat16()
    wide = scales.float().unsqueeze(-1)
    values = (groups / wide).round().clamp(-8, 7)
    stands = (values * wide).flatten(-2)
    codes = (values.flatten(-2) + 8).long().view(rows, columns // 8, 8)
    packed = (codes << torch.arange(0, 32, 4)).sum(-1)
    made = {
        f"{name}_packed": (packed - ((packed >> 31) << 32)).to(torch.int32),
        f"{name}_scale": scales,
        f"{name}_shape": torch.tensor([rows, columns]),
    }
    return made, stands


def _float8(name: str, floats: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    made = quantised(floats, WeightFormat.FP8_BLOCK)
    return {name: made.data, f"{name}_scale_inv": made.scales}, made.floats()


def _is_projection(name: str) -> bool:
    return name.endswith(("_proj.weight", "_proj_with_mqa.weight"))


def _under_e4m3(floats: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes [out, in / 2] and scales e4m3 [out, in / 16], under `whole` for all."""
    groups = floats.unflatten(-1, (-1, 16))
    scales = (groups.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    units = groups / (scales.float() * whole).clamp(min=2.0**-100).unsqueeze(-1)
    codes = (units.unsqueeze(-1) - torch.tensor(E2M1)).abs().argmin(-1).flatten(-2).byte()
    return codes[:, ::2] | codes[:, 1::2] << 4, scales


def _stands(data: torch.Tensor, scales: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    codes = torch.stack((data & 0xF, data >> 4), -1).flatten(-2).int()
    wide = scales.float().repeat_interleave(16, 1)
    return torch.tensor(E2M1)[codes] * wide * whole


def _modelopt(name: str, floats: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    whole = floats.abs().amax() / (6 * 448)
    data, scales = _under_e4m3(floats, whole)
    made = {name: data, f"{name}_scale": scales, f"{name}_scale_2": whole}
    made[name.removesuffix("weight") + "input_scale"] = torch.tensor(0.5)
    return made, _stands(data, scales, whole)


def _nvfp4(name: str, floats: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    over = (6 * 448 / floats.abs().amax()).reshape(1)
    data, scales = _under_e4m3(floats, 1 / over)
    made = {f"{name}_packed": data, f"{name}_scale": scales, f"{name}_global_scale": over}
    made[name.removesuffix("weight") + "input_global_scale"] = torch.tensor([2.0])
    return made, _stands(data, scales, 1 / over)
