"""Servers under test as processes: start, wait, pause, stop.

Two servers are compared in one run, in turns. The one whose turn it is not is stopped with
SIGSTOP, so that a busy-waiting peer cannot slow the other down.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tokenspeed.env import child_environment
from tokenspeed.errors import Problem, UnavailableError

START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `model` is the name to ask it for."""

    name: str
    base_url: str
    model: str
    process: subprocess.Popen[bytes]

    def pause(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    name: str,
    command: list[str],
    port: int,
    model: str,
    ready: str,
    log: Path,
    variables: Mapping[str, str],
) -> Iterator[Server]:
    """Starts `command` in a session of its own and yields when GET `ready` answers 200.

    Raises UnavailableError with the end of its log when it ends or takes too long.
    """
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=child_environment(variables),
        )
    server = Server(name, f"http://127.0.0.1:{port}", model, process)
    try:
        _wait_ready(server, ready, log)
        yield server
    finally:
        server.resume()
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_ready(server: Server, ready: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(server.base_url + ready, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise UnavailableError(
        Problem(
            code="TS-B001",
            message=f"{server.name} did not become ready; its log ends with\n{tail}",
            hint=f"the whole log is {log}",
        )
    )


def tokenspeed_command(recipe: Path, port: int) -> list[str]:
    return [
        sys.executable, "-m", "tokenspeed", "up", str(recipe),
        "--set", f"serve.port={port}", "--set", f"name=bench-{port}",
    ]  # fmt: skip


def transformers_command(model_dir: Path, port: int) -> list[str]:
    return [
        str(Path(sys.executable).parent / "transformers"), "serve", str(model_dir),
        "--continuous-batching", "--cb-num-blocks", "256", "--cb-block-size", "16",
        "--dtype", "bfloat16", "--device", "cpu", "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
