"""A peer that speaks the worker's side of the wire, and an engine connected to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tokenspeed.engine import Engine
from tokenspeed.request import Delta, FinishReason, Request, SamplingParams
from tokenspeed.wire import (
    READ_BYTES,
    Capacity,
    FrameReader,
    FrontMessage,
    Hello,
    Outputs,
    Ready,
    WorkerMessage,
    decode_from_front,
    encode_to_front,
    framed,
)

CAPACITY = Capacity(
    num_blocks=64,
    block_size=16,
    max_running=4,
    max_request_tokens=512,
    weight_bytes=1,
    kv_bytes=1,
)


class Peer:
    """The worker's end. What it sends goes to the front that it heard last."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.front = ""
        self._server: asyncio.Server | None = None
        self._heard: asyncio.Queue[tuple[asyncio.StreamWriter, bytes]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []
        self._answering: asyncio.StreamWriter | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, self.endpoint)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        frames = FrameReader()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(READ_BYTES):
                for frame in frames.feed(data):
                    self._heard.put_nowait((writer, frame))
        writer.close()

    async def receive(self, kind: type[FrontMessage]) -> FrontMessage:
        """The next message of that kind; Hellos that are still under way are passed over."""
        async with asyncio.timeout(5):
            while True:
                self._answering, frame = await self._heard.get()
                envelope = decode_from_front(frame)
                self.front = envelope.front_id
                if isinstance(envelope.body, kind):
                    return envelope.body
                assert isinstance(envelope.body, Hello), envelope.body

    async def send(self, message: WorkerMessage) -> None:
        await self.send_raw(encode_to_front(message, self.front))

    async def send_raw(self, *payloads: bytes) -> None:
        for payload in payloads:
            await self.send_bytes(framed(payload))

    async def send_bytes(self, data: bytes) -> None:
        assert self._answering is not None
        self._answering.write(data)
        await self._answering.drain()

    def hang_up(self) -> None:
        """Ends the connections; new ones are taken."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def close(self) -> None:
        self.hang_up()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def deltas(self, *deltas: Delta) -> None:
        await self.send(Outputs(deltas))

    async def make_ready(self) -> None:
        await self.receive(Hello)
        await self.send(Ready(CAPACITY))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    peer = Peer(f"{tmp_path}/worker-1.sock")
    await peer.listen()
    yield peer
    await peer.close()


@pytest.fixture
async def engine(peer: Peer) -> AsyncIterator[Engine]:
    """Connected, not yet ready."""
    engine = Engine("front-1")
    engine.connect(peer.endpoint)
    yield engine
    await engine.close()


def request(request_id: int = 1, max_tokens: int = 8) -> Request:
    return Request(
        request_id=request_id,
        tokens=b"\1\0\0\0",
        max_tokens=max_tokens,
        sampling=SamplingParams(),
    )


def token(request_id: int, *tokens: int, finish: FinishReason | None = None) -> Delta:
    return Delta(request_id=request_id, tokens=tokens, finish_reason=finish)


async def until(condition: object, seconds: float = 5.0) -> None:
    """Waits until the callable says yes."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
