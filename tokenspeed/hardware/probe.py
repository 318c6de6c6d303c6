"""Look at this machine: /proc and /sys for the host and AMD GPUs, NVML for NVIDIA GPUs.

Never raises for what is missing: a machine without a GPU, without the driver's library, with a
broken driver or with GPUs cut into parts is described as far as it can be seen, with a note on the
rest. Speeds are not measured here: where a shipped profile has the same GPU, its figures are taken.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml

from tokenspeed.hardware.profiles import known_gpu
from tokenspeed.hardware.types import Cpu, Gpu, Hardware

_CGROUP_LIMITS = (
    Path("sys/fs/cgroup/memory.max"),
    Path("sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_AMD_NODES = Path("sys/class/kfd/kfd/topology/nodes")
# More than a driver keeps for itself: another program computes there.
_IN_USE_BYTES = 2**30


def probe(root: Path = Path("/"), nvml: Any = pynvml) -> Hardware:
    """This machine. `root` is where /proc and /sys are looked for; `nvml` is the binding of the
    NVIDIA driver's management library."""
    nvidia = _Nvml(nvml)
    nvidia.look()
    gpus, notes = nvidia.gpus, list(nvidia.notes)
    amd = _amd_gpus(root)
    if amd:
        gpus += amd
        notes = [note for note in notes if not note.startswith(NO_DRIVER)]
    if len(gpus) > 1:
        kinds = ", ".join(gpu.name for gpu in gpus)
        notes.append(f"GPUs of {len(gpus)} kinds: {kinds}; plans use those of {gpus[0].name}")
    return Hardware(
        name="this machine",
        cpu=_cpu(root),
        memory_bytes=_memory_bytes(root),
        gpus=tuple(gpus),
        notes=tuple(notes),
        driver=nvidia.driver,
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


NO_DRIVER = "no NVIDIA driver answers"


class _Nvml:
    """What the NVIDIA driver says: equal GPUs as one entry with a count, in its order."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._seen: Counter[Gpu] = Counter()
        self.notes: list[str] = []
        self.driver = ""

    @property
    def gpus(self) -> list[Gpu]:
        return [replace(gpu, count=count) for gpu, count in self._seen.items()]

    def look(self) -> None:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self.notes.append(f"{NO_DRIVER}: {error}")
            return
        try:
            self.driver = _decoded(nvml.nvmlSystemGetDriverVersion())
            for index in range(nvml.nvmlDeviceGetCount()):
                self._look_at(index)
        except nvml.NVMLError as error:
            self.notes.append(f"the GPUs cannot be listed: {error}")
        finally:
            nvml.nvmlShutdown()

    def _look_at(self, index: int) -> None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if self._is_cut(handle):
                self._look_at_parts(index, handle)
            else:
                self._seen[self._gpu(handle)] += 1
                self._note_use(index, handle)
        except nvml.NVMLError as error:
            self.notes.append(f"GPU {index} does not answer: {error}")

    def _is_cut(self, handle: Any) -> bool:
        """Whether multi-instance mode is on; drivers and GPUs without it say that they lack it."""
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError:
            return False
        return bool(current)

    def _look_at_parts(self, index: int, handle: Any) -> None:
        """A GPU in multi-instance mode computes in its instances only."""
        nvml, whole, found = self._nvml, self._gpu(handle), 0
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            except nvml.NVMLError:
                continue  # no instance at this place
            found += 1
            entry = replace(
                whole,
                name=_decoded(nvml.nvmlDeviceGetName(part)),
                memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(part).total),
                multiprocessors=self._multiprocessors(part),
                link="",
                ceilings=(),
            )
            self._seen[entry] += 1
        instances = f"{found} instance{'' if found == 1 else 's'}"
        self.notes.append(f"GPU {index} ({whole.name}) is cut into parts (MIG): {instances}")

    def _gpu(self, handle: Any) -> Gpu:
        nvml = self._nvml
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        name, arch = _decoded(nvml.nvmlDeviceGetName(handle)), f"sm_{major}{minor}"
        known = known_gpu(name, arch)
        return Gpu(
            name=name,
            arch=arch,
            count=1,
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            multiprocessors=self._multiprocessors(handle)
            or (known.multiprocessors if known else 0),
            link=self._link(handle),
            capabilities=known.capabilities if known else capabilities(major, minor),
            ceilings=known.ceilings if known else (),
        )

    def _multiprocessors(self, handle: Any) -> int:
        """0 where the driver does not say."""
        try:
            attributes = self._nvml.nvmlDeviceGetAttributes_v2(handle)
        except (self._nvml.NVMLError, AttributeError):
            return 0
        return int(attributes.multiprocessorCount)

    def _link(self, handle: Any) -> str:
        """NVLink where its first lane is up, else PCI Express, "" where neither is said."""
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, 0):
                return f"NVLink {nvml.nvmlDeviceGetNvLinkVersion(handle, 0)}"
        except nvml.NVMLError:
            pass  # a GPU without NVLink answers so
        try:
            generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
            return f"PCIe {generation}.0 x{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"
        except nvml.NVMLError:
            return ""

    def _note_use(self, index: int, handle: Any) -> None:
        used = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
        if used > _IN_USE_BYTES:
            self.notes.append(f"GPU {index}: {used / 2**30:.1f} GiB are in use by other programs")


def capabilities(major: int, minor: int) -> tuple[str, ...]:
    """Of an NVIDIA GPU by its compute capability (CUDA C++ programming guide, section 17)."""
    found = []
    if (major, minor) >= (8, 9):
        found.append("fp8")
    if major >= 9:
        found.append("tma")
    if major == 9:
        found.append("wgmma")
    if major >= 10:
        found.append("fp4")
    if major == 10:
        found.append("tcgen05")
    return tuple(sorted(found))


def _decoded(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)


def _amd_gpus(root: Path) -> list[Gpu]:
    """AMD GPUs as the kernel's compute driver lists them; a node without compute units is a CPU."""
    seen: Counter[Gpu] = Counter()
    for node in sorted((root / _AMD_NODES).glob("*")):
        facts = _pairs(_text(node / "properties"))
        version = facts.get("gfx_target_version", 0)
        if not version or not facts.get("simd_count"):
            continue
        # 90402 is gfx942: major, minor and stepping as two decimal digits each.
        arch = f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"
        units = facts["simd_count"] // max(1, facts.get("simd_per_cu", 4))
        memory = _pairs(_text(node / "mem_banks/0/properties")).get("size_in_bytes", 0)
        known = known_gpu("", arch)
        gpu = Gpu(
            name=known.name if known else f"AMD GPU ({arch})",
            arch=arch,
            count=1,
            memory_bytes=memory,
            multiprocessors=units,
            link=known.link if known else "",
            capabilities=known.capabilities if known else ("mfma",),
            ceilings=known.ceilings if known else (),
        )
        seen[gpu] += 1
    return [replace(gpu, count=count) for gpu, count in seen.items()]


def _pairs(text: str) -> dict[str, int]:
    """Lines of a name and a whole number."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            found[name] = int(value)
    return found
