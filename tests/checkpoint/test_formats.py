"""Bytes of matrices, counted by hand."""

from __future__ import annotations

import pytest

from tokenspeed.checkpoint.formats import ALIGNMENT, BLOCKS, matrix_bytes, stored_bits
from tokenspeed.plan import WeightFormat

F = WeightFormat


@pytest.mark.parametrize(
    ("kept", "size"),
    [
        (F.FLOAT32, 4 * 256 * 512),
        (F.BFLOAT16, 2 * 256 * 512),
        (F.Q4_1, 256 * 512 // 32 * 20),
        (F.Q8_0, 256 * 512 // 32 * 34),
        (F.FP8, 256 * 512 + 256 * 4),
        (F.FP8_BLOCK, 256 * 512 + 2 * 4 * 4),
        (F.NVFP4, 256 * 512 // 2 + 256 * 512 // 16 + 256 * 4),
        (F.MXFP4, 256 * 512 // 2 + 256 * 512 // 32),
        (F.INT4, 256 * 512 // 2 + 256 * 512 // 128 * 2),
        (F.INT4_G32, 256 * 512 // 2 + 256 * 512 // 32 * 2),
    ],
)
def test_a_matrix(kept: WeightFormat, size: int) -> None:
    assert matrix_bytes(kept, 256, 512) == size


def test_a_row_ends_with_its_block() -> None:
    assert matrix_bytes(F.MXFP4, 3, 33) == 3 * 2 * 17
    assert matrix_bytes(F.FP8_BLOCK, 130, 130) == 130 * 130 + 4 * 4


def test_every_format_is_known() -> None:
    assert set(BLOCKS) == set(ALIGNMENT) == set(WeightFormat)


@pytest.mark.parametrize(
    ("kept", "bits"), [(F.MXFP4, 4.25), (F.NVFP4, 4.5), (F.FP8, 8), (F.BFLOAT16, 16), (F.Q4_1, 5)]
)
def test_bits(kept: WeightFormat, bits: float) -> None:
    assert stored_bits(kept) == bits
