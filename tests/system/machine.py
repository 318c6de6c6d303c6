"""A machine with a real systemd: a container over an overlay of this system's root.

Nothing is downloaded and nothing of this system is changed; it needs root and the right to mount.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[2]
PYTHON = Path(f"/usr/bin/python3.{sys.version_info.minor}")
INSTALLED = "/opt/tokenspeed"
APP, PACKAGES, MODEL = "/srv/tokenspeed/app", "/srv/tokenspeed/packages", "/srv/model"
PATIENCE = 120.0
# Of this system, and no part of the test.
FOREIGN = ("systemd-networkd", "systemd-networkd-wait-online", "postgresql", "docker", "podman")
_EXTENSIONS = (
    ("tokenspeed.scheduler._core", "tokenspeed/scheduler"),
    ("tokenspeed_kernels._cpu", "tokenspeed_kernels"),
)
_PROGRAM = f"""\
#!{INSTALLED}/bin/python
import sys
from tokenspeed.cli import main
sys.exit(main())
"""


def missing() -> str:
    """Why no machine can be made here, "" when one can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("systemd-nspawn", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: systemd-container, util-linux)"
    if not PYTHON.exists():
        return f"{PYTHON} is not there: the machine needs a Python outside of home folders"
    trial = "mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w /mnt/m && mount -t overlay overlay"
    options = "-o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /mnt/m"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{trial} {options}"], capture_output=True, check=False
    )
    return "" if done.returncode == 0 else "this system does not allow overlay mounts"


class Machine:
    """Boots on entering, and is gone on leaving. `model` is put at /srv/model."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._process: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def __enter__(self) -> Machine:
        self._folder = Path(tempfile.mkdtemp(prefix="ts-machine-", dir="/run"))
        self.root = self._folder / "m"
        _call("mount", "-t", "tmpfs", "tmpfs", str(self._folder))
        for name in ("u", "w", "m"):
            (self._folder / name).mkdir()
        over = f"lowerdir=/,upperdir={self._folder}/u,workdir={self._folder}/w"
        _call("mount", "-t", "overlay", "overlay", "-o", over, str(self.root))
        try:
            self._prepare()
            self._boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()
            self._process.wait()
        subprocess.run(["umount", "-R", str(self.root)], check=False)
        subprocess.run(["umount", str(self._folder)], check=False)
        self._folder.rmdir()

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One command in the machine."""
        done = subprocess.run(
            [*self._enter, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            env={"PATH": f"{INSTALLED}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"},
        )
        if check and done.returncode != 0:
            log = self.run("journalctl", "-n", "40", "--no-pager", check=False).stdout
            raise AssertionError(f"{words} ended with {done.returncode}: {done}\n{log}")
        return done

    def python(self, program: str) -> str:
        return self.run(f"{INSTALLED}/bin/python", "-c", program).stdout

    @contextlib.contextmanager
    def started(self, program: str) -> Iterator[subprocess.Popen[str]]:
        """A Python program that runs beside."""
        python = f"{INSTALLED}/bin/python"
        process = subprocess.Popen(
            [*self._enter, python, "-c", program], stdout=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self._leader), *["-m", "-u", "-i", "-n", "-p", "--"]]

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def reboot(self) -> None:
        """Off and on again; what is on its disk stays."""
        assert self._process is not None
        self.run("systemctl", "poweroff", check=False)
        self._process.wait(PATIENCE)
        self._boot()

    # ---- making

    def _prepare(self) -> None:
        root = self.root
        (root / "etc/machine-id").write_text(uuid.uuid4().hex + "\n")  # not its first boot
        units = root / "etc/systemd/system"
        for wants in units.glob("*.wants"):
            shutil.rmtree(wants)
        for service in FOREIGN:
            (units / f"{service}.service").unlink(missing_ok=True)
            (units / f"{service}.service").symlink_to("/dev/null")
        app = root / APP.lstrip("/")
        ignore = shutil.ignore_patterns("csrc", "__pycache__")
        shutil.copytree(REPO / "tokenspeed", app / "tokenspeed", ignore=ignore)
        kernels = REPO / "kernels" / "tokenspeed_kernels"
        shutil.copytree(kernels, app / "tokenspeed_kernels", ignore=ignore)
        for module, folder in _EXTENSIONS:  # an editable install keeps them elsewhere
            built = importlib.import_module(module).__file__
            assert built is not None
            shutil.copy(built, app / folder)
        (root / MODEL.lstrip("/")).mkdir(parents=True)
        for file in self._model.iterdir():
            shutil.copy(file, root / MODEL.lstrip("/"))
        (root / PACKAGES.lstrip("/")).mkdir(parents=True)
        home = root / INSTALLED.lstrip("/")
        version = f"python3.{sys.version_info.minor}"
        site = home / "lib" / version / "site-packages"
        site.mkdir(parents=True)
        (site / "tree.pth").write_text(f"{APP}\n{PACKAGES}\n")
        (home / "bin").mkdir()
        (home / "bin" / "python").symlink_to(PYTHON)
        (home / "bin" / version).symlink_to("python")
        (home / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {sys.version.split()[0]}\n")
        (home / "bin" / "tokenspeed").write_text(_PROGRAM)
        (home / "bin" / "tokenspeed").chmod(0o755)

    def _boot(self) -> None:
        options = ["--boot", "--machine=tokenspeed-test", "--private-network", "--register=no"]
        options += ["--keep-unit", "--console=pipe", f"--bind-ro={_packages()}:{PACKAGES}"]
        self._log = (self._folder / "console.log").open("wb")
        self._process = subprocess.Popen(
            [
                "systemd-nspawn",
                "-q",
                "-D",
                str(self.root),
                *options,
                "systemd.unit=multi-user.target",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._log.close()
        self._find()

    def _find(self) -> None:
        """The machine's first process, once it has booted."""
        assert self._process is not None
        nspawn = self._process

        def leader() -> int:
            assert nspawn.poll() is None, (self._folder / "console.log").read_text()
            children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children").read_text().split()
            for child in children:
                inner = Path(f"/proc/{child}/task/{child}/children").read_text().split()
                for pid in (child, *inner):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if words.startswith((b"/usr/lib/systemd/systemd", b"/lib/systemd/systemd")):
                        return int(pid)
            return 0

        self._leader = until(leader, "it boots")

        def is_up() -> bool:
            state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
            return state in ("running", "degraded", "starting")

        until(is_up, "systemd answers")


def _packages() -> str:
    """Where the packages of this interpreter are; those of a worktree's point elsewhere."""
    torch = importlib.import_module("torch").__file__
    return str(Path(torch).parents[1]) if torch else sysconfig.get_paths()["purelib"]


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if value := condition():
                return value
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)
