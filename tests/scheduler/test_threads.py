"""Threads may share a Scheduler: the binding takes them one after the other, and so ThreadSanitizer
sees no race in the core. Steps and views are not guarded: they are immutable once returned, but for
`block_tables`, which is read by whoever calls `step`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scheduler import player

RACE = 66
# Four threads ask, submit and abort; one makes the steps. Nothing but the module under test and
# numpy: what is not compiled for the sanitizer cannot be judged by it.
PROGRAM = """
import threading
import numpy as np
from _core import Scheduler, SchedulerConfig, SubmitResult, TransferDone

core = Scheduler(SchedulerConfig(
    num_blocks=60, block_size=4, max_running=4, max_step_tokens=32, max_model_len=64,
    prefix_cache=True, chunked_prefill=True, in_flight_depth=1, digest_key=(1, 2),
    num_host_blocks=40, prefix_events=True))
none = np.array([], np.int32)

def client(first):
    for i in range(40):
        prompt = np.arange(first % 2, 18, dtype=np.int32)
        taken = core.submit(first + i, prompt, 4, none, now=0.0)
        assert taken is SubmitResult.ACCEPTED
        core.pin_prefix(prompt, ttl_s=1.0, now=0.0)
        core.judge(10, 10), core.stats(), core.digests_of(prompt), core.cached_digests()
        core.take_prefix_events(), core.take_ended()
        if i % 5 == 0:
            core.abort(first + i)

threads = [threading.Thread(target=client, args=(1000 * n,)) for n in range(1, 5)]
for thread in threads:
    thread.start()
flights = []
while True:
    busy = any(thread.is_alive() for thread in threads)
    step = core.step(0.0) if len(flights) < 2 else None
    if step is not None:
        flights.append(step)
        moves = step.transfers
        for ticket, count in zip(moves.tickets, np.diff(moves.begins)):
            core.apply([TransferDone(int(ticket), np.ones(count, np.uint8))], 0.0)
    elif flights:
        oldest = flights.pop(0)
        core.commit(oldest.id, np.full(oldest.num_samples, 7, np.int32))
        core.check()
    elif not busy and core.stats().running + core.stats().waiting == 0:
        break
stats = core.stats()
assert stats.finished + stats.aborted == 160, stats.finished
print("all ended")
"""


@pytest.fixture(scope="module")
def instrumented(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the module, compiled for ThreadSanitizer, and its library."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing: apt-get install g++")
    library = player.run("g++", "-print-file-name=libtsan.so").strip()
    if not Path(library).is_file():
        pytest.skip("g++ is here without libtsan: apt-get install libtsan2")
    folder = tmp_path_factory.mktemp("threads")
    unit, bindings = folder / "unit.cc", player.CORE / "bindings.cc"
    sources = [path for path in sorted(player.CORE.glob("*.cc")) if path != bindings]
    unit.write_text("".join(f'#include "{path}"\n' for path in sources))
    includes = player.run(sys.executable, "-m", "pybind11", "--includes").split()
    flags = ("-std=c++20", "-O0", "-g1", "-w", "-fPIC", "-shared", "-fsanitize=thread")
    core = f"-I{player.CORE}"
    player.run("g++", *flags, core, *includes, unit, bindings, "-o", folder / "_core.so")
    return folder, library


def test_threads_race_nowhere(instrumented: tuple[Path, str]) -> None:
    folder, library = instrumented
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ
        | {
            "LD_PRELOAD": library,
            "PYTHONPATH": str(folder),
            "TSAN_OPTIONS": f"exitcode={RACE}:halt_on_error=1:report_signal_unsafe=0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all ended" in done.stdout
