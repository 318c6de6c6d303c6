"""Weights through pinned memory and a stream of their own are those that one thread reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.rigs import build_rand
from tests.weights.test_load import LITTLE, formats_of, tensors_of
from tokenspeed.checkpoint.describe import read_config
from tokenspeed.models.registry import parameters
from tokenspeed.plan import WeightFormat
from tokenspeed.weights.arrivals import FLOW, Flow
from tokenspeed.weights.load import load_weights
from tokenspeed.weights.parameter import Weights
from tokenspeed.weights.road import CudaRoad

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("flow", [LITTLE, FLOW], ids=["little", "usual"])
@pytest.mark.parametrize("kept", [WeightFormat.BFLOAT16, WeightFormat.FP8])
def test_streamed_weights_are_the_same(kept: WeightFormat, flow: Flow, tmp_path: Path) -> None:
    folder = build_rand(tmp_path, "qwen2", shards=3)
    config, device = read_config(folder), torch.device("cuda")
    wanted = parameters(config, "safetensors", formats_of(kept, WeightFormat.BFLOAT16))

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
