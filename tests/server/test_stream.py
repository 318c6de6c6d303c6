"""Frames are one line each, and hold what was put in."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tokenspeed.server.openai.stream import ChunkFrames, json_line

texts = st.text(max_size=40) | st.text(
    alphabet='a\n\r\u2028\u2029\x85\x0b\x1c\x00"\\é', max_size=40
)


@given(text=texts)
def test_one_line_that_says_the_same(text: str) -> None:
    line = json_line(text)
    assert json.loads(line) == text
    assert len(line.decode().splitlines()) == 1


@given(text=texts, usage=st.booleans())
def test_a_chunk_is_what_json_would_say(text: str, usage: bool) -> None:
    frames = ChunkFrames({"id": "x", "model": text}, usage=usage)
    made = frames.chunk(
        2,
        b'"text":' + json_line(text),
        logprobs={"tokens": [text]},
        finish="stop",
        stop_reason=text,
        tokens=(1, 2),
        beside=b',"more":1',
    )
    assert made.startswith(b"data: ") and made.endswith(b"\n\n")
    chunk = json.loads(made[6:])
    assert chunk.pop("usage", None) is None
    assert chunk == {
        "id": "x",
        "model": text,
        "choices": [
            {
                "index": 2,
                "text": text,
                "logprobs": {"tokens": [text]},
                "finish_reason": "stop",
                "stop_reason": text,
                "token_ids": [1, 2],
            }
        ],
        "more": 1,
    }
