"""A real process that speaks the worker's protocol and fails on demand.

usage: scripted_worker.py ENDPOINT BEHAVIOUR...
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

from tokenspeed import wire
from tokenspeed.worker.fronts import Fronts

CAPACITY = wire.Capacity(
    num_blocks=8,
    block_size=4,
    max_running=2,
    max_request_tokens=28,
    weight_bytes=1,
    kv_bytes=1,
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
    fronts = Fronts(endpoint, lambda front, why: None)
    while True:
        fronts.wait(1)
        received = fronts.receive()
        if received is None:
            continue
        connection, frame = received
        envelope = wire.decode_from_front(frame)
        front, message = envelope.front_id, envelope.body
        fronts.name(connection, front)
        if isinstance(message, wire.Shutdown) and "stubborn" not in behaviour:
            fronts.close(0)
            return 0
        if isinstance(message, wire.Hello):
            body = wire.Starting("load", 0.5) if "slow" in behaviour else wire.Ready(CAPACITY)
            fronts.send(front, wire.encode_to_front(body, front))
        if isinstance(message, wire.Submit) and "die-on-request" in behaviour:
            print("about to die", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
