"""The worker as a process of its own, spoken to over its socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from tests.rigs import rand_prompts
from tests.rigs.drive import GREEDY
from tests.rigs.fronts import DEADLINE, BareFront
from tests.rigs.plans import tiny_plan
from tests.worker.conftest import Model
from tokenspeed import wire
from tokenspeed.errors import ExitCode
from tokenspeed.request import Delta, FinishReason, Request

PROMPT = rand_prompts(1, 20, seed=51)[0]

Message = TypeVar("Message", bound=wire.WorkerMessage)


def command(run_dir: Path, model_dir: Path) -> list[str]:
    return [
        sys.executable, "-m", "tokenspeed.worker", "--run-dir", str(run_dir),
        "--model-dir", str(model_dir), "--endpoint", endpoint(run_dir),
    ]  # fmt: skip


def endpoint(run_dir: Path) -> str:
    return f"{run_dir}/worker-1.sock"


def prepare(folder: Path, run_dir: Path) -> None:
    plan = tiny_plan(folder, max_running=4, max_waiting=64, in_flight_depth=1)
    (run_dir / "plan.json").write_bytes(plan.to_json())


def start(repo: Path, run_dir: Path, model_dir: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(run_dir, model_dir), cwd=repo)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Front(BareFront):
    """A front that keeps what it heard."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name, path)
        self.finals: list[Delta] = []
        self.tokens: dict[int, list[int]] = {}

    def submit(self, request_id: int, max_tokens: int = 8) -> None:
        raw = np.array(PROMPT, dtype="<i4").tobytes()
        self.say(
            wire.Submit(
                request=Request(
                    request_id=request_id, tokens=raw, max_tokens=max_tokens, sampling=GREEDY
                )
            )
        )

    def hear(self) -> wire.WorkerMessage:
        body = super().hear()
        if isinstance(body, wire.Outputs):
            for delta in body.deltas:
                self.tokens.setdefault(delta.request_id, []).extend(delta.tokens)
                if delta.finish_reason is not None:
                    self.finals.append(delta)
        return body

    def wait(self, kind: type[Message]) -> Message:
        """The next message of that kind; what comes before it is taken in."""
        while True:
            body = self.hear()
            if isinstance(body, kind):
                return body

    def wait_finals(self, count: int) -> None:
        while len(self.finals) < count:
            self.hear()

    def stats(self) -> wire.EngineStats:
        self.say(wire.AskStats(query_id=7))
        answer = self.wait(wire.StatsAnswer)
        assert answer.query_id == 7
        return answer.stats


@pytest.fixture
def connect() -> Iterator[Callable[[Path, str], Front]]:
    fronts = []

    def make(run_dir: Path, name: str) -> Front:
        fronts.append(Front(name, endpoint(run_dir)))
        return fronts[-1]

    yield make
    for front in fronts:
        front.close()


Connect = Callable[[Path, str], Front]


@pytest.fixture(scope="module")
def running(repo: Path, llama: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The run directory of a worker that serves the tests of this module."""
    run_dir = tmp_path_factory.mktemp("run")
    prepare(llama.folder, run_dir)
    process = start(repo, run_dir, llama.folder)
    yield run_dir
    assert process.poll() is None, "a test ended the worker"
    process.terminate()
    assert process.wait(DEADLINE) == ExitCode.OK


def test_hello_is_answered_until_ready(running: Path, connect: Connect) -> None:
    front = connect(running, "hello")
    front.say(wire.Hello())
    capacity = front.wait(wire.Ready).capacity
    assert capacity.max_request_tokens == 1024
    assert capacity.weight_bytes > 0
    assert capacity.kv_bytes == capacity.num_blocks * 16 * 2 * 2 * 2 * 16 * 4
    front.say(wire.Hello())
    assert front.wait(wire.Ready).capacity == capacity
    first = front.wait(wire.Heartbeat)
    assert front.wait(wire.Heartbeat).turns >= first.turns


def test_tokens_stream_to_the_front_that_asked(
    running: Path, connect: Connect, llama: Model
) -> None:
    fronts = [connect(running, name) for name in ("left", "right")]
    for number, front in enumerate(fronts):
        front.submit(5, max_tokens=6 + number)
    for number, front in enumerate(fronts):
        front.wait_finals(1)
        assert front.finals[0].finish_reason == FinishReason.LENGTH
        assert len(front.tokens[5]) == 6 + number
        llama.oracle.check_greedy(PROMPT, front.tokens[5])


def test_abort_ends_with_its_final_delta(running: Path, connect: Connect) -> None:
    front = connect(running, "abort")
    front.submit(1, max_tokens=900)
    front.wait(wire.Outputs)
    front.say(wire.Abort(request_id=99))
    front.say(wire.Abort(request_id=1))
    front.wait_finals(1)
    assert front.finals[0].finish_reason == FinishReason.ABORT
    assert front.finals[0].request_id == 1
    # The slot is fenced until the step that is running has been committed.
    wait_for(lambda: front.stats().slots_used == 0)
    assert len(front.finals) == 1


def test_refusal_is_a_final_delta_with_the_reason(running: Path, connect: Connect) -> None:
    front = connect(running, "refused")
    front.submit(1, max_tokens=5000)
    front.wait_finals(1)
    assert front.finals[0].finish_reason == FinishReason.ERROR
    assert "1024 tokens" in front.finals[0].error


def test_malformed_frames_are_counted_and_harm_nobody(
    running: Path, connect: Connect, llama: Model
) -> None:
    front = connect(running, "malformed")
    before = front.stats().bad_frames
    front.submit(1, max_tokens=40)
    good = wire.encode_to_worker(wire.AskStats(query_id=1), "malformed")
    other_front = wire.encode_to_worker(wire.Shutdown(), "somebody-else")
    bad = [b"", b"\xc1", b"not msgpack at all", good[:-1], good + b"\0", b"\x91" * 100_000]
    for frame in [*bad, other_front]:
        front.say_raw(frame)
    lost = connect(running, "lost")
    lost.socket.sendall(b"\xff" * 64)  # no frame has this length: the connection ends
    assert lost.socket.recv(1) == b""
    front.wait_finals(1)
    assert front.stats().bad_frames == before + len(bad) + 2
    llama.oracle.check_greedy(PROMPT, front.tokens[1])


def test_front_that_went_away_leaves_nothing_behind(running: Path, connect: Connect) -> None:
    gone, stays = connect(running, "gone"), connect(running, "stays")
    gone.submit(1, max_tokens=1000)
    gone.wait(wire.Outputs)
    stays.submit(1, max_tokens=60)
    gone.close()
    stays.wait_finals(1)
    assert len(stays.tokens[1]) == 60
    wait_for(lambda: stays.stats().running == 0)


@pytest.mark.parametrize("how", ["message", "signal"])
def test_shutdown_ends_every_request_once(
    how: str, repo: Path, llama: Model, tmp_path: Path, connect: Connect
) -> None:
    prepare(llama.folder, tmp_path)
    process = start(repo, tmp_path, llama.folder)
    front = connect(tmp_path, "front")
    front.say(wire.Hello())
    front.wait(wire.Ready)
    for request_id in range(6):
        front.submit(request_id, max_tokens=900)
    front.wait(wire.Outputs)
    front.stats()
    if how == "message":
        front.say(wire.Shutdown())
    else:
        process.send_signal(signal.SIGINT)  # Ctrl-C reaches the group; the front decides
        process.terminate()
    front.wait_finals(6)
    assert process.wait(DEADLINE) == ExitCode.OK
    assert {delta.finish_reason for delta in front.finals} == {FinishReason.ABORT}
    assert sorted(delta.request_id for delta in front.finals) == list(range(6))


def test_worker_dies_with_its_parent(repo: Path, llama: Model, tmp_path: Path) -> None:
    prepare(llama.folder, tmp_path)
    script = (
        "import subprocess, sys; "
        f"child = subprocess.Popen({command(tmp_path, llama.folder)!r}); "
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=repo, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_for((tmp_path / "worker-1.sock").exists)
    parent.kill()
    parent.communicate()
    wait_for(lambda: not _alive(child))


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    # A zombie is dead; it only waits for whoever adopted it.
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def _fails(repo: Path, arguments: list[str]) -> tuple[int, str]:
    process = subprocess.run(
        arguments, cwd=repo, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert "Traceback" not in process.stderr
    return process.returncode, process.stderr


def test_bad_weights_end_the_start_with_code_and_reason(
    repo: Path, llama: Model, tmp_path: Path
) -> None:
    prepare(llama.folder, tmp_path)
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    for file in llama.folder.iterdir():
        (model_dir / file.name).write_bytes(file.read_bytes())
    os.truncate(model_dir / "model.safetensors", 1000)
    code, message = _fails(repo, command(tmp_path, model_dir))
    assert code == ExitCode.UNSATISFIABLE
    assert "model.safetensors" in message


def test_start_without_a_plan_or_arguments_says_what_is_missing(repo: Path, tmp_path: Path) -> None:
    code, message = _fails(repo, command(tmp_path, tmp_path))
    assert code == ExitCode.UNAVAILABLE
    assert "plan.json" in message
    code, message = _fails(repo, [sys.executable, "-m", "tokenspeed.worker"])
    assert code == ExitCode.USAGE
    assert "--run-dir" in message
