"""Frames of a streamed answer.

Everything that stays the same over an answer is encoded once; a token costs the encoding of its
text and the joining of a few byte strings. Each frame is `data: `, one line of JSON, a blank line.
"""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode
# Legal inside JSON, but some readers of events split lines at these too.
_LINE_BREAKS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def json_line(value: object) -> bytes:
    """JSON without any character that could be taken for the end of a line."""
    line = _encode(value)
    if not line.isascii():
        for raw, escaped in _LINE_BREAKS:
            line = line.replace(raw, escaped)
    return line


def frame(value: object) -> bytes:
    return b"data: " + json_line(value) + b"\n\n"


class ChunkFrames:
    """Makes the chunk frames of one answer; `head` are the fields that all of them share."""

    def __init__(self, head: dict[str, Any], *, usage: bool) -> None:
        self._head = head
        # Clients that asked for usage expect the field, null, in every other chunk.
        self._tail = b',"usage":null}\n\n' if usage else b"}\n\n"
        self._begin = b"data: " + json_line(head)[:-1] + b',"choices":[{"index":'

    def chunk(
        self,
        index: int,
        content: bytes,
        *,
        logprobs: object = None,
        finish: str | None = None,
        stop_reason: str | int | None = None,
        tokens: tuple[int, ...] = (),
        beside: bytes = b"",
    ) -> bytes:
        """`content` is the choice's own part, such as `"delta":{"content":"Hi"}`; `beside` are
        fields of the chunk itself, each after a comma."""
        parts = [self._begin, b"%d," % index, content]
        parts.append(b',"logprobs":' + (b"null" if logprobs is None else json_line(logprobs)))
        if finish is None:
            parts.append(b',"finish_reason":null')
        else:
            parts.append(b',"finish_reason":"' + finish.encode() + b'"')
            parts.append(b',"stop_reason":' + json_line(stop_reason))
        if tokens:
            parts.append(b',"token_ids":' + _encode(tokens))
        parts.append(b"}]" + beside + self._tail)
        return b"".join(parts)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The extra chunk after the last choice has ended."""
        return frame({**self._head, "choices": [], "usage": usage})
