"""Weights through pinned memory and a stream of their own are those that one thread reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.rigs import build_rand
from tests.weights.test_fp8 import in_float8
from tests.weights.test_load import LITTLE, formats_of, tensors_of
from tokenspeed.checkpoint.describe import read_config
from tokenspeed.models.registry import parameters
from tokenspeed.plan import WeightFormat
from tokenspeed.weights.arrivals import FLOW, Flow
from tokenspeed.weights.formats.fp8 import quantised
from tokenspeed.weights.formats.nibbles import nvfp4
from tokenspeed.weights.load import load_weights
from tokenspeed.weights.parameter import Weights
from tokenspeed.weights.road import CudaRoad

pytestmark = pytest.mark.gpu

BF16, FP8, FP8_BLOCK = WeightFormat.BFLOAT16, WeightFormat.FP8, WeightFormat.FP8_BLOCK
NVFP4 = WeightFormat.NVFP4
FLOWS = pytest.mark.parametrize("flow", [LITTLE, FLOW], ids=["little", "usual"])


def require_same(folder: Path, kept: WeightFormat, flow: Flow) -> None:
    config, device = read_config(folder), torch.device("cuda")
    wanted = parameters(config, "safetensors", formats_of(kept, BF16))

    def loaded(road: CudaRoad | None) -> Weights:
        return load_weights(
            wanted, config, folder, "safetensors", device=device, dtype=torch.bfloat16,
            progress=lambda done, total: None, road=road, flow=flow,
        )  # fmt: skip

    expected = tensors_of(loaded(None))
    for _ in range(5):
        found = tensors_of(loaded(CudaRoad(device)))
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert tensor.device.type == "cuda"
            assert torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8)), name


@FLOWS
@pytest.mark.parametrize("kept", [BF16, FP8])
def test_streamed_floats_are_the_same(kept: WeightFormat, flow: Flow, tmp_path: Path) -> None:
    require_same(build_rand(tmp_path, "qwen2", shards=3), kept, flow)


@FLOWS
@pytest.mark.parametrize(("shape", "kept"), [("rows", FP8), ("blocks", FP8_BLOCK), ("rows", BF16)])
def test_streamed_float8_is_the_same(
    shape: str, kept: WeightFormat, flow: Flow, tmp_path: Path
) -> None:
    folder = build_rand(tmp_path)
    in_float8(folder, shape)
    require_same(folder, kept, flow)


@pytest.mark.parametrize("kept", [FP8, FP8_BLOCK, NVFP4])
def test_both_devices_quantise_alike(kept: WeightFormat) -> None:
    """To the bit, of floats whose reach differs from row to row."""
    floats = (torch.randn(2000, 512) * torch.rand(2000, 1)).bfloat16()

    def made(device: str) -> list[torch.Tensor]:
        there = floats.to(device)
        if kept == NVFP4:
            packed = nvfp4(there)
            assert packed.row_scales is not None
            return [packed.data, packed.scales, packed.row_scales]
        scaled = quantised(there, kept)
        return [scaled.data, scaled.scales]

    for found, expected in zip(made("cuda"), made("cpu"), strict=True):
        assert torch.equal(found.cpu().view(torch.uint8), expected.view(torch.uint8))
