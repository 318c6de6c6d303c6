from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tokenspeed import log

LINES_TOO_MANY = 300


def until(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.001)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def record(message: str, *args: object, level: int = logging.INFO, **extra: object):
    made = logging.LogRecord("tokenspeed.up", level, "f.py", 1, message, args, None)
    made.__dict__.update(extra)
    return made


def test_a_line_names_time_level_logger_message_and_fields() -> None:
    line = log.LineFormatter().format(
        record("ready in %d s", 3, fields={"blocks": 7, "s": 0.123456})
    )
    assert line.endswith(" info    up  ready in 3 s  blocks=7  s=0.1235")
    assert line[4] == "-" and line[13] == ":" and line[19] == "."


def test_json_lines_carry_fields_that_cannot_replace_the_message() -> None:
    text = log.JsonFormatter().format(record("a\nb", fields={"message": "no", "path": 1}))
    assert "\n" not in text
    entry = json.loads(text)
    assert entry["message"] == "a\nb"
    assert entry["path"] == 1
    assert entry["level"] == "info"


def test_a_traceback_is_part_of_both_forms() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        made = record("failed", exc_info=sys.exc_info())
    assert "ValueError: why" in log.LineFormatter().format(made)
    assert "ValueError: why" in json.loads(log.JsonFormatter().format(made))["traceback"]


def test_a_reader_that_does_not_read_costs_lines_and_no_time(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    handler = log.QueueHandler(writer, capacity=100)
    put = itertools.count()

    def lost_after_one_more() -> int:
        handler.put(f"line {next(put)} " + "x" * 100)
        return handler.lost_lines

    until(lambda: lost_after_one_more() > LINES_TOO_MANY, "pipe and queue are full, lines drop")

    got = bytearray()
    drained = threading.Thread(target=lambda: _read_all(reader, got))
    drained.start()
    until(lambda: lost_after_one_more() == 0, "the loss is reported")
    handler.close()
    os.close(writer)
    drained.join(10)
    rows = got.decode().splitlines()
    dropped = sum(int(row.split()[0]) for row in rows if row.endswith("nobody read them in time"))
    kept = sum(row.startswith("line ") for row in rows)
    assert dropped > LINES_TOO_MANY
    assert kept + dropped + handler.lost_lines == next(put)


def _read_all(descriptor: int, into: bytearray) -> None:
    while data := os.read(descriptor, 65536):
        into.extend(data)


def test_a_closed_stream_loses_lines_but_the_writer_lives(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    handler = log.QueueHandler(writer)
    handler.put("nobody hears this")
    until(lambda: handler.lost_lines == 1, "the loss is counted")
    handler.put("nor this")
    until(lambda: handler.lost_lines == 2, "the thread still takes lines")
    handler.close()


def test_a_full_disk_loses_lines_but_the_writer_lives() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    handler = log.QueueHandler(descriptor)
    handler.put("no room")
    until(lambda: handler.lost_lines == 1, "the loss is counted")
    handler.close()
    os.close(descriptor)


def test_close_writes_what_is_queued(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    handler = log.QueueHandler(writer)
    for number in range(50):
        handler.put(str(number))
    handler.close()
    assert os.read(reader, 65536).decode().split() == [str(number) for number in range(50)]


def test_close_gives_up_on_a_stuck_stream(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    handler = log.QueueHandler(writer, capacity=10)
    for _ in range(100):
        handler.put("x" * 8000)
    handler.close()  # returns; the test's time-out is the assertion
    os.set_blocking(reader, False)

    def ended_once_read() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 65536)
        return not handler._writer.is_alive()

    until(ended_once_read, "the thread ends")


def test_an_endless_line_is_cut(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    handler = log.QueueHandler(writer)
    handler.put("y" * 100_000)
    handler.close()
    assert len(os.read(reader, 200_000)) < log.LINE_BYTES + 20


def test_a_message_that_does_not_format_is_logged_all_the_same(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    handler = log.QueueHandler(writer)
    handler.setFormatter(log.LineFormatter())
    handler.handle(record("%d items", "many"))
    handler.close()
    assert b"could not be rendered: '%d items'" in os.read(reader, 65536)


def test_a_display_may_take_the_lines_and_give_them_back(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    shown: list[bytes] = []
    handler = log.QueueHandler(writer)
    handler.write_through(shown.append)
    handler.put("above the bar")
    until(lambda: shown == [b"above the bar\n"], "the display got the line")
    handler.write_through(None)
    handler.put("plain again")
    handler.close()
    assert os.read(reader, 65536) == b"plain again\n"


def test_the_same_message_is_throttled_and_the_rest_counted() -> None:
    now = [100.0]
    throttle = log.Throttle(clock=lambda: now[0])
    passed = [
        throttle.filter(record("unknown field %s", name, level=logging.WARNING))
        for name in range(log.REPEATS_PER_PERIOD + 5)
    ]
    assert passed.count(True) == log.REPEATS_PER_PERIOD
    assert throttle.filter(record("another message"))
    now[0] += log.PERIOD_SECONDS
    again = record("unknown field %s", "z", level=logging.WARNING)
    assert throttle.filter(again)
    assert log.fields_of(again)["similar_lines_left_out"] == 5


def test_errors_are_never_throttled_and_kinds_are_bounded() -> None:
    throttle = log.Throttle()
    assert all(throttle.filter(record("broken", level=logging.ERROR)) for _ in range(1000))
    for kind in range(3 * log.THROTTLE_KEYS):
        throttle.filter(record(f"kind {kind}"))
    assert len(throttle._seen) <= log.THROTTLE_KEYS


def test_setup_in_a_real_process_with_standard_error_closed() -> None:
    code = (
        "import logging, os\nfrom tokenspeed import log\n"
        "handler = log.setup()\nlogging.getLogger('a').warning('x')\nhandler.close()\nos._exit(7)"
    )
    closed = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", code])
    assert closed.returncode == 7


def test_setup_replaces_handlers_and_filters_by_level() -> None:
    code = (
        "import logging\nfrom tokenspeed import log\nlogging.basicConfig()\n"
        "handler = log.setup(level='warning', structured=True)\n"
        "logging.getLogger('a').info('quiet')\nlogging.getLogger('a').warning('loud %s', 1)\n"
        "handler.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr)["message"] == "loud 1"
