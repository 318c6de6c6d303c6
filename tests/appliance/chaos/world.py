"""The machine that the faults happen to: one installed recipe, its disk, its clock, its manager.

The disk is a small tmpfs where this system lets one be mounted; elsewhere a limit on the size of
files stands in for it. The wall clock alone jumps, for every process at the same moment (clock.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.appliance.chaos.clock import Clock, Libfaketime
from tests.appliance.live import RECIPE, TOKENSPEED, Front, Home, tiny_model, until
from tests.ports import named_port

NAME = "demo"
# What a service manager does not start again after: see RestartPreventExitStatus of the unit.
FINAL = frozenset({64, 65, 66, 77, 78})
HANG = 1.5  # seconds of a worker's silence that count as hanging
RECOVERY_SECONDS = 120.0
_DISK_BYTES, _DISK_FILES = 8 << 20, 300


class World:
    """A context: in it, the service is up and has answered."""

    def __init__(self, scratch: Path, libfaketime: Path | None = None) -> None:
        self._pristine = tiny_model(scratch / "pristine")
        self.model = scratch / "model"
        self._clock = Libfaketime(scratch, libfaketime) if libfaketime else Clock(scratch)
        self.home = Home()
        self.front: Front
        self.exits: list[int] = []
        self.port = named_port()

    # ---- coming and going

    def __enter__(self) -> World:
        self.home.__enter__()
        options = f"size={_DISK_BYTES},nr_inodes={_DISK_FILES}"
        mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.home.path)]
        self._mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        try:
            self._install()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.home.processes():
            _signal(pid, signal.SIGKILL)
        for front in self.home.fronts:
            front.destroy()
        if self._mounted:
            until(lambda: not self.home.processes(), "every process is gone")
            subprocess.run(["umount", "--lazy", str(self.home.path)], check=True)
        self.home.__exit__()

    def _install(self) -> None:
        self.heal_weights()
        for name in ("t", "c"):
            (self.home.path / name).mkdir()
        self.home.environment |= {
            "TMPDIR": str(self.home.path / "t"),
            "XDG_CACHE_HOME": str(self.home.path / "c"),
            **self._clock.environment,
        }
        recipe = self.home.path / f"{NAME}.yaml"
        text = RECIPE.format(
            name=NAME, model=self.model, port=self.port, drain="2s", blocks=8192, max_running=8
        )
        recipe.write_text(text + f"  fronts: 2\nadvanced:\n  hang: {HANG:g}s\n")
        done = self.home.run("apply", str(recipe))
        assert done.returncode == 0, done.stderr
        self.boot()
        self.front.wait_ready()
        self.expected = self.front.ask()
        self.state = (self.home.data_root / NAME / "state.json").read_bytes()
        self.settle()

    # ---- the service manager

    def boot(self) -> Front:
        """Starts the service. What the start before it printed is looked through first."""
        recipe = self.home.path / f"{NAME}.yaml"
        command = [*TOKENSPEED, "up", "--installed", NAME]
        self.front = self.home.up(recipe, command=command)
        self.front.url = f"http://127.0.0.1:{self.port}"
        return self.front

    def ended(self) -> int:
        """Waits for the end of the front, and of all that it started; returns its exit code."""
        code = self.front.wait(RECOVERY_SECONDS)
        assert "Traceback" not in self.front.output, self.front.output
        until(lambda: not self.home.processes(), "no orphan is left", 10.0)
        self.exits.append(code)
        self.front.destroy()
        self.home.fronts.remove(self.front)
        return code

    def recover(self) -> None:
        """Until the same question gets the same answer; starts the service again as a manager
        does. Raises AssertionError when it does not come back."""

        def back() -> bool:
            if self.front.process.poll() is not None:
                code = self.ended()
                assert code not in FINAL, f"{code} keeps a manager from another start"
                self.boot()
            with contextlib.suppress(httpx.HTTPError, AssertionError):
                return bool(self.front.ask() == self.expected)
            return False

        until(back, "service returns", RECOVERY_SECONDS)

    # ---- looking

    @property
    def front_pid(self) -> int:
        return self.front.process.pid

    def worker(self, other_than: int | None = None) -> int:
        """The pid of a worker, which may still load."""

        def found() -> int | None:
            pid = self.front.worker()
            return pid if pid != other_than else None

        return int(until(found, "a worker is there"))

    def further(self, other_than: int | None = None) -> int:
        """The pid of the front beside the first one, which may still start."""

        def found() -> int | None:
            pid = self.front.further()
            return pid if pid != other_than else None

        return int(until(found, "a further front is there"))

    def is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self.front.get("/readyz").status_code == 200
        return False

    def settle(self) -> None:
        """Nothing is open: notes what is used now, to be the measure of `check_leaks`."""
        until(self.front.is_idle, "blocks and slots are at zero", 10.0)
        self._files = self._open_files()
        self._settled = self.front_pid

    def check_leaks(self) -> None:
        """Raises AssertionError for anything that is left of requests, workers or fronts."""
        until(self.front.is_idle, "blocks and slots are back at zero", 10.0)
        ours = {self.front_pid, self.further(), self.worker()}
        until(lambda: set(self.home.processes()) == ours, "fronts and worker alone are left", 10.0)
        if self._settled != self.front_pid:
            self.settle()
        until(lambda: self._open_files() <= self._files, "no file stays open", 10.0)
        folder = self.home.run_root / NAME
        sockets = [path.name for path in folder.glob("worker-*.sock")]
        assert len(sockets) == 1, sockets
        expected = {"lock", "instance.json", "plan.json", "front.sock", "front-2.sock", *sockets}
        until(
            lambda: {path.name for path in folder.iterdir()} == expected,
            f"the run folder holds {expected} alone",
            10.0,
        )
        bound = Path("/proc/net/unix").read_text().count(f" {self.home.path}/")
        # Three listen; two fronts are connected to the worker, and each may be asked just now.
        assert bound <= 7, "sockets of workers that are gone"
        drafts = [*self.home.data_root.rglob("*.new"), *self.home.data_root.rglob(".new-*")]
        assert not drafts, drafts
        assert not list((self.home.path / "t").iterdir())

    def _open_files(self) -> int:
        return len(list(Path(f"/proc/{self.front_pid}/fd").iterdir()))

    # ---- the disk

    @property
    def generation(self) -> Path:
        return self.home.data_root / NAME / "generations" / "1"

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Not one byte and not one file more fits."""
        if not self._mounted:
            self._limit_files(0)
            yield
            self._limit_files(resource.RLIM_INFINITY)
            return
        ballast = self.home.path / "ballast"
        ballast.mkdir()
        with contextlib.suppress(OSError), (ballast / "bytes").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        try:
            for number in range(_DISK_FILES):
                (ballast / str(number)).touch()
        except OSError as error:
            assert error.errno == errno.ENOSPC
        yield
        shutil.rmtree(ballast)

    def _limit_files(self, size: int) -> None:
        for pid in self.home.processes():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def heal_weights(self) -> None:
        shutil.rmtree(self.model, ignore_errors=True)
        shutil.copytree(self._pristine, self.model)

    def set_clock(self, seconds: int) -> None:
        """So far from the true time, for every process of the service, at once."""
        self._clock.set(seconds)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def hold(seconds: float) -> None:
    """A fault lasts."""
    time.sleep(seconds)
