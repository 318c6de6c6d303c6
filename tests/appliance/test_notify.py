from __future__ import annotations

import socket
from pathlib import Path

from tokenspeed.appliance.notify import Notifier


def receive(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().splitlines()


def test_messages_reach_a_manager_at_a_path(tmp_path: Path) -> None:
    path = tmp_path / "n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        notifier = Notifier(str(path))
        assert notifier.wanted
        notifier.status("two\nlines")
        notifier.status("two\nlines")  # not said twice
        notifier.ready()
        notifier.extend(1.5)
        notifier.reloading()
        notifier.stopping()
        assert receive(manager) == ["STATUS=two lines"]
        assert receive(manager) == ["READY=1"]
        assert receive(manager) == ["EXTEND_TIMEOUT_USEC=1500000"]
        reloading, stamp = receive(manager)
        assert (reloading, stamp.startswith("MONOTONIC_USEC=")) == ("RELOADING=1", True)
        assert receive(manager) == ["STOPPING=1"]
        notifier.close()


def test_an_abstract_address_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0tokenspeed-test-notify")
        notifier = Notifier("@tokenspeed-test-notify")
        notifier.alive()
        assert receive(manager) == ["WATCHDOG=1"]
        notifier.close()


def test_nobody_is_told_and_a_manager_that_does_not_read_holds_up_nothing(tmp_path: Path) -> None:
    nobody = Notifier("")
    nobody.ready()
    assert not nobody.wanted
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        notifier = Notifier(str(tmp_path / "n"))
        for number in range(2000):
            notifier.status(f"line {number}")
        notifier.close()
    gone = Notifier(str(tmp_path / "gone"))
    gone.ready()
    gone.close()
