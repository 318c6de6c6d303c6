"""Faults of GPUs, as the NVIDIA driver reports them: Xid events, uncorrectable memory errors, and
cards that are gone.

A worker that dies of one looks like any other that dies; this says what was the matter, and
whether starting it again can help.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

log = logging.getLogger(__name__)

WAIT_MS = 1000
# What operators meet, from NVIDIA's document on Xid errors: number -> (meaning, whether the card
# or the machine must be reset before it computes again).
XIDS: dict[int, tuple[str, bool]] = {
    13: ("a kernel failed", False),
    31: ("a kernel read or wrote memory that is not its own", False),
    43: ("a kernel failed and its program was stopped", False),
    45: ("work was stopped because of an earlier fault", False),
    48: ("uncorrectable memory error", True),
    62: ("the card's microcontroller halted", True),
    63: ("a memory row was replaced; the card needs a reset to use it", False),
    64: ("a memory row could not be replaced", True),
    74: ("NVLink error", True),
    79: ("the card fell off the bus", True),
    92: ("many correctable memory errors", False),
    94: ("memory error that was contained: only the program that met it ends", False),
    95: ("memory error that was not contained", True),
    119: ("the card's system processor does not answer", True),
    120: ("the card's system processor failed", True),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` is "xid", "ecc" or "lost"; `number` the Xid, the count of errors, or 0. `fatal`: the
    card must be reset before it computes again."""

    gpu: int
    kind: str
    number: int
    fatal: bool
    text: str

    def __str__(self) -> str:
        return f"GPU {self.gpu}: {self.text}"


class GpuWatch:
    """Looks at the first `count` GPUs until `stop`. `report` is called from a thread of its own."""

    def __init__(self, count: int, report: Callable[[Fault], None], nvml: Any = pynvml) -> None:
        self._count = count
        self._report = report
        self._nvml = nvml
        self._stopping = threading.Event()
        self._handles: dict[int, Any] = {}
        self._errors: dict[int, int] = {}  # uncorrectable ones of each card so far
        self._lost: set[int] = set()
        # A card that is gone can hang the driver; the end of the process must not wait for it.
        self._thread = threading.Thread(target=self._run, daemon=True, name="gpus")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            log.info("GPU faults cannot be watched: %s", error)
            return
        try:
            events = self._begin()
            while not self._stopping.is_set():
                self._wait(events)
                for index in self._handles:
                    self._look(index)
        finally:
            self._nvml.nvmlShutdown()

    def _begin(self) -> Any:
        """The set of events, None where the driver has none; also counts what was before."""
        nvml = self._nvml
        events = None
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            log.info("Xid events cannot be watched: %s", error)
        for index in range(self._count):
            try:
                handle = self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
                if events is not None:
                    nvml.nvmlDeviceRegisterEvents(
                        handle, nvml.nvmlEventTypeXidCriticalError, events
                    )
                self._errors[index] = self._uncorrected(handle) or 0
            except nvml.NVMLError as error:
                self._on_error(index, error)
        return events

    def _wait(self, events: Any) -> None:
        """For the next Xid, a second at most."""
        nvml = self._nvml
        if events is None:
            self._stopping.wait(WAIT_MS / 1000)
            return
        try:
            event = nvml.nvmlEventSetWait(events, WAIT_MS)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:
                self._stopping.wait(WAIT_MS / 1000)  # it must not spin
            return
        number = int(event.eventData)
        text, fatal = XIDS.get(number, ("a fault", False))
        self._report(
            Fault(self._index(event.device), "xid", number, fatal, f"Xid {number}, {text}")
        )

    def _look(self, index: int) -> None:
        nvml = self._nvml
        if index in self._lost:
            return
        try:
            errors = self._uncorrected(self._handles[index])
        except nvml.NVMLError as error:
            self._on_error(index, error)
            return
        before = self._errors.get(index, 0)
        if errors is None or errors <= before:
            return
        self._errors[index] = errors
        text = f"{errors - before} uncorrectable memory errors"
        self._report(Fault(index, "ecc", errors - before, True, text))

    def _uncorrected(self, handle: Any) -> int | None:
        """Errors since the driver was loaded; None for a card that does not count them."""
        nvml = self._nvml
        kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        try:
            return int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise

    def _on_error(self, index: int, error: Any) -> None:
        if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
            self._lost.add(index)
            text = "it is lost: it fell off the bus, or needs a reset"
            self._report(Fault(index, "lost", 0, True, text))
        else:
            log.warning("GPU %d cannot be watched: %s", index, error)

    def _index(self, device: Any) -> int:
        """Which card an event is about: handles are pointers, made anew with each call."""
        wanted = _address(device)
        for index, handle in self._handles.items():
            if _address(handle) == wanted:
                return index
        return -1


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
