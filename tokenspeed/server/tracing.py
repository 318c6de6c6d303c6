"""What is known of a request when it is over, for whoever collects traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SequenceTrace:
    """One sequence of a request. Times are those of `time.monotonic`; `queued_seconds` and
    `first_token` are None where it ended before. `cached_tokens` of the prompt were not
    computed."""

    submitted: float
    queued_seconds: float | None
    first_token: float | None
    ended: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish: str


@dataclass(frozen=True, slots=True)
class Trace:
    """An HTTP request from its arrival to the end of its answer. `parent` and `state` are its W3C
    headers traceparent and tracestate, "" for none; `sequences` is empty where nothing was
    generated."""

    method: str
    route: str
    status: int
    request_id: str
    parent: str
    state: str
    model: str
    began: float
    ended: float
    sequences: tuple[SequenceTrace, ...]


class Tracer(Protocol):
    """Takes traces. `record` is called on the event loop, so it never waits for anybody."""

    def record(self, trace: Trace) -> None: ...

    def close(self) -> None:
        """Sends what is left. Blocks."""


def parents(headers: list[tuple[bytes, bytes]]) -> tuple[str, str]:
    """traceparent and tracestate; several of the latter are one list."""
    found = {b"traceparent": "", b"tracestate": ""}
    for name, value in headers:
        if name in found:
            text = value.decode("latin-1")
            found[name] = f"{found[name]},{text}" if found[name] else text
    return found[b"traceparent"], found[b"tracestate"]
