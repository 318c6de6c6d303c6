"""Hardware: what a machine is, as a frozen value that JSON carries both ways."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """`arch` is the machine name ("x86_64"), `cores` the ones this process may use, `features`
    the flags of /proc/cpuinfo, sorted."""

    model: str
    arch: str
    cores: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`count` equal GPUs. `arch` is "sm_90" and the like; bytes are those of one GPU.

    `read_bytes_per_s` is the measured bandwidth of pure reading, None where it is not known.
    """

    name: str
    arch: str
    count: int
    memory_bytes: int
    multiprocessors: int
    read_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A host with its GPUs. `memory_bytes` is what this host (or its container) has in all.

    `notes` say what could not be seen, for people.
    """

    name: str
    cpu: Cpu
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """Indented JSON, keys in the order of the fields."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @staticmethod
    def from_json(data: bytes) -> Hardware:
        """Raises msgspec.ValidationError (or DecodeError) when `data` is not a Hardware."""
        return msgspec.json.decode(data, type=Hardware)
