"""How products of few rows are cut."""

from __future__ import annotations

import pytest
from tokenspeed_kernels.gemm.tiles import Normed, Ring, Tile, cuts, normed

# What follows in a shape's measured neighbours was 32 programs on 132 multiprocessors.
DOWN = (2048, 10944, False)


@pytest.mark.parametrize("shape", [DOWN, (4096, 14336, False), (2048, 8192, False)])
def test_splits_cover_the_inputs_and_programs_the_device(shape):
    out_features, in_features, _ = shape
    for rows, cut in cuts("bfloat16", shape, hopper=True):
        if cut is None:
            continue
        assert in_features % cut.inputs == 0 or isinstance(cut, Tile)
        assert cut.splits == 1 or in_features % (cut.splits * cut.inputs) == 0
        if isinstance(cut, Ring) and rows <= 32:
            assert out_features // cut.outputs * cut.splits >= 96, (rows, cut)


def test_a_row_and_its_norm_share_a_kernel_where_all_its_programs_run_at_once():
    assert normed("bfloat16", (64, 2048, False), hopper=True) == Normed(1)
    assert normed("bfloat16", (3648, 2048, False), hopper=True) == Normed(8)
    # Too many outputs, too many inputs, tiles that come through a ring, another format.
    assert normed("bfloat16", (102400, 2048, False), hopper=True) is None
    assert normed("bfloat16", (64, 8192, False), hopper=True) is None
    assert normed("bfloat16", (5120, 2048, False), hopper=True) is None
    assert normed("fp8", (64, 2048, False), hopper=True) is None
