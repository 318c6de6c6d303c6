"""Log set-up: one handler, lines on a stream, and a write that never blocks the caller.

A record is rendered where it is made and put into a bounded queue; one thread writes. When the
reader of the stream does not read, the queue fills, further lines are dropped and counted, and
the count is written once there is room again. A closed stream or a full disk costs lines, never
service. What clients wrote is never logged unless the recipe asks for it.

    log = logging.getLogger(__name__)
    log.info("worker is ready", extra={"fields": {"seconds": 1.2}})
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

QUEUE_LINES = 4096
LINE_BYTES = 8192  # longer lines are cut: one line must not hold the queue's memory
CLOSE_SECONDS = 1.0

# The same message (before its arguments are filled in) may appear this often in each period.
REPEATS_PER_PERIOD = 20
PERIOD_SECONDS = 10.0
THROTTLE_KEYS = 512

LEVELS = ("debug", "info", "warning", "error")

Fields: TypeAlias = "dict[str, object]"


class LineFormatter(logging.Formatter):
    """`2026-11-29 13:52:01.250 info    appliance.serving  worker is ready  seconds=1.2`"""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix("tokenspeed.")
        fields = "".join(f"  {key}={_short(value)}" for key, value in fields_of(record).items())
        head = f"{stamp}.{int(record.msecs):03d} {record.levelname.lower():7} {name}"
        return f"{head}  {record.getMessage()}{fields}{_traceback(self, record)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (seconds), level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: Fields = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _traceback(self, record):
            entry["traceback"] = trace.lstrip("\n")
        return json.dumps(fields_of(record) | entry, default=str, ensure_ascii=False)


class Throttle(logging.Filter):
    """Lets the same message through a few times per period, then counts in silence.

    Told apart by logger and unfilled message, so a client cannot make endless kinds. The next
    line let through says how many were left out. Debug lines and errors always pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno not in (logging.INFO, logging.WARNING):
            return True
        key = (record.name, str(record.msg))
        now = self._clock()
        began, count = self._seen.get(key, (now, 0))
        if now - began >= PERIOD_SECONDS:
            left_out = max(0, count - REPEATS_PER_PERIOD)
            if left_out:
                record.fields = fields_of(record) | {"similar_lines_left_out": left_out}
            began, count = now, 0
        if key not in self._seen and len(self._seen) >= THROTTLE_KEYS:
            self._seen.clear()
        self._seen[key] = (began, count + 1)
        return count < REPEATS_PER_PERIOD


class QueueHandler(logging.Handler):
    """Puts rendered lines into a bounded queue that a thread writes to a file descriptor."""

    def __init__(self, descriptor: int, capacity: int = QUEUE_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._display: Callable[[bytes], None] | None = None
        self._queue: queue.Queue[bytes | None] = queue.Queue(capacity)
        self._lost = 0
        self._abandoned = False  # closed with the writer stuck: it ends when it can
        self._lost_lock = threading.Lock()
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    @property
    def lost_lines(self) -> int:
        """Lines dropped and not yet reported in the log itself."""
        return self._lost

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.put(self.format(record))
        except Exception:  # a bad format argument must not end a request
            self.put(f"log message could not be rendered: {record.msg!r}")

    def put(self, line: str) -> None:
        """Queues a finished line; drops and counts it when the queue is full. Never blocks."""
        data = line.encode(errors="backslashreplace")
        if len(data) > LINE_BYTES:
            data = data[:LINE_BYTES] + b" [cut]"
        self.put_data(data + b"\n")

    def put_data(self, data: bytes) -> None:
        """The same for what is written as it is."""
        try:
            self._queue.put_nowait(data)
        except queue.Full:
            self._count_lost(1)

    def close(self) -> None:
        """Writes what is queued, for a second at most, then lets go of the thread."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_SECONDS / 2)
        self._writer.join(CLOSE_SECONDS)
        self._abandoned = True
        super().close()

    def write_through(self, write: Callable[[bytes], None] | None) -> None:
        """Lets a progress display print the lines above itself; None ends that.

        `write` is called from the writer's thread and may raise OSError.
        """
        self._display = write

    def _count_lost(self, lines: int) -> None:
        with self._lost_lock:
            self._lost += lines

    def _write(self) -> None:
        while (data := self._queue.get()) is not None and not self._abandoned:
            with self._lost_lock:
                lost, self._lost = self._lost, 0
            note = b"%d log lines were dropped: nobody read them in time\n" % lost if lost else b""
            try:
                (self._display or self._write_all)(note + data)
            except (OSError, ValueError):
                # Closed stream or full disk: the line is lost, not the thread.
                self._count_lost(lost + 1)

    def _write_all(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                # Somebody made the stream non-blocking. Waiting here keeps no request waiting.
                select.select([], [self._descriptor], [], CLOSE_SECONDS)


def setup(
    *, level: str = "info", structured: bool = False, descriptor: int | None = None
) -> QueueHandler:
    """Makes the returned handler the only one of this process; close it last.

    Writes to `descriptor`, standard error by default; to nowhere when that is closed.
    """
    handler = QueueHandler(_standard_error() if descriptor is None else descriptor)
    handler.setFormatter(JsonFormatter() if structured else LineFormatter())
    return use(handler, level=level)


def use(handler: QueueHandler, *, level: str = "info") -> QueueHandler:
    """Makes this handler, with its formatter, the only one of this process."""
    handler.addFilter(Throttle())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Errors inside logging itself would go to the stream that may be blocked or gone.
    logging.raiseExceptions = False
    return handler


def set_level(level: str) -> None:
    """What this process logs of its own from now on; of its libraries as before."""
    logging.getLogger("tokenspeed").setLevel(level.upper())


def _standard_error() -> int:
    # A process that was started with descriptor 2 closed may since have opened any file as 2.
    return sys.stderr.fileno() if sys.stderr else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def fields_of(record: logging.LogRecord) -> Fields:
    """The structured fields of a record, {} when it has none."""
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _short(value: object) -> str:
    """Floats to four digits: lines are for people, and JSON lines keep every digit."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    return "\n" + formatter.formatException(record.exc_info)
