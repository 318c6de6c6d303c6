"""Hardware: what a machine is, as a frozen value that JSON carries both ways."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The most that a device does of one thing, and who says so.

    `what` and the unit of `value`: "read" (its memory, bytes/s), "float32", "bfloat16", "fp8",
    "fp4" and "int8" (dense matrix products, operations/s, a multiply-add being two), "link" (to
    the other devices of the host, bytes/s per direction), "host" (to the host's memory, bytes/s
    per direction), "node" (s that one more kernel costs within a captured graph). `measured` is
    False for what a vendor states.
    """

    what: str
    value: float
    measured: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """`arch` is the machine name ("x86_64"), `cores` the ones this process may use, `features`
    the flags of /proc/cpuinfo, sorted."""

    model: str
    arch: str
    cores: int
    features: tuple[str, ...]
    ceilings: tuple[Ceiling, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`count` equal GPUs. `arch` is "sm_90" or "gfx950" and the like; bytes are those of one GPU.

    `capabilities` are what kernels may ask for: "fp8" and "fp4" (matrix products of that type),
    "tma", "wgmma", "tcgen05", "mfma". `link` names what joins the GPUs, "" where it is not known.
    """

    name: str
    arch: str
    count: int
    memory_bytes: int
    multiprocessors: int
    link: str = ""
    capabilities: tuple[str, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A host with its GPUs. `memory_bytes` is what this host (or its container) has in all.

    `driver` is the version of the GPUs' driver, "" where there is none. `notes` say what could
    not be seen, for people.
    """

    name: str
    cpu: Cpu
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...] = ()
    driver: str = ""

    def to_json(self) -> bytes:
        """Indented JSON, keys in the order of the fields."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @staticmethod
    def from_json(data: bytes) -> Hardware:
        """Raises msgspec.ValidationError (or DecodeError) when `data` is not a Hardware."""
        return msgspec.json.decode(data, type=Hardware)


def ceiling(ceilings: tuple[Ceiling, ...], what: str) -> Ceiling | None:
    """The figure for `what`, None where nobody gave one."""
    return next((entry for entry in ceilings if entry.what == what), None)
