"""The status page: what it reads is there, it needs nothing else, and a real browser likes it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.server.live import LiveServer
from tokenspeed.server.status import CHAT, PAGE

CHROMIUM = shutil.which("chromium")
# Nothing that a browser does by itself.
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=6000"),
)
WIDTHS = (360, 1440)


def test_the_page_needs_nothing_from_anywhere_else(rand: LiveServer) -> None:
    answer = httpx.get(rand.url + "/status")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.text == PAGE.read_text().replace("<!-- chat -->", CHAT.read_text())
    assert not re.findall(r"(?:src|href)=\"(?!data:)|url\(|@import|https?://", answer.text)
    assert re.findall(r'fetch\("([^"]+)"', answer.text) == [
        *("v1/models", "v1/chat/completions", "status.json")
    ]


def test_the_data_is_the_true_state_and_names_recent_errors(rand: LiveServer) -> None:
    httpx.post(rand.url + "/v1/nowhere", json={})
    data = httpx.get(rand.url + "/status.json").json()
    assert data["state"] == {"name": "ready", "detail": ""}
    assert data["plan"]["name"] == rand.plan.name
    assert data["engine"]["running"] == 0
    assert data["capacity"]["num_blocks"] == data["engine"]["blocks_total"] + 1
    newest = data["errors"][0]
    assert (newest["status"], newest["path"]) == (404, "/v1/nowhere")
    assert newest["request_id"].startswith("req-")


def test_what_the_page_reads_is_in_the_data(rand: LiveServer) -> None:
    data = httpx.get(rand.url + "/status.json").json()
    text = PAGE.read_text()
    for part in ("engine", "capacity", "front"):
        for name in set(re.findall(rf"\b{part}\.([a-z_]+)", text)):
            assert name in data[part], (part, name)
    for section, name in set(re.findall(r"\bplan\.([a-z]+)\.([a-z_]+)", text)):
        part = data["plan"][section]
        assert isinstance(part, list) or name in part, (section, name)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_it_without_a_complaint(
    rand: LiveServer, tmp_path: Path, width: int
) -> None:
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={tmp_path}", f"--window-size={width},900"]
    done = subprocess.run(
        [*command, "--dump-dom", rand.url + "/status"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert f">{rand.plan.name}</h1>" in done.stdout
    assert re.search(r'class="state ready"[^>]*>ready<', done.stdout)
    assert ":CONSOLE" not in done.stderr
