from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.dequantise import dequantise
from tokenspeed_kernels.gemm.linear_torch import LinearTorch
from tokenspeed_kernels.gemm.reference import LinearReference
from tokenspeed_kernels.registry import load
from tokenspeed_kernels.weight import BLOCK_BYTES, RawWeight

INT8 = pytest.mark.op("linear", weight_format="q4_1")
SHAPES = [(1, 32), (15, 64), (16, 96), (17, 576), (960, 576), (33, 1536)]


def random_weight(weight_format, rows, columns):
    blocks = columns // 32
    data = torch.randint(0, 256, (rows, blocks, BLOCK_BYTES[weight_format]), dtype=torch.uint8)
    data[..., 0:2] = (torch.rand(rows, blocks, 1) * 0.02).half().view(torch.uint8)
    if weight_format == "q4_1":
        data[..., 2:4] = (torch.randn(rows, blocks, 1) * 0.1).half().view(torch.uint8)
    return RawWeight(weight_format, (rows, columns), data.flatten(1))


def rounding_bound(x, wide):
    """How far the product may be off: |error of x| <= s / 2 per element, s = max|x| / 127 over
    its block of 32, against |w|. Float32 sums add a little: 2^-20 of sum |w| |x|."""
    blocks = x.view(x.shape[0], x.shape[1] // 32, 32).abs()
    half_step = (blocks.amax(-1, keepdim=True) / 254).expand_as(blocks).reshape(x.shape)
    # The quotient is rounded to float32 before it is rounded to a whole number: at the edge of
    # two steps it can fall on the far side by 127 * 2^-23.
    return (half_step * 1.0001 + x.abs() * 2**-20) @ wide.abs().T


@INT8
@pytest.mark.parametrize("weight_format", ["q4_1", "q8_0"])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("tokens", [0, 1, 2, 5, 8, 13, 16, 17, 31, 129])
def test_is_within_the_rounding_of_the_activations(
    kernel, weight_format, rows, columns, tokens, poisoned
):
    weight = random_weight(weight_format, rows, columns)
    x = torch.randn(tokens, columns) * torch.rand(tokens, 1) * 10
    out = kernel(weight, None)(x)
    wide = dequantise(weight).double()
    error = (out.double() - x.double() @ wide.T).abs()
    assert out.dtype is torch.float32
    assert out.shape == (tokens, rows)
    assert (error <= rounding_bound(x.double(), wide)).all()


@INT8
@pytest.mark.parametrize("weight_format", ["q4_1", "q8_0"])
def test_whole_numbers_multiply_exactly(kernel, weight_format):
    # Every block of x spans -127 to 127 in whole numbers, so it has no rounding at all.
    weight = random_weight(weight_format, 50, 128)
    weight.data.view(50, 4, -1)[..., 0:2] = torch.tensor([0.5]).half().view(torch.uint8)
    if weight_format == "q4_1":
        weight.data.view(50, 4, -1)[..., 2:4] = torch.tensor([-2.0]).half().view(torch.uint8)
    x = torch.randint(-127, 128, (9, 128)).float()
    x[:, ::32] = 127.0
    expected = x.double() @ dequantise(weight).double().T
    assert torch.equal(kernel(weight, None)(x).double(), expected)


@INT8
@pytest.mark.parametrize("weight_format", ["q4_1", "q8_0"])
def test_the_extremes_do_not_saturate(kernel, weight_format):
    weight = random_weight(weight_format, 16, 64)
    blocks = weight.data.view(16, 2, -1)
    blocks[..., 0:2] = torch.tensor([1.0]).half().view(torch.uint8)
    if weight_format == "q4_1":
        blocks[..., 2:4] = 0
        blocks[..., 4:] = 0xFF  # q = 15
    else:
        blocks[::2, :, 2:] = 0x80  # q = -128
        blocks[1::2, :, 2:] = 0x7F
    for sign in (1.0, -1.0):
        x = torch.full((3, 64), 127.0 * sign)
        expected = x @ dequantise(weight).T
        assert torch.equal(kernel(weight, None)(x), expected)


@INT8
def test_bias_zeros_and_out_dtype(kernel):
    weight = random_weight("q4_1", 20, 64)
    bias = torch.randn(20)
    linear = kernel(weight, bias)
    assert torch.equal(linear(torch.zeros(2, 64), out_dtype=torch.float32), bias.expand(2, 20))


@INT8
def test_a_row_does_not_depend_on_the_batch(kernel):
    linear = kernel(random_weight("q4_1", 48, 96), None)
    x = torch.randn(37, 96)
    together = linear(x)
    for row in range(37):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])


@INT8
def test_rows_may_be_joined_and_the_raw_data_dropped(kernel):
    parts = [random_weight("q8_0", rows, 64) for rows in (7, 12)]
    data = torch.cat([part.data for part in parts])
    joined = kernel(RawWeight("q8_0", (19, 64), data), None)
    data.zero_()
    x = torch.randn(3, 64)
    apart = torch.cat([kernel(part, None)(x) for part in parts], dim=1)
    assert torch.equal(joined(x), apart)


@INT8
def test_what_it_does_not_take(kernel):
    with pytest.raises(ValueError, match="takes q4_1 or q8_0, not float32"):
        kernel(RawWeight("float32", (2, 32), torch.zeros(2, 32)), None)
    with pytest.raises(AssertionError):
        kernel(random_weight("q4_1", 4, 64), None)(torch.zeros(1, 32))


@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_torch_in_float32_is_the_product(tokens):
    weight, bias = torch.randn(24, 40), torch.randn(24)
    x = torch.randn(tokens, 40)
    raw = RawWeight("float32", (24, 40), weight)
    expected = x @ weight.T + bias
    torch.testing.assert_close(LinearTorch(raw, bias)(x), expected)
    torch.testing.assert_close(LinearReference(raw, bias)(x), expected)


def test_torch_in_bfloat16_keeps_the_dtype_of_the_activations():
    raw = RawWeight("bfloat16", (24, 40), torch.randn(24, 40).bfloat16())
    linear = load("linear_torch_bfloat16")(raw, None)
    x = torch.randn(3, 40)
    assert linear(x).dtype is torch.float32
    assert linear(x.bfloat16()).dtype is torch.bfloat16
    assert linear(x.bfloat16(), out_dtype=torch.float32).dtype is torch.float32
    # Inputs and output in bfloat16: 40 products of size 1 with 2^-8 relative error each.
    torch.testing.assert_close(linear(x), LinearReference(raw, None)(x), rtol=0.05, atol=0.2)
