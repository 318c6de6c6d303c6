"""Is this machine fit to serve: the driver, torch, compiler, limits, disk and port, each with a
fix.

`look` gathers facts at the border, `examine` judges them and touches nothing. torch is described
from its files: importing it would take seconds and start the driver.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from tokenspeed.hardware.types import Hardware

OK, WARNING, FAILED = "ok", "warning", "failed"

# CUDA major version -> oldest driver that runs it (CUDA toolkit release notes, minor-version
# compatibility).
OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
# The front holds a socket and a few files per client; workers map many files of weights.
LEAST_FILES = 4096
# Several ranks of one host exchange through shared memory.
LEAST_SHARED = 2**30
# A small model's files; a large one's are checked against its own size when it is fetched.
LEAST_DISK = 10 * 2**30
LEAST_MEMORY = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Torch:
    """`version` "" where torch is not installed; `cuda` and `hip` are the versions it was built
    for, "" where it was not."""

    version: str = ""
    cuda: str = ""
    hip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What is known of this process's surroundings. Bytes are free ones; -1 is no limit."""

    torch: Torch
    cpu_kernels: bool
    compiler: str
    open_files: int
    locked_bytes: int
    shared_bytes: int
    data_root: str
    data_writable: bool
    data_bytes: int
    port: int
    port_free: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """`status` is "ok", "warning" (slower, or not everything runs) or "failed" (`up` would fail);
    `fix` is what to do, "" where nothing is."""

    check: str
    status: str
    detail: str
    fix: str = ""


def look(data_root: Path, port: int) -> Host:
    """The facts of this process. Never raises for what is missing."""
    existing = next(path for path in (data_root, *data_root.parents) if path.exists())
    shared = Path("/dev/shm")
    return Host(
        torch=installed_torch(),
        cpu_kernels=_found("tokenspeed_kernels._cpu"),
        compiler=shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or "",
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        locked_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        shared_bytes=shutil.disk_usage(shared).free if shared.is_dir() else 0,
        data_root=str(data_root),
        data_writable=os.access(existing, os.W_OK),
        data_bytes=shutil.disk_usage(existing).free,
        port=port,
        port_free=is_free(port),
    )


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def installed_torch() -> Torch:
    """What torch's own version file says."""
    try:
        spec = importlib.util.find_spec("torch")
    except ImportError:
        return Torch()
    if spec is None or spec.origin is None:
        return Torch()
    return described_torch(Path(spec.origin).with_name("version.py"))


def described_torch(version_file: Path) -> Torch:
    """From lines like `cuda: Optional[str] = '13.0'`."""
    try:
        text = version_file.read_text(encoding="utf-8")
    except OSError:
        return Torch("unknown")
    found = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*'([^']*)'", text, re.MULTILINE))
    return Torch(found.get("__version__", "unknown"), found.get("cuda", ""), found.get("hip", ""))


def is_free(port: int) -> bool:
    """Whether the server could listen there, on this machine's own address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def examine(hardware: Hardware, host: Host) -> tuple[Finding, ...]:
    """Every check, whatever the ones before it found."""
    return (
        _memory(hardware),
        _gpus(hardware),
        _driver(hardware, host.torch),
        _torch(hardware, host.torch),
        _kernels(host),
        _compiler(hardware, host),
        _files(host),
        _locked(hardware, host),
        _shared(hardware, host),
        _disk(host),
        _port(host),
    )


def _memory(hardware: Hardware) -> Finding:
    size = f"{hardware.memory_bytes / 2**30:.1f} GiB, {hardware.cpu.cores} cores"
    if hardware.memory_bytes >= LEAST_MEMORY:
        return Finding("memory", OK, size)
    return Finding("memory", WARNING, size, "raise the container's memory limit to 2 GiB or more")


def _gpus(hardware: Hardware) -> Finding:
    seen = ", ".join(f"{gpu.count} x {gpu.name} ({gpu.arch})" for gpu in hardware.gpus)
    notes = "; ".join(hardware.notes)
    if not hardware.gpus:
        return Finding("gpus", OK, f"none: models run on the CPU ({notes})" if notes else "none")
    if len(hardware.gpus) > 1:
        fix = "show one kind with CUDA_VISIBLE_DEVICES, or give each kind an instance of its own"
        return Finding("gpus", WARNING, f"{seen}; {notes}", fix)
    if notes:
        fix = "nvidia-smi names the processes and the state of each GPU"
        return Finding("gpus", WARNING, f"{seen}; {notes}", fix)
    return Finding("gpus", OK, seen)


def _driver(hardware: Hardware, torch: Torch) -> Finding:
    broken = [note for note in hardware.notes if "mismatch" in note or "cannot be listed" in note]
    if broken:
        fix = "reboot, or reload the driver: its library was updated while the kernel's part stayed"
        return Finding("driver", FAILED, "; ".join(broken), fix)
    if not hardware.driver:
        return Finding("driver", OK, "none, and none is needed without an NVIDIA GPU")
    major = _major(torch.cuda)
    oldest = OLDEST_DRIVERS.get(major, 0)
    if _major(hardware.driver) < oldest:
        return Finding(
            "driver",
            FAILED,
            f"{hardware.driver}, and CUDA {torch.cuda} (torch) needs {oldest} or newer",
            f"install driver {oldest} or newer, or a torch that was built for an older CUDA",
        )
    return Finding("driver", OK, hardware.driver)


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0


def _torch(hardware: Hardware, torch: Torch) -> Finding:
    wanted = ""
    if hardware.gpus:
        wanted = "hip" if hardware.gpus[0].arch.startswith("gfx") else "cuda"
    if not torch.version:
        fix = "install the distribution with its extra: tokenspeed-appliance[worker]"
        return Finding("torch", FAILED, "not installed: plans can be made, nothing can run", fix)
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "CPU only"
    detail = f"{torch.version}, built for {built}"
    if (wanted == "cuda" and not torch.cuda) or (wanted == "hip" and not torch.hip):
        kind = "ROCm" if wanted == "hip" else "CUDA"
        fix = f"install a build for {kind}: https://pytorch.org/get-started/locally"
        return Finding("torch", FAILED, f"{detail}, and this machine has a GPU", fix)
    return Finding("torch", OK, detail)


def _kernels(host: Host) -> Finding:
    if host.cpu_kernels:
        return Finding("cpu kernels", OK, "compiled")
    fix = (
        "install tokenspeed-appliance-kernels from a wheel, or build it: it needs a C++20 compiler"
    )
    return Finding("cpu kernels", WARNING, "missing: a CPU computes with torch alone", fix)


def _compiler(hardware: Hardware, host: Host) -> Finding:
    if host.compiler:
        return Finding("compiler", OK, host.compiler)
    detail = "no cc, gcc or clang on the path"
    fix = "install gcc (Debian, Ubuntu: apt install gcc libc6-dev)"
    if hardware.gpus:
        return Finding("compiler", FAILED, f"{detail}: Triton builds its launchers with one", fix)
    return Finding("compiler", OK, f"{detail}; only GPU kernels need one")


def _files(host: Host) -> Finding:
    shown = "unlimited" if host.open_files < 0 else str(host.open_files)
    if host.open_files < 0 or host.open_files >= LEAST_FILES:
        return Finding("open files", OK, shown)
    fix = f"ulimit -n {LEAST_FILES}, or LimitNOFILE={LEAST_FILES} in the unit"
    return Finding("open files", WARNING, f"{shown}: many clients at once would be refused", fix)


def _locked(hardware: Hardware, host: Host) -> Finding:
    shown = "unlimited" if host.locked_bytes < 0 else f"{host.locked_bytes / 2**20:.0f} MiB"
    if host.locked_bytes < 0 or not hardware.gpus or host.locked_bytes >= LEAST_SHARED:
        return Finding("locked memory", OK, shown)
    fix = "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit"
    detail = f"{shown}: a cache tier in the host's memory could not be pinned"
    return Finding("locked memory", WARNING, detail, fix)


def _shared(hardware: Hardware, host: Host) -> Finding:
    shown = f"{host.shared_bytes / 2**30:.1f} GiB free in /dev/shm"
    several = sum(gpu.count for gpu in hardware.gpus) > 1
    if not several or host.shared_bytes >= LEAST_SHARED:
        return Finding("shared memory", OK, shown)
    fix = "start the container with --shm-size=8g or --ipc=host"
    return Finding("shared memory", FAILED, f"{shown}: ranks of one model exchange there", fix)


def _disk(host: Host) -> Finding:
    shown = f"{host.data_bytes / 2**30:.1f} GiB free for {host.data_root}"
    if not host.data_writable:
        fix = "make the folder writable, or point XDG_DATA_HOME at one that is"
        return Finding("disk", FAILED, f"{host.data_root} cannot be written", fix)
    if host.data_bytes < LEAST_DISK:
        fix = "make room, or point XDG_DATA_HOME at a larger disk: weights are kept there"
        return Finding("disk", WARNING, shown, fix)
    return Finding("disk", OK, shown)


def _port(host: Host) -> Finding:
    if host.port_free:
        return Finding("port", OK, f"{host.port} is free")
    fix = "`tokenspeed ps` lists instances; or choose another: --set serve.port=8001"
    return Finding("port", WARNING, f"{host.port} is taken", fix)
