"""The nearest known word."""

from __future__ import annotations

import pytest

from tokenspeed.recipe.words import edits, nearest

KEYS = ("model", "quantization", "parallel", "kv", "kernels", "limits", "serve")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("modle", "model"),
        ("sever", "serve"),
        ("limit", "limits"),
        ("quantisation", "quantization"),
        ("s\u0435rve", "serve"),  # the second letter is Cyrillic
        ("Model", "model"),
        ("observability", None),
    ],
)
def test_nearest(written: str, meant: str | None) -> None:
    assert nearest(written, KEYS) == meant


def test_a_swap_is_one_edit() -> None:
    assert edits("modle", "model") == 1
    assert edits("", "abc") == 3
    assert edits("kitten", "sitting") == 3


def test_nothing_is_near_nothing() -> None:
    assert nearest("a", ()) is None
