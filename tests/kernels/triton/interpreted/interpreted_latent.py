from __future__ import annotations

from dataclasses import replace

import pytest
from tokenspeed_kernels.latent.latent_attention_triton import DECODE, WIDE
from tokenspeed_kernels.latent.latent_extend_triton import ExtendTiling

from tests.kernels.triton.latent_cases import (
    check_head_product,
    check_latent,
    check_latent_extend,
    check_latent_write,
)

SMALL = replace(DECODE, keys=32)
LARGE = replace(WIDE, rows=32, keys=16)


@pytest.mark.parametrize("kind", ["bf16", "fp8", "scaled"])
@pytest.mark.parametrize(("tokens", "heads", "nope"), [(1, 16, 32), (3, 5, 24), (70, 2, 32)])
def test_write(tokens, heads, nope, kind):
    check_latent_write("cpu", tokens, heads, nope, 64, 16, kind)


@pytest.mark.parametrize("kind", ["bf16", "fp8", "scaled"])
@pytest.mark.parametrize("contexts", [[0], [176], [5, 99, 176], [200, 0, 0, 31]])
def test_decode(contexts, kind):
    rows = len(contexts)
    check_latent("cpu", [1] * rows, contexts, rows, kind=kind, decode=SMALL, block=64)


@pytest.mark.parametrize("heads", [1, 5, 32, 128])
def test_any_number_of_heads(heads):
    check_latent("cpu", [1, 4], [70, 30], 1, heads=heads, extend=LARGE)


@pytest.mark.parametrize("kind", ["bf16", "scaled"])
def test_mixed_with_empty_rows(kind):
    lengths, contexts = [1, 0, 1, 9, 0, 3], [50, 70, 0, 16, 9, 64]
    check_latent("cpu", lengths, contexts, 3, kind=kind, decode=SMALL, extend=LARGE)


def test_windows_of_one_to_eight_queries():
    contexts = [0, 40, 63, 1, 16, 90, 31, 64]
    check_latent("cpu", [*range(1, 9)], contexts, 0, heads=16, extend=LARGE)


def test_decode_of_a_long_text():
    check_latent("cpu", [1, 1], [131071, 5000], 2, decode=replace(SMALL, keys=1024), block=64)


def test_extend_on_a_long_text():
    tiling = ExtendTiling(queries=32, keys=512, tokens=512, inputs=64)
    check_latent_extend("cpu", [3], [20000], heads=1, chunk=8192, tiling=tiling)


@pytest.mark.parametrize(("inputs", "outputs"), [(128, 512), (512, 128), (24, 40)])
@pytest.mark.parametrize("tokens", [1, 17])
def test_head_product(tokens, inputs, outputs):
    check_head_product("cpu", tokens, 3, inputs, outputs)


TILES = ExtendTiling(queries=32, keys=16, tokens=32, inputs=32)
# New and cached tokens of each row: one alone, in and across chunks of 64, of many lengths.
ROWS = {
    "prompt": ([70], [0]),
    "one on a long text": ([1], [150]),
    "whole chunks": ([64, 32], [64, 96]),
    "ragged": ([40, 1, 7, 0, 33], [33, 90, 0, 50, 131]),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_extend(rows):
    check_latent_extend("cpu", *rows, tiling=TILES)


@pytest.mark.parametrize("kind", ["fp8", "scaled"])
def test_extend_over_float8(kind):
    check_latent_extend("cpu", [20, 0, 5], [33, 50, 91], kind=kind, tiling=TILES)


@pytest.mark.parametrize("kind", ["bf16", "fp8", "scaled"])
@pytest.mark.parametrize("rows", ["ragged", "whole chunks"])
def test_extend_by_products_of_torch(rows, kind):
    check_latent_extend("cpu", *ROWS[rows], kind=kind, tiling=TILES, by_torch=True)


def test_layers_after_one_another():
    """What one leaves in the buffers is not seen by the next."""
    check_latent_extend("cpu", [20], [70], layers=2, tiling=TILES)


@pytest.mark.parametrize("room", [1, 16, 64])
def test_shares_of_a_q_tile(room):
    """Up to 16 programs on the keys of a q tile, most of which have none in some chunk."""
    check_latent_extend("cpu", [9, 3], [200, 0], room=room, tiling=TILES)


@pytest.mark.parametrize("heads", [1, 16, 32, 64, 128])
def test_extend_of_any_number_of_heads(heads):
    check_latent_extend("cpu", [3], [20], heads=heads, nope=16, value=16, room=1, tiling=TILES)


@pytest.mark.parametrize(("nope", "value", "block"), [(24, 48, 64), (16, 40, 32), (64, 16, 128)])
def test_extend_of_any_width(nope, value, block):
    check_latent_extend("cpu", [20, 3], [45, 64], nope=nope, value=value, block=block, tiling=TILES)


def test_extend_beside_rows_that_decode():
    lengths, contexts = [1, 0, 1, 20, 0, 3], [50, 70, 0, 16, 9, 64]
    check_latent_extend("cpu", lengths, contexts, first_row=3, tiling=TILES)


def test_extend_of_no_row():
    check_latent_extend("cpu", [1, 0, 0], [50, 3, 0], first_row=1, tiling=TILES)
