"""Ports that are chosen now and listened on later, or again after a restart."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(*hosts: str) -> int:
    """Return a port of 127.0.0.1, and of other addresses of this machine, that nobody listens on.

    It is none of those that the system chooses for a connection, or for who listens on port 0. So nobody gets it by
    chance until it is used, or while its server restarts.
    """
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    while True:
        port = random.SystemRandom().randrange(10_000, max(first, 20_000))
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for host in ("127.0.0.1", *hosts):
                probes.enter_context(socket.socket()).bind((host, port))
            return port
