"""The few messages between the front and the workers, and their encoding.

MessagePack through msgspec, over a Unix stream socket in the instance's private run directory, on
which the worker listens. A frame is its length, four bytes little-endian, and one Envelope. A frame
that does not decode is counted and dropped; nothing is ever unpickled or evaluated.

Plain sockets and no message library: a lone stream wakes the front once a token, and one thread,
one read and one write for it cost less than half of what a library's own thread beside them does.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from tokenspeed.request import Delta, Request

PROTOCOL_VERSION = 5
MAX_FRAME_BYTES = 1 << 30
# What one read takes. Larger ones would map and unmap memory for each frame.
READ_BYTES = 1 << 16


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker measured that it really holds, after the weights are loaded.

    `max_request_tokens` is the longest prompt + answer one request may reach: the least of the
    plan's limit and what the usable blocks hold.
    """

    num_blocks: int
    block_size: int
    max_running: int
    max_request_tokens: int
    weight_bytes: int
    kv_bytes: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """True state at the moment of asking; counters never go down."""

    running: int = 0
    waiting: int = 0
    slots_used: int = 0
    blocks_total: int = 0
    blocks_used: int = 0  # held by a request, or fenced
    blocks_cached: int = 0  # kept for prefix reuse only; counts as free
    steps: int = 0
    prompt_tokens: int = 0  # prompt tokens of admitted requests, cached ones included
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0  # of these, what grammars forced and no step sampled
    preemptions: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    bad_frames: int = 0
    step_seconds_sum: float = 0.0


# ---- front to worker


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A front is here; the worker answers with Starting until it can answer with Ready."""


class Submit(msgspec.Struct, frozen=True, tag="submit", omit_defaults=True):
    """`request.tokens` are only what follows the first `shared` tokens of the prompt that this
    front numbered `base`; 0 for none. The worker keeps the whole prompt under `number` (0: it does
    not) until a later message names it in `forget`, which is read last."""

    request: Request
    number: int = 0
    base: int = 0
    shared: int = 0
    forget: tuple[int, ...] = ()


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request. Answered by its final Delta; unknown ids are ignored."""

    request_id: int


class AskStats(msgspec.Struct, frozen=True, tag="ask_stats"):
    query_id: int


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Forget every cached prefix. Requests that read one go on."""

    query_id: int


class AskExperts(msgspec.Struct, frozen=True, tag="ask_experts"):
    query_id: int


class Profile(msgspec.Struct, frozen=True, tag="profile"):
    """Record the next `steps` steps, or those of the next `seconds`. Answered when it is done."""

    query_id: int
    steps: int
    seconds: float


class SetLogLevel(msgspec.Struct, frozen=True, tag="log_level"):
    """`level` is one of `log.LEVELS`."""

    level: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End every open request with ABORT and exit 0."""


FrontMessage = (
    Hello | Submit | Abort | AskStats | AskExperts | Flush | Profile | SetLogLevel | Shutdown
)

# ---- worker to front


class Starting(msgspec.Struct, frozen=True, tag="starting"):
    """`fraction` runs from 0 to 1 within the stage; `detail` is for people."""

    stage: str
    fraction: float
    detail: str = ""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """`stages` are the seconds of each stage of the start, in order."""

    capacity: Capacity
    stages: dict[str, float] = {}


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    deltas: tuple[Delta, ...]


class StatsAnswer(msgspec.Struct, frozen=True, tag="stats"):
    query_id: int
    stats: EngineStats


class LayerLoad(msgspec.Struct, frozen=True):
    """`tokens` that each expert of the model's layer `layer` was given since the start."""

    layer: int
    tokens: tuple[int, ...]


class ExpertsAnswer(msgspec.Struct, frozen=True, tag="experts"):
    """`layers` with experts, none where they are not counted."""

    query_id: int
    layers: tuple[LayerLoad, ...]


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    """`blocks` were kept for their prefixes, on the device and the host."""

    query_id: int
    blocks: int


class Profiled(msgspec.Struct, frozen=True, tag="profiled"):
    """`file` holds a trace of `steps` steps; "" where there is none, and `error` says why."""

    query_id: int
    file: str = ""
    steps: int = 0
    error: str = ""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Sent about twice a second from inside the loop, so silence means that it hangs."""

    turns: int


WorkerMessage = (
    Starting | Ready | Outputs | StatsAnswer | ExpertsAnswer | Flushed | Profiled | Heartbeat
)


class FrontEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """Every frame towards a worker: protocol version and the id of the front that it is from."""

    version: int
    front_id: str
    body: FrontMessage


class WorkerEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """Every frame towards a front; `front_id` is the one it is meant for."""

    version: int
    front_id: str
    body: WorkerMessage


class FrameError(ValueError):
    """The bytes are not a frame of this protocol version."""


_LENGTH = struct.Struct("<I")


def framed(payload: bytes) -> bytes:
    """What goes into the socket for an encoded envelope."""
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cuts a stream of bytes into frames."""

    __slots__ = ("_held", "_held_bytes", "_needed")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed = 0  # bytes without which nothing can be cut

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that these bytes complete, without their lengths.

        Raises FrameError when what follows cannot be a frame: the stream is of no more use.
        """
        if self._held or self._needed > len(data):
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed:
                return []
            data = b"".join(self._held)
            self._held, self._held_bytes = [], 0
        frames, begin = [], 0
        while True:
            left = len(data) - begin - _LENGTH.size
            if left < 0:
                self._needed = _LENGTH.size
                break
            (length,) = _LENGTH.unpack_from(data, begin)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes")
            if left < length:
                self._needed = _LENGTH.size + length
                break
            begin += _LENGTH.size + length
            frames.append(data[begin - length : begin])
        if begin < len(data):
            self._held.append(data[begin:])
            self._held_bytes = len(data) - begin
        return frames


_encoder = msgspec.msgpack.Encoder()
_front_decoder = msgspec.msgpack.Decoder(FrontEnvelope)
_worker_decoder = msgspec.msgpack.Decoder(WorkerEnvelope)


def encode_to_worker(body: FrontMessage, front_id: str) -> bytes:
    return _encoder.encode(FrontEnvelope(PROTOCOL_VERSION, front_id, body))


def encode_to_front(body: WorkerMessage, front_id: str) -> bytes:
    return _encoder.encode(WorkerEnvelope(PROTOCOL_VERSION, front_id, body))


def decode_from_front(frame: bytes) -> FrontEnvelope:
    """Raises FrameError."""
    try:
        envelope = _front_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(str(error)) from error
    return _checked(envelope)


def decode_from_worker(frame: bytes) -> WorkerEnvelope:
    """Raises FrameError."""
    try:
        envelope = _worker_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(str(error)) from error
    return _checked(envelope)


_Envelope = TypeVar("_Envelope", FrontEnvelope, WorkerEnvelope)


def _checked(envelope: _Envelope) -> _Envelope:
    if envelope.version != PROTOCOL_VERSION:
        raise FrameError(f"protocol version {envelope.version}, expected {PROTOCOL_VERSION}")
    return envelope
