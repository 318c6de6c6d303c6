"""Wall clocks that the test turns, for every process with its environment at once.

`Clock` preloads clock.c, which is all that it takes. `Libfaketime` preloads the library of that
name, which does more than that unless it is told not to:

- It turns the monotonic clocks too, and waits that the kernel times by them (sem_clockwait, as
  Python's locks do) never end. FAKETIME_DONT_FAKE_MONOTONIC.
- With those left alone, builds such as Debian's end a wait for a condition by a monotonic clock
  at once. Python hands its lock from thread to thread by such waits of 5 ms, so every thread asks
  for it all the time, and a request of 0.3 s took 20 to 106 s. FAKETIME_FORCE_MONOTONIC_FIX=0.
- It reads its file every ten seconds. FAKETIME_NO_CACHE.
"""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path


class Clock:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(bytes(8))
        library = folder / "clock.so"
        source = Path(__file__).with_name("clock.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(self._file)}

    def set(self, seconds: int) -> None:
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", seconds))


class Libfaketime:
    def __init__(self, folder: Path, library: Path) -> None:
        self._file = folder / "clock"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def set(self, seconds: int) -> None:
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+d}\n")
        draft.replace(self._file)
