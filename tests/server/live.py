"""A real worker process, the real application on a real socket, and clients of it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn
import uvloop

from tokenspeed.engine import Engine, Ready
from tokenspeed.env import worker_environment
from tokenspeed.plan import Plan
from tokenspeed.server.app import App, create_app
from tokenspeed.server.keys import read_keys
from tokenspeed.server.listen import uvicorn_config
from tokenspeed.tokenizer import TextModel, load_text_model
from tokenspeed.wire import EngineStats

START_SECONDS = 60.0
IDLE_SECONDS = 10.0  # the promise is 2; two busy cores may need longer

T = TypeVar("T")


def until(condition: Callable[[], bool], seconds: float = IDLE_SECONDS, what: str = "") -> None:
    """Polls until the condition holds; fails loudly when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.01)


class LiveServer:
    """Worker and application for one plan. Use `serving`, which also ends them."""

    def __init__(self, plan: Plan, model_dir: Path, run_dir: Path) -> None:
        self.plan = plan
        self.run_dir = run_dir
        self._model_dir = model_dir
        self.keys = read_keys(plan.serve.api_keys)
        self.text: TextModel = load_text_model(model_dir, plan)
        self.engine: Engine
        self.worker: subprocess.Popen[bytes]
        self._incarnation = 0
        self._loop: asyncio.AbstractEventLoop
        self._server: uvicorn.Server
        self._started = threading.Event()
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(1024)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        (run_dir / "plan.json").write_bytes(plan.to_json())
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()))
        self._thread.start()
        assert self._started.wait(10)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine = Engine(f"front-{os.getpid()}")
        app = create_app(self.plan, self.engine, self.text, self.keys, stall_seconds=2.0)
        self._server = uvicorn.Server(uvicorn_config(app))
        self._started.set()
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            app.close()
            await self.engine.close()

    def call(self, work: Callable[[], T]) -> T:
        """Runs a function on the server's event loop."""

        async def run() -> T:
            return work()

        return self.wait(run())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(START_SECONDS)

    # ---- the worker

    def start_worker(self, *, wait: bool = True) -> None:
        self._incarnation += 1
        endpoint = f"{self.run_dir}/worker-{self._incarnation}.sock"
        self.worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "tokenspeed.worker"),
                *("--run-dir", str(self.run_dir)),
                *("--model-dir", str(self._model_dir)),
                *("--endpoint", endpoint),
            ],
            env=worker_environment(1),
        )
        self.call(lambda: self.engine.connect(endpoint))
        if wait:
            self.wait(self.engine.wait_ready())

    def kill_worker(self) -> None:
        """SIGKILL, then what the supervisor does when it sees the death."""
        self.worker.kill()
        self.worker.wait(10)
        self.call(lambda: self.engine.disconnect("killed by signal 9"))

    def signal_worker(self, number: signal.Signals) -> None:
        self.worker.send_signal(number)

    def close(self) -> None:
        try:
            if isinstance(self.engine.state, Ready):
                self.call(self.engine.shutdown_worker)
                assert self.worker.wait(START_SECONDS) == 0
            else:
                self.worker.kill()
                self.worker.wait(10)
        finally:  # or the thread would keep pytest from ending
            self._server.should_exit = True
            self._thread.join(20)
            self._socket.close()

    # ---- what the tests ask

    def stats(self) -> EngineStats:
        return self.wait(self.engine.stats(10))

    def assert_idle(self) -> None:
        """[IDLE]: nothing runs, nothing waits, no block is held."""

        def idle() -> bool:
            stats = self.stats()
            busy = stats.running + stats.waiting + stats.slots_used + stats.blocks_used
            return busy == 0 and self.engine.open_requests == 0

        until(idle, what="idle again")

    def get(self, path: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, decoded body (JSON when it is) and headers in lower case."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, data, {"content-type": "application/json", **headers})

    def request(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        is_json = found.get("content-type", "").startswith("application/json")
        return response.status, json.loads(raw) if is_json and raw else raw, found

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """A completion that must work."""
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, **fields}
        status, answer, _ = self.post("/v1/completions", body)
        assert status == 200, answer
        return answer

    def chat(self, content: str, **fields: Any) -> dict[str, Any]:
        """A chat that must work."""
        messages = [{"role": "user", "content": content}]
        body = {"model": "tiny", "messages": messages, "temperature": 0, **fields}
        status, answer, _ = self.post("/v1/chat/completions", body)
        assert status == 200, answer
        return answer

    def ask_app(self, app: App, path: str, body: Any) -> tuple[int, Any]:
        """Status and decoded body of `response_of`."""
        response = self.response_of(app, path, body)
        return response.status_code, response.json()

    def response_of(self, app: App, path: str, body: Any) -> httpx.Response:
        """One request to another application over this server's engine, without a socket."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.post(path, json=body)

        return self.wait(ask())

    def events(self, path: str, **fields: Any) -> list[Any]:
        """The decoded frames of a stream that must work, without [DONE]."""
        raw = Raw(self.port)
        raw.post(path, {"model": "tiny", "temperature": 0, "stream": True, **fields})
        status, _, body = raw.answer()
        assert status == 200, body
        frames = sse_frames(body)
        assert frames[-1] == "[DONE]"
        return [json.loads(frame) for frame in frames[:-1]]


@contextmanager
def serving(
    plan: Plan, model_dir: Path, run_dir: Path, *, start: bool = True
) -> Iterator[LiveServer]:
    server = LiveServer(plan, model_dir, run_dir)
    try:
        if start:
            server.start_worker()
        yield server
    finally:
        server.close()


class Raw:
    """RAW: a socket that keeps every byte."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.received = b""

    def post(self, path: str, body: Any) -> None:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n\r\n"
        self.socket.sendall(head.encode() + data)

    def read_until(self, mark: bytes) -> bytes:
        """Everything so far, once it holds the mark."""
        while mark not in self.received:
            chunk = self.socket.recv(65536)
            assert chunk, f"closed before {mark!r}: {self.received[-300:]!r}"
            self.received += chunk
        return self.received

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and the whole decoded body; closes the connection."""
        while True:
            head, _, rest = self.read_until(b"\r\n\r\n").partition(b"\r\n\r\n")
            status = int(head.split(b" ")[1])
            if status >= 200:
                break
            self.received = rest  # an interim answer
        lines = head.decode().split("\r\n")[1:]
        headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines)}
        if "content-length" in headers:
            size = int(headers["content-length"])
            while len(rest) < size:
                rest += self.socket.recv(65536)
            body = rest[:size]
        else:
            self.received = rest
            body = dechunked(self.read_until(b"0\r\n\r\n"))
        self.close()
        return status, headers, body

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Closes with a TCP reset, as a killed client's kernel does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()


def dechunked(data: bytes) -> bytes:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if int(size, 16) == 0:
            return body
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]


def sse_frames(body: bytes) -> list[str]:
    """The payloads of a stream. Each frame must be `data: `, one line, a blank line."""
    *frames, rest = body.split(b"\n\n")
    assert rest == b""
    frames = [frame for frame in frames if frame != b":"]  # comments to half-closed clients
    for frame in frames:
        assert frame.startswith(b"data: "), frame
        assert len(frame.decode().splitlines()) == 1, frame
    return [frame[6:].decode() for frame in frames]


def joined(events: list[Any], index: int = 0) -> str:
    """The text of one choice of a stream."""
    texts = []
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index:
                texts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
    return "".join(texts)
