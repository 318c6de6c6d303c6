"""A worker that is started before its plan is made.

Its libraries take seconds to load, for which a machine with a GPU need not wait: meanwhile this
process loads its own and plans. What is light enough to be imported before all that is here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenspeed import env

# Where this file is a driver is loaded; whether a plan uses the card is known later.
_DRIVER = Path("/dev/nvidiactl")


class EarlyWorker:
    """The process, until it is told what to do or dropped. Start it on the main thread: the
    worker ends with the thread that started it."""

    def __init__(self) -> None:
        """Raises OSError where no process can be started."""
        self.environment = env.worker_environment(0)
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [*worker_command(), "--told"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,  # what is written is written, or fails at once
        )

    def tell(
        self, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | None:
        """The process, which now does as if it were started with these arguments behind those of
        `worker_command`. None where it cannot: then it is dropped, or was."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        told = {"arguments": list(arguments), "asked": time.monotonic()}
        try:
            if environment != self.environment:
                raise OSError("another environment is asked for")
            process.stdin.write(json.dumps(told).encode() + b"\n")
            process.stdin.close()
        except OSError:
            _end(process)
            return None
        return process

    def drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process)


def early_worker() -> EarlyWorker | None:
    """One on a machine where it may be of use, None elsewhere."""
    if not _DRIVER.exists():
        return None
    try:
        return EarlyWorker()
    except OSError:  # whoever starts the next process says so
        return None


def worker_command() -> list[str]:
    """What every worker's command begins with."""
    # -P: a file random.py in the folder where `up` was called must not be imported.
    return [sys.executable, "-P", "-m", "tokenspeed.worker"]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
