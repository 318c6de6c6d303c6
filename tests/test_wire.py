"""Frames come out of a stream as they went in, wherever it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenspeed.wire import FrameError, FrameReader, framed


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_frames_survive_any_cut(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader()
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[begin:end])
    assert found == payloads


def test_a_length_that_no_frame_has() -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(b"\xff\xff\xff\xff")
