"""Replays among the spans of a trace."""

from __future__ import annotations

import pytest

from tokenspeed.bench.trace import Span, summary


def steps(count: int, overlap: float) -> list[Span]:
    """Replays of ten kernels of 5 us, each `overlap` us beside the one before, 10 us apart; a copy
    of 2 us after the first 3 of those."""
    spans, time = [], 100.0
    for step in range(count):
        for kernel in range(10):
            begin = time + kernel * (5 - overlap)
            spans.append(Span(begin, begin + 5, f"kernel {kernel % 2}", 7 + step))
        end = spans[-1].end
        spans.append(Span(end + 3, end + 5, "copy", 1000 + step))
        time = end + 10
    return spans


@pytest.mark.parametrize("overlap", [0.0, 2.0])
def test_replays_are_told_apart_and_the_time_between_them(overlap: float) -> None:
    found = summary(steps(5, overlap), 64, 1000)
    length = 50 - 9 * overlap
    assert found.between_replays_us == pytest.approx(10)
    assert found.longest_between_us == pytest.approx(10)
    assert found.busy_between_us == pytest.approx(2)
    assert found.busy == pytest.approx((5 * length + 4 * 2) / (5 * length + 4 * 10))
    assert found.gaps_us[0] == pytest.approx(5)
    by_name = {name: (us, launches) for name, us, launches in found.kernels}
    assert by_name["kernel 1"] == (pytest.approx(5 * (5 - overlap)), 5.0)


def test_kernels_that_were_launched_one_by_one_are_no_replays() -> None:
    spans = [Span(9.0 * i, 9.0 * i + 5, "kernel", i) for i in range(40)]
    with pytest.raises(ValueError, match="no steady decode"):
        summary(spans, 1, 1000)
