from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.dequantise import dequantise
from tokenspeed_kernels.embedding.reference import EmbeddingReference
from tokenspeed_kernels.weight import BLOCK_BYTES, RawWeight

TOKENS = [[], [0], [10, 0, 10, 3]]


def table(weight_format):
    data = torch.randint(0, 256, (11, 3, BLOCK_BYTES[weight_format]), dtype=torch.uint8)
    data[..., 0:2] = torch.randn(11, 3, 1).half().view(torch.uint8)
    data[..., 2:4] = torch.randn(11, 3, 1).half().view(torch.uint8)
    return RawWeight(weight_format, (11, 96), data.flatten(1))


@pytest.mark.op("embedding")
@pytest.mark.parametrize("weight_format", ["q4_1", "q8_0"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_rows_are_exact(kernel, weight_format, tokens, poisoned):
    weight = table(weight_format)
    ids = torch.tensor(tokens, dtype=torch.int32)
    out = kernel(weight)(ids)
    assert torch.equal(out, dequantise(weight)[ids.long()])
    assert torch.equal(out, EmbeddingReference(weight)(ids))


@pytest.mark.op("embedding")
def test_subnormal_scales(kernel):
    weight = table("q8_0")
    weight.data.view(11, 3, 34)[..., 0:2] = (
        torch.tensor([3e-7, -6e-8, 0.0]).half().view(torch.uint8).view(3, 2)
    )
    ids = torch.arange(11, dtype=torch.int32)
    assert torch.equal(kernel(weight)(ids), dequantise(weight))


@pytest.mark.op("embedding")
def test_what_it_does_not_take(kernel):
    with pytest.raises(ValueError, match="takes q4_1 or q8_0"):
        kernel(RawWeight("float32", (2, 32), torch.zeros(2, 32)))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float_tables(tokens, dtype):
    weight = torch.randn(11, 5)
    ids = torch.tensor(tokens, dtype=torch.int32)
    out = EmbeddingReference(RawWeight("float32", (11, 5), weight), dtype)(ids)
    assert torch.equal(out, weight[ids.long()].to(dtype))
