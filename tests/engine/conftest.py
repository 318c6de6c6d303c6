"""A peer that speaks the worker's side of the wire, and an engine connected to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from tokenspeed.engine import Engine
from tokenspeed.request import Delta, FinishReason, Request, SamplingParams
from tokenspeed.wire import (
    Capacity,
    FrontMessage,
    Hello,
    Outputs,
    Ready,
    WorkerMessage,
    decode_from_front,
    encode_to_front,
)

CAPACITY = Capacity(
    num_blocks=64,
    block_size=16,
    max_running=4,
    max_request_tokens=512,
    weight_bytes=1,
    kv_bytes=1,
    load_seconds=0.1,
)


@dataclass
class Peer:
    """The worker's end: one ROUTER socket."""

    socket: zmq.asyncio.Socket
    endpoint: str
    front: bytes = b""

    async def receive(self, kind: type[FrontMessage]) -> FrontMessage:
        """The next message of that kind; Hellos that are still under way are passed over."""
        async with asyncio.timeout(5):
            while True:
                self.front, frame = await self.socket.recv_multipart()
                message = decode_from_front(frame).body
                if isinstance(message, kind):
                    return message
                assert isinstance(message, Hello), message

    async def send(self, message: WorkerMessage) -> None:
        await self.send_raw(encode_to_front(message, self.front.decode(), time.time_ns()))

    async def send_raw(self, *frames: bytes) -> None:
        await self.socket.send_multipart([self.front, *frames])

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
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    endpoint = f"ipc://{tmp_path}/worker-1.sock"
    socket.bind(endpoint)
    yield Peer(socket, endpoint)
    context.destroy(linger=0)


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
