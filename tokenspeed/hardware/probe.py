"""Look at this machine: /proc for the host, NVML for NVIDIA GPUs.

Never raises for what is missing: a machine without a GPU, without the driver's library or with a
broken driver is described as far as it can be seen, with a note on the rest.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenspeed.hardware.types import Cpu, Gpu, Hardware

try:
    import pynvml as nvml
except ImportError:  # the package nvidia-ml-py is optional: machines without a GPU do without
    nvml = None

_CGROUP_LIMITS = (
    Path("sys/fs/cgroup/memory.max"),
    Path("sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def probe(root: Path = Path("/")) -> Hardware:
    """This machine. `root` is where /proc and /sys are looked for."""
    gpus, notes = _gpus()
    return Hardware(
        name="this machine",
        cpu=_cpu(root),
        memory_bytes=_memory_bytes(root),
        gpus=gpus,
        notes=notes,
    )


def _cpu(root: Path) -> Cpu:
    fields: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    # Linux on Arm says "Features" and names no model.
    flags = fields.get("flags") or fields.get("Features") or ""
    return Cpu(
        model=fields.get("model name") or platform.processor() or "unknown",
        arch=platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        features=tuple(sorted(set(flags.split()))),
    )


def _memory_bytes(root: Path) -> int:
    """Memory of the machine, or of the container where that is less."""
    total = 0
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    for limit in _CGROUP_LIMITS:
        text = _text(root / limit).strip()
        if text.isdigit() and 0 < int(text) < total:
            total = int(text)
    return total


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _gpus() -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Equal GPUs as one entry with a count, in the driver's order, and what went wrong."""
    if nvml is None:
        return (), ("NVIDIA GPUs were not looked for: the package nvidia-ml-py is not installed",)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (), (f"no NVIDIA driver answers: {error}",)
    notes: list[str] = []
    seen: Counter[Gpu] = Counter()
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                seen[_gpu(nvml.nvmlDeviceGetHandleByIndex(index))] += 1
            except nvml.NVMLError as error:
                notes.append(f"GPU {index} does not answer: {error}")
    except nvml.NVMLError as error:
        notes.append(f"the GPUs cannot be listed: {error}")
    finally:
        nvml.nvmlShutdown()
    if len(seen) > 1:
        notes.append(f"GPUs of {len(seen)} kinds: {', '.join(gpu.name for gpu in seen)}")
    return tuple(replace(gpu, count=count) for gpu, count in seen.items()), tuple(notes)


def _gpu(handle: Any) -> Gpu:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    name = nvml.nvmlDeviceGetName(handle)
    return Gpu(
        name=name.decode() if isinstance(name, bytes) else str(name),
        arch=f"sm_{major}{minor}",
        count=1,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        multiprocessors=_multiprocessors(handle),
        read_bytes_per_s=None,
    )


def _multiprocessors(handle: Any) -> int:
    """NVML counts multiprocessors as cores over the cores of each; 0 where it does not say."""
    try:
        attributes = nvml.nvmlDeviceGetAttributes_v2(handle)
    except (nvml.NVMLError, AttributeError):
        return 0
    return int(attributes.multiprocessorCount)
