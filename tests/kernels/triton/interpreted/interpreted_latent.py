from __future__ import annotations

from dataclasses import replace

import pytest
from tokenspeed_kernels.latent.latent_attention_triton import DECODE, WIDE

from tests.kernels.triton.latent_cases import check_head_product, check_latent, check_latent_write

SMALL = replace(DECODE, keys=32)
LARGE = replace(WIDE, rows=32, keys=16)


@pytest.mark.parametrize("kind", ["bf16", "fp8", "scaled"])
@pytest.mark.parametrize(("tokens", "heads", "nope"), [(1, 16, 32), (3, 5, 24), (70, 2, 32)])
def test_write(tokens, heads, nope, kind):
    check_latent_write("cpu", tokens, heads, nope, 64, 16, kind)


@pytest.mark.parametrize("kind", ["bf16", "fp8", "scaled"])
@pytest.mark.parametrize("contexts", [[0], [5, 99, 176], [200, 0, 0, 31]])
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


@pytest.mark.parametrize(("inputs", "outputs"), [(128, 512), (512, 128), (24, 40)])
@pytest.mark.parametrize("tokens", [1, 17])
def test_head_product(tokens, inputs, outputs):
    check_head_product("cpu", tokens, 3, inputs, outputs)
