from __future__ import annotations

import pytest

from tests.kernels.triton import cases


@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 100), (2, 576)])
def test_norms(rows, width):
    cases.check_rms_norm("cpu", rows, width)
    cases.check_add_rms_norm("cpu", rows, width)


def test_no_rows():
    cases.check_rms_norm("cpu", 0, 64)
    cases.check_silu_mul("cpu", 0, 64)
    cases.check_embedding("cpu", 10, 64, 0)


@pytest.mark.parametrize(("rows", "width"), [(1, 32), (3, 1100)])
def test_silu_mul(rows, width):
    cases.check_silu_mul("cpu", rows, width)


def test_embedding():
    cases.check_embedding("cpu", 50, 2100, 4)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim"),
    [(4, 2, 64, 64), (9, 3, 64, 64), (3, 1, 96, 48)],
)
def test_rope(heads, kv_heads, head_dim, rotary_dim, norm):
    cases.check_rope("cpu", 5, heads, kv_heads, head_dim, rotary_dim, norm, cases.BF16)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (9, 3), (3, 1)])
def test_rope_of_a_lone_token(heads, kv_heads, parts):
    cases.check_rope("cpu", 1, heads, kv_heads, 64, 64, True, cases.FP8, parts)


@pytest.mark.parametrize("norm", [False, True])
def test_rope_into_float8(norm):
    cases.check_rope("cpu", 5, 4, 2, 64, 64, norm, cases.FP8)
