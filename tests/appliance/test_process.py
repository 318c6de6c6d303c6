from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tokenspeed.appliance.process import Handle, describe_exit, start_ticks

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


def test_a_process_is_known_by_its_start_and_a_zombie_is_none() -> None:
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        ticks = start_ticks(process.pid)
        assert ticks is not None
        assert ticks >= start_ticks(os.getpid())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert start_ticks(process.pid) is None  # a zombie still
    assert start_ticks(process.pid) is None


def test_a_handle_signals_the_process_it_was_made_for() -> None:
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        handle = Handle(process.pid, start_ticks(process.pid))
        assert not handle.ended(0)
        handle.send(signal.SIGTERM)
        assert handle.ended(10)
        handle.send(signal.SIGTERM)  # harmless
        handle.close()
    assert process.returncode == -signal.SIGTERM


def test_another_process_of_that_number_is_refused() -> None:
    with pytest.raises(ProcessLookupError):
        Handle(os.getpid(), start_ticks(os.getpid()) + 1)


def test_an_exit_is_told_in_words() -> None:
    assert describe_exit(3) == "ended with exit code 3"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-99) == "was killed by signal 99"
