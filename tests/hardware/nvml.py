"""A driver's management library at the border: the calls that the probe makes, with answers."""

# ruff: noqa: N802  (the names are the binding's)

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 2**30


class NvmlError(Exception):
    """What the binding raises; its text is the driver's."""


@dataclass
class Card:
    """One GPU. `parts` are the memory sizes of its instances; None where it is not cut, a name in
    `broken` for a call that fails."""

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    memory: int = 150_754_820_096
    used: int = 500 * 2**20
    nvlink: int | None = 4
    parts: tuple[int, ...] | None = None
    broken: frozenset[str] = field(default_factory=frozenset)


class FakeNvml:
    """`cards` are what is plugged in; `init` the error of a driver that does not answer."""

    NVMLError = NvmlError

    def __init__(self, *cards: Card, init: str = "", count: str = "") -> None:
        self._cards = cards
        self._init, self._count = init, count
        self.open = 0

    def nvmlInit(self) -> None:
        if self._init:
            raise NvmlError(self._init)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        if self._count:
            raise NvmlError(self._count)
        return len(self._cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self._answer(self._cards[index], "handle")

    def nvmlDeviceGetName(self, handle: Any) -> str:
        if isinstance(handle, Card):
            return str(self._answer(handle, "name", handle.name))
        return f"{handle.card.name} MIG {handle.memory // GIB}g"

    def nvmlDeviceGetCudaComputeCapability(self, handle: Card) -> tuple[int, int]:
        return self._answer(handle, "capability", handle.capability)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> SimpleNamespace:
        used = getattr(handle, "used", 0)
        return SimpleNamespace(total=handle.memory, used=used)

    def nvmlDeviceGetMigMode(self, handle: Card) -> tuple[int, int]:
        if handle.capability < (8, 0):
            raise NvmlError("Not Supported")
        return (0 if handle.parts is None else 1, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Card) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Card, place: int) -> SimpleNamespace:
        assert handle.parts is not None
        if place >= len(handle.parts):
            raise NvmlError("Not Found")
        return SimpleNamespace(card=handle, memory=handle.parts[place])

    def nvmlDeviceGetAttributes_v2(self, handle: Any) -> SimpleNamespace:
        if isinstance(handle, Card):
            raise NvmlError("Not Supported")
        return SimpleNamespace(multiprocessorCount=16)

    def nvmlDeviceGetNvLinkState(self, handle: Card, lane: int) -> int:
        if handle.nvlink is None:
            raise NvmlError("Not Supported")
        return 1

    def nvmlDeviceGetNvLinkVersion(self, handle: Card, lane: int) -> int:
        assert handle.nvlink is not None
        return handle.nvlink

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Card) -> int:
        return self._answer(handle, "pcie", 4)

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Card) -> int:
        return 16

    @staticmethod
    def _answer(card: Card, call: str, value: Any = None) -> Any:
        if call in card.broken:
            raise NvmlError("GPU is lost")
        return card if value is None else value
