"""Runs the real `tokenspeed` on a tiny random model, and looks for what it leaves behind.

with Home() as home:
    front = home.up(home.recipe("demo", model_dir))
    front.wait_ready()
    ...
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.ports import is_listened_on
from tests.rigs.rand import build_rand
from tokenspeed.appliance.instance import Record, records
from tokenspeed.appliance.process import Handle, start_ticks

PATIENCE = 60.0
MAX_RUNNING = 8
TOKENSPEED = [sys.executable, "-P", "-m", "tokenspeed"]

RECIPE = """\
version: 1
name: {name}
device: cpu
model:
  source: path:{model}
  served_names: [tiny]
kv:
  blocks: {blocks}
limits:
  max_running: {max_running}
  threads: 1
serve:
  port: {port}
  drain: {drain}
"""


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)
    return value


def tiny_model(folder: Path) -> Path:
    """R-RAND with room for answers of thousands of tokens."""
    return build_rand(folder, family="llama", max_position_embeddings=65_536)


class Home:
    """Folders of its own for run state and weights; short, for the sake of Unix sockets."""

    def __enter__(self) -> Home:
        self._folder = tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp")
        self.path = Path(self._folder.name)
        self.run_root = self.path / "r" / "tokenspeed"
        self.data_root = self.path / "d" / "tokenspeed"
        self.environment = os.environ | {
            "XDG_RUNTIME_DIR": str(self.path / "r"),
            "XDG_DATA_HOME": str(self.path / "d"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self.fronts: list[Front] = []
        self._seen: dict[int, Handle] = {}
        return self

    def __exit__(self, *_: object) -> None:
        for front in self.fronts:
            front.destroy()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.processes(), "every process of the test is gone")
        self._folder.cleanup()

    def recipe(
        self, name: str, model: Path, *, port: int = 0, drain: str = "20s", blocks: int = 8192
    ) -> Path:
        path = self.path / f"{name}.yaml"
        text = RECIPE.format(
            name=name, model=model, port=port, drain=drain, blocks=blocks, max_running=MAX_RUNNING
        )
        path.write_text(text)
        return path

    def up(self, recipe: Path, *options: str, **popen: Any) -> Front:
        """Starts `tokenspeed up` in the foreground, in a process group of its own."""
        command = popen.pop("command", [*TOKENSPEED, "up", str(recipe)])
        process = subprocess.Popen(
            [*command, *options],
            env=self.environment | popen.pop("environment", {}),
            stdin=subprocess.DEVNULL,
            text=True,
            process_group=0,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | popen,
        )
        front = Front(self, process, recipe.stem)
        self.fronts.append(front)
        return front

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """One short `tokenspeed` command."""
        return subprocess.run(
            [*TOKENSPEED, *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def record(self, name: str) -> Record | None:
        found = (record for record in records(self.run_root) if record.name == name)
        return next(found, None)

    def processes(self) -> list[int]:
        """Every process that was started under this home, however far it wandered.

        One that ends counts until its last thread is gone: it has no environment any more while
        the kernel still closes its files, a port that it listened on among them.
        """
        marker = f"XDG_RUNTIME_DIR={self.path / 'r'}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in {os.getpid(), *self._seen}:
                continue
            with contextlib.suppress(OSError):
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    self._see(int(entry.name))
        for pid in [pid for pid, handle in self._seen.items() if handle.ended(0)]:
            self._seen.pop(pid).close()
        return list(self._seen)

    def _see(self, pid: int) -> None:
        ticks = start_ticks(pid)
        if ticks is not None:
            self._seen[pid] = Handle(pid, ticks)

    def shared_memory(self) -> set[str]:
        """Files in /dev/shm that a process under this home has open or mapped."""
        found: set[str] = set()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                found |= set(re.findall(r"/dev/shm/\S+", maps))
        return found

    def check_no_leaks(self, front: Front) -> None:
        """No process, socket, run folder or shared memory of the instance is left."""
        until(lambda: not self.processes(), f"no process is left, but {self.processes()}", 10.0)
        assert not list(self.run_root.iterdir())
        unix = Path("/proc/net/unix").read_text()
        assert str(self.path) not in unix
        assert not [path for path in front.shared_memory if Path(path).exists()]
        assert not (front.url and is_listened_on(front.address[1]))


@dataclass
class Front:
    """One `tokenspeed up` in the foreground."""

    home: Home
    process: subprocess.Popen[str]
    name: str
    url: str = ""
    lines: list[str] = field(default_factory=list)
    shared_memory: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.client = httpx.Client(timeout=PATIENCE, trust_env=False, verify=False, limits=limits)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        return host, int(port)

    def wait_listening(self) -> Front:
        def listening() -> Record | None:
            assert self.process.poll() is None, f"it ended:\n{self.output}"
            return self.home.record(self.name)

        self.url = until(listening, "the instance listens").url
        return self

    def wait_ready(self) -> Front:
        self.wait_listening()

        def greeted() -> bool:
            assert self.process.poll() is None, f"it ended:\n{self.output}"
            record = self.home.record(self.name)
            return bool(record and record.greeting)

        until(greeted, "the instance is ready")
        self.shared_memory |= self.home.shared_memory()
        return self

    def worker(self) -> int | None:
        """Pid of its worker process."""
        return self._running(b"tokenspeed.worker")

    def further(self) -> int | None:
        """Pid of a front beside the first one."""
        return self._running(b"tokenspeed.appliance.further")

    def _running(self, module: bytes) -> int | None:
        for pid in self.home.processes():
            with contextlib.suppress(OSError):
                if module in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def stop(self, *numbers: signal.Signals, seconds: float = PATIENCE) -> int:
        """Sends the signals to the front alone and returns its exit code."""
        for number in numbers:
            self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = PATIENCE) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def destroy(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        self.client.close()
        if self.process.stdout:
            self.process.stdout.close()

    # ---- talking to it

    def get(self, path: str) -> httpx.Response:
        return self.client.get(self.url + path, timeout=10)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.client.post(self.url + path, json=body)

    def ask(self, prompt: str = "hello there") -> str:
        """A fixed greedy request; the same text every time on the same weights."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 16, "temperature": 0}
        response = self.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    def gauges(self) -> dict[str, float]:
        pairs = re.findall(r"^(tokenspeed_\w+) (\S+)$", self.get("/metrics").text, re.MULTILINE)
        return {name: float(value) for name, value in pairs}

    def is_idle(self) -> bool:
        gauges = self.gauges()
        names = ("requests_running", "requests_waiting", "slots_used", "cache_blocks_used")
        return all(gauges.get(f"tokenspeed_{name}") == 0 for name in names)

    @contextlib.contextmanager
    def streams(self, count: int, max_tokens: int = 60_000) -> Iterator[list[Stream]]:
        """Streaming requests; as many as run at once have their first token."""
        started = [Stream(self, f"prompt {index}", max_tokens) for index in range(count)]
        run_at_once = min(count, MAX_RUNNING)
        until(lambda: sum(bool(stream.events) for stream in started) >= run_at_once, "first tokens")
        yield started
        for stream in started:
            stream.thread.join(PATIENCE)
            assert not stream.thread.is_alive(), "a stream never ended"


class Stream:
    """One streamed completion, read on a thread to its very end."""

    def __init__(self, front: Front, prompt: str, max_tokens: int) -> None:
        self.status = 0
        self.body = b""  # of an answer that is no stream
        self.events: list[str] = []
        self.failure: Exception | None = None
        self.ended_at = 0.0
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0,
        }
        self.thread = threading.Thread(target=self._run, args=(front, body), daemon=True)
        self.thread.start()

    def _run(self, front: Front, body: dict[str, Any]) -> None:
        try:
            with front.client.stream("POST", f"{front.url}/v1/completions", json=body) as response:
                self.status = response.status_code
                if self.status != 200:
                    self.body = response.read()
                    return
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line.removeprefix("data: "))
        except Exception as error:
            self.failure = error
        finally:
            self.ended_at = time.monotonic()

    @property
    def error(self) -> dict[str, Any] | None:
        """The error: a frame that only [DONE] follows, or a whole answer with another status."""
        if self.body:
            return json.loads(self.body)["error"]
        if len(self.events) < 2 or self.events[-1] != "[DONE]":
            return None
        return json.loads(self.events[-2]).get("error")

    @property
    def finish_reasons(self) -> list[str]:
        found = []
        for event in self.events:
            if event != "[DONE]":
                choices = json.loads(event).get("choices") or []
                found += [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        return found
