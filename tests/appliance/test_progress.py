from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys

from tokenspeed.appliance.progress import Plain, Rate

SCRIPT = """
import logging
from tokenspeed import log
from tokenspeed.appliance.progress import display
handler = log.setup()
with display(handler) as shown:
    shown.stage("downloading x.whl")
    shown.fraction(0.5, "5 of 10 MB")
    logging.getLogger("a").warning("a line meanwhile")
    import time
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        shown.fraction(0.75, "7 of 10 MB")
        time.sleep(0.02)
handler.close()
"""


def test_without_a_terminal_each_stage_and_each_tenth_is_a_line() -> None:
    lines: list[str] = []
    plain = Plain(lines.append)
    plain.stage("loading")
    for percent in range(101):
        plain.stage("loading")
        plain.fraction(percent / 100, f"{percent} MB")
    plain.stage("warming up")
    assert lines[:3] == ["loading", "   10 %  10 MB", "   20 %  20 MB"]
    assert len(lines) == 12
    assert lines[-1] == "warming up"


def test_the_rate_starts_anew_with_each_file() -> None:
    lines: list[str] = []
    rate = Rate(Plain(lines.append))
    rate(0, 0)  # total not known
    assert lines == []
    rate(5_000_000, 10_000_000)
    rate(10_000_000, 10_000_000)
    assert re.fullmatch(r"   50 %  5 of 10 MB  0 MB/s", lines[0])
    assert lines[1].startswith("  100 %  10 of 10 MB  ")
    rate(1_000_000, 8_000_000)
    rate(8_000_000, 8_000_000)
    assert lines[-1].startswith("  100 %  8 of 8 MB")


def test_on_a_terminal_a_bar_shows_and_log_lines_stay_whole() -> None:
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stderr=slave, stdout=slave, env=environment
    ) as process:
        os.close(slave)
        seen = b""
        while process.poll() is None or select.select([master], [], [], 0)[0]:
            if select.select([master], [], [], 0.05)[0]:
                try:
                    seen += os.read(master, 65536)
                except OSError:  # the other end is closed
                    break
    os.close(master)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert process.returncode == 0
    assert "downloading x.whl" in text
    assert "7 of 10 MB" in text
    (line,) = (row for row in re.split(r"[\r\n]+", text) if "a line meanwhile" in row)
    assert re.search(r" warning a  a line meanwhile\s*$", line)
