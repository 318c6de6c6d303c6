"""Ports that a test names in advance, or frees and takes again."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FLOOR, _OUTGOING = 16384, 32768


def named_port() -> int:
    """A free TCP port of 127.0.0.1 that no outgoing connection of this machine takes meanwhile.

    The kernel draws the ports of outgoing connections from `ip_local_port_range`: one of those,
    freed by a server that ends, may be a client's own by the time the next server binds it (a
    client that calls the dead server can even be given that very port, and talk to itself).
    Raises OSError when all are taken.
    """
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(setting.read_text().split()[0]) if setting.exists() else _OUTGOING
    ports = range(_FLOOR, first) if first > _FLOOR else range(1024, _OUTGOING)
    for port in random.SystemRandom().sample(ports, min(64, len(ports))):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of 64 ports between {ports[0]} and {ports[-1]} is free")


def is_listened_on(port: int) -> bool:
    """Whether any socket of this machine listens on this TCP port; others may well hold it."""
    listen = "0A"
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, _, state, *_ = line.split()
            if state == listen and int(local.rpartition(":")[2], 16) == port:
                return True
    return False
