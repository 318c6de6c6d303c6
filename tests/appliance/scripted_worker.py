"""A real process that speaks the worker's protocol and fails on demand.

usage: scripted_worker.py ENDPOINT BEHAVIOUR...
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

import zmq

from tokenspeed import wire

CAPACITY = wire.Capacity(
    num_blocks=8,
    block_size=4,
    max_running=2,
    max_request_tokens=28,
    weight_bytes=1,
    kv_bytes=1,
    load_seconds=0.1,
)


def main(endpoint: str, *behaviour: str) -> int:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, as the real one
    print("scripted worker starts", flush=True)
    if "flood" in behaviour:
        for number in range(20_000):
            print(f"noise {number} " + "x" * 80)
    if "child" in behaviour:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for item in behaviour:
        if item.startswith("exit="):
            print("cannot load: the reason is here", file=sys.stderr, flush=True)
            return int(item.removeprefix("exit="))
    if "die" in behaviour:
        os.kill(os.getpid(), signal.SIGKILL)
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(endpoint)
    while True:
        front, frame = socket.recv_multipart()
        message = wire.decode_from_front(frame).body
        if isinstance(message, wire.Shutdown) and "stubborn" not in behaviour:
            context.destroy(linger=0)
            return 0
        if isinstance(message, wire.Hello):
            body = wire.Starting("load", 0.5) if "slow" in behaviour else wire.Ready(CAPACITY)
            frame = wire.encode_to_front(body, front.decode(), time.time_ns())
            socket.send_multipart([front, frame])
        if isinstance(message, wire.Submit) and "die-on-request" in behaviour:
            print("about to die", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
