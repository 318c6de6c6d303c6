from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.dequantise import dequantise
from tokenspeed_kernels.gemm.linear_torch import LinearTorch
from tokenspeed_kernels.gemm.reference import LinearReference
from tokenspeed_kernels.registry import load
from tokenspeed_kernels.weight import BLOCK_BYTES, RawWeight

INT16 = pytest.mark.op("linear", weight_format="q4_1")
SHAPES = [(1, 32), (15, 64), (16, 96), (17, 576), (960, 576), (33, 1536)]


def random_weight(weight_format, rows, columns):
    blocks = columns // 32
    data = torch.randint(0, 256, (rows, blocks, BLOCK_BYTES[weight_format]), dtype=torch.uint8)
    data[..., 0:2] = (torch.rand(rows, blocks, 1) * 0.02).half().view(torch.uint8)
    if weight_format == "q4_1":
        data[..., 2:4] = (torch.randn(rows, blocks, 1) * 0.1).half().view(torch.uint8)
    return RawWeight(weight_format, (rows, columns), data.flatten(1))


def rounding_bound(x, weight):
    """How far the product may be off.

    Activations: s / 2 per element against |w|, s = max|x| / 32639 over its block of 32; the
    quotient is rounded to float32 before it is rounded to a whole number, so at the edge of two
    steps it can fall on the far side by 32639 * 2^-23.
    Float32: the terms of n blocks and the bias meet in at most 2 n + 1 sums, each term rounded 4
    times before; terms are as large as |d| q + |m|, not as their sum."""
    blocks = x.view(x.shape[0], x.shape[1] // 32, 32).abs()
    half_step = (blocks.amax(-1, keepdim=True) / (2 * 32639)).expand_as(blocks).reshape(x.shape)
    summands = weight.data.clone()
    if weight.format == "q4_1":
        summands.view(weight.shape[0], -1, BLOCK_BYTES["q4_1"])[..., 3] &= 0x7F  # the sign of m
    sizes = dequantise(RawWeight(weight.format, weight.shape, summands)).double().abs()
    roundings = 2 * blocks.shape[1] + 5
    rounded = half_step * 1.01 @ dequantise(weight).double().abs().T
    return rounded + x.abs() @ sizes.T * roundings * 2**-24


@INT16
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
    assert (error <= rounding_bound(x.double(), weight)).all()


@INT16
@pytest.mark.parametrize("weight_format", ["q4_1", "q8_0"])
def test_whole_numbers_multiply_exactly(kernel, weight_format):
    # The largest of every block of x is 32639, so its steps are 1 and whole numbers have no
    # rounding at all.
    weight = random_weight(weight_format, 50, 128)
    weight.data.view(50, 4, -1)[..., 0:2] = torch.tensor([0.5]).half().view(torch.uint8)
    if weight_format == "q4_1":
        weight.data.view(50, 4, -1)[..., 2:4] = torch.tensor([-2.0]).half().view(torch.uint8)
    x = torch.randint(-3000, 3001, (9, 128)).float()
    x[:, ::32] = 32639.0
    expected = x.double() @ dequantise(weight).double().T
    assert torch.equal(kernel(weight, None)(x).double(), expected)


@INT16
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
        x = torch.full((3, 64), 32639.0 * sign)
        expected = x.double() @ dequantise(weight).double().T
        assert torch.equal(kernel(weight, None)(x).double(), expected)


@INT16
def test_bias_zeros_and_out_dtype(kernel):
    weight = random_weight("q4_1", 20, 64)
    bias = torch.randn(20)
    linear = kernel(weight, bias)
    assert torch.equal(linear(torch.zeros(2, 64), out_dtype=torch.float32), bias.expand(2, 20))


@INT16
@pytest.mark.parametrize("weight_format", ["q4_1", "q8_0"])
def test_inputs_too_small_to_scale_are_zeros(kernel, weight_format):
    x = torch.full((2, 64), 1e-38)
    x[:, 32:] = 1.0
    weight = random_weight(weight_format, 20, 64)
    without = torch.where(x < 1e-30, 0.0, x)
    assert torch.equal(kernel(weight, None)(x), kernel(weight, None)(without))


@INT16
@pytest.mark.parametrize("weight_format", ["q4_1", "q8_0"])
def test_a_row_does_not_depend_on_the_batch(kernel, weight_format):
    linear = kernel(random_weight(weight_format, 48, 96), None)
    x = torch.randn(37, 96)
    together = linear(x)
    for row in range(37):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])


@INT16
def test_rows_may_be_joined_and_the_raw_data_dropped(kernel):
    parts = [random_weight("q8_0", rows, 64) for rows in (7, 12)]
    data = torch.cat([part.data for part in parts])
    joined = kernel(RawWeight("q8_0", (19, 64), data), None)
    data.zero_()
    x = torch.randn(3, 64)
    apart = torch.cat([kernel(part, None)(x) for part in parts], dim=1)
    assert torch.equal(joined(x), apart)


@INT16
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
