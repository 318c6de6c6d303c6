from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.appliance.live import Home
from tests.cli.test_down import record_of
from tokenspeed.appliance.instance import Record
from tokenspeed.appliance.probe import look, look_at_all
from tokenspeed.cli import main
from tokenspeed.errors import ExitCode


def test_what_is_not_running_ends_with_3() -> None:
    with Home() as home:
        text, data = home.run("status", "demo"), home.run("status", "demo", "--output", "json")
        help_text = home.run("status", "--help")
    assert (text.returncode, data.returncode) == (3, 3)
    assert text.stderr == (
        "error[TS-C010]: no instance named demo is running\n"
        "  help: nothing is running; `tokenspeed up RECIPE` starts a recipe\n"
    )
    assert "3 not running" in " ".join(help_text.stdout.split())
    assert json.loads(data.stdout) == {"name": "demo", "state": "stopped"}


def test_without_a_name_it_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the health check of a container asks."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert main(["status"]) == 3
    assert "no instance is running" in capsys.readouterr().err
    with answering({"/readyz": (200, '{"status": "ready"}'), "/metrics": METRICS}) as url:
        write_record(tmp_path, dataclasses.replace(record_of(os.getpid(), 1.0), url=url, local=url))
        assert main(["status"]) == 0
        assert "ready" in capsys.readouterr().out
    write_record(tmp_path, dataclasses.replace(record_of(os.getpid(), 1.0), name="other"))
    assert main(["status"]) == 64
    assert "name one of other, stuck" in capsys.readouterr().err


def write_record(root: Path, record: Record) -> None:
    folder = root / record.name
    folder.mkdir()
    (folder / "instance.json").write_bytes(msgspec.json.encode(record))


@contextlib.contextmanager
def answering(paths: dict[str, tuple[int, str]]) -> Iterator[str]:
    """A server that gives these answers: an instance in a state that is hard to bring about."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            status, body = paths[self.path]
            self.send_response(status)
            kind = "application/json" if body.startswith("{") else "text/plain"
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


METRICS = (200, 'tokenspeed_requests_running 3.0\ntokenspeed_requests_waiting{x="y"} 4\n')


@pytest.mark.parametrize(
    ("ready", "state", "detail", "code"),
    [
        ((200, '{"status": "ready"}'), "ready", "", ExitCode.OK),
        ((503, '{"status": "draining", "detail": "d"}'), "draining", "d", ExitCode.TRY_AGAIN),
        ((503, '{"status": "stalled", "detail": "s"}'), "stalled", "s", ExitCode.UNAVAILABLE),
        ((503, '{"status": "down", "detail": "k"}'), "down", "k", ExitCode.UNAVAILABLE),
        ((503, '{"status": "loading", "detail": "l"}'), "starting", "w", ExitCode.TRY_AGAIN),
        ((200, "not what we expect"), "unreachable", None, ExitCode.UNAVAILABLE),
        ((500, "not what we expect"), "unreachable", None, ExitCode.UNAVAILABLE),
    ],
)
def test_states_come_from_the_probes(
    ready: tuple[int, str], state: str, detail: str | None, code: ExitCode
) -> None:
    start = (503, '{"status": "loading", "stage": "w", "percent": 7}')
    with answering({"/readyz": ready, "/startupz": start, "/metrics": METRICS}) as url:
        health = look(_record(url))
    assert health.state == state
    assert detail is None or health.detail == detail
    assert health.exit_code is code
    if state in ("ready", "draining"):
        assert (health.running, health.waiting) == (3, None)


def test_an_instance_that_does_not_answer_is_unreachable() -> None:
    (health,) = look_at_all([_record("http://127.0.0.1:9")])
    assert health.state == "unreachable"
    assert health.exit_code is ExitCode.UNAVAILABLE
    assert look_at_all([]) == []


def _record(url: str) -> Record:
    return dataclasses.replace(record_of(os.getpid(), 1.0), url=url, local=url)
