"""A worker that computes nothing: `python -m tokenspeed.bench.scripted ENDPOINT STEP_SECONDS`.

It speaks the worker's side of the wire and gives every open request one token per step, so that
what a front costs can be measured without an engine beside it. When a request arrives it writes
the CPU time that the front has spent so far, in seconds, into the file ENDPOINT.arrived.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from pathlib import Path

from tokenspeed import wire
from tokenspeed.request import Delta, FinishReason
from tokenspeed.worker.fronts import Connection, Fronts
from tokenspeed.worker.parent import die_with_parent

CAPACITY = wire.Capacity(
    num_blocks=1 << 20,
    block_size=16,
    max_running=4096,
    max_request_tokens=1 << 20,
    weight_bytes=1,
    kv_bytes=1,
)
FIRST_TOKEN = 1000  # and the 256 after it, in turn: ordinary words in most vocabularies


def cpu_seconds(pid: int) -> float:
    """CPU time so far of all threads of a process; nanoseconds are what the kernel counts in."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class Scripted:
    """Open requests of any number of fronts, and what is left of their answers."""

    def __init__(self, endpoint: str, step_seconds: float) -> None:
        self._sockets = Fronts(endpoint, self._lose)
        self._step = step_seconds
        self._arrived = Path(f"{endpoint}.arrived")
        self._left: dict[tuple[str, int], int] = {}
        self._stopping = False

    def run(self) -> None:
        beat = step = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            until = min(step, beat) if self._left else beat
            self._sockets.wait(max(0.0, until - now))
            while received := self._sockets.receive():
                self._handle(*received)
            now = time.monotonic()
            if now >= beat:
                beat = now + 0.5
                for front in self._sockets.ids:
                    self._send(front, wire.Heartbeat(turns=0))
            if self._left and now >= step:
                step = now + self._step
                self._turn()

    def _handle(self, connection: Connection, frame: bytes) -> None:
        envelope = wire.decode_from_front(frame)
        front = envelope.front_id
        assert self._sockets.name(connection, front)
        match envelope.body:
            case wire.Hello():
                self._send(front, wire.Ready(CAPACITY))
            case wire.Submit(request=request):
                spent = cpu_seconds(int(front.rpartition("-")[2]))
                self._arrived.write_text(repr(spent))
                self._left[front, request.request_id] = request.max_tokens
            case wire.Abort(request_id=request_id):
                if self._left.pop((front, request_id), None) is not None:
                    ended = Delta(request_id=request_id, finish_reason=FinishReason.ABORT)
                    self._send(front, wire.Outputs((ended,)))
            case wire.AskStats(query_id=query_id):
                stats = wire.EngineStats(running=len(self._left))
                self._send(front, wire.StatsAnswer(query_id=query_id, stats=stats))
            case wire.Shutdown():
                self._stopping = True

    def _turn(self) -> None:
        outputs: defaultdict[str, list[Delta]] = defaultdict(list)
        for key, left in list(self._left.items()):
            front, request_id = key
            last = left <= 1
            outputs[front].append(
                Delta(
                    request_id=request_id,
                    tokens=(FIRST_TOKEN + left % 256,),
                    cached_tokens=0,
                    finish_reason=FinishReason.LENGTH if last else None,
                )
            )
            if last:
                del self._left[key]
            else:
                self._left[key] = left - 1
        for front, deltas in outputs.items():
            self._send(front, wire.Outputs(tuple(deltas)))

    def _send(self, front: str, body: wire.WorkerMessage) -> None:
        self._sockets.send(front, wire.encode_to_front(body, front))

    def _lose(self, front: str, why: str) -> None:
        self._left = {key: left for key, left in self._left.items() if key[0] != front}


if __name__ == "__main__":
    die_with_parent(os.getppid())
    Scripted(sys.argv[1], float(sys.argv[2])).run()
