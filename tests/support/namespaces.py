"""Network namespaces of Linux, one for each machine of a test, on a bridge: packets between any two can be dropped.

test and Redis ── bridge ─┬─ eth0 of machine 0        The test has an address of its own on the bridge, so a machine
                          └─ eth0 of machine 1        can lose Redis and be asked all the same.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator

import pytest

_NOBODY = "02:00:00:00:00:01"
"""An address of hardware that no machine has: a bridge drops what goes there, and nobody is told."""


class Machines:
    """Machines in a network of their own.

    Attributes:
        redis: the address for Redis, on the side of the test.
    """

    def __init__(self, count: int, stack: contextlib.ExitStack) -> None:
        self._name = f"s{os.getpid() % 100_000}x{random.SystemRandom().randrange(1000)}"
        self._net = f"198.18.{random.SystemRandom().randrange(256)}"  # for tests of networks, by RFC 2544
        self.redis = f"{self._net}.1"
        bridge = self._name
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        for address in (self.redis, f"{self._net}.2"):
            _ip("addr", "add", f"{address}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        _ip("route", "replace", f"{self._net}.0/24", "dev", bridge, "src", f"{self._net}.2")
        for number in range(count):
            machine, cable = self._machine(number), f"{bridge}c{number}"
            _ip("netns", "add", machine)
            stack.callback(_ip, "netns", "del", machine)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", machine)
            _ip("link", "set", cable, "master", bridge, "up")
            _ip("-n", machine, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", machine, "link", "set", device, "up")

    def _machine(self, number: int) -> str:
        return f"{self._name}m{number}"

    def address(self, number: int) -> str:
        """The address of a machine."""
        return f"{self._net}.{number + 11}"

    def on(self, number: int) -> list[str]:
        """What runs the command behind it on a machine."""
        return ["ip", "netns", "exec", self._machine(number)]

    def drop(self, number: int, to: str) -> None:
        """Drop all packets of a machine to an address, until `heal`."""
        _ip("-n", self._machine(number), "neigh", "replace", to, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")

    def heal(self, number: int) -> None:
        """Drop no packets of a machine any more."""
        _ip("-n", self._machine(number), "neigh", "flush", "dev", "eth0", "nud", "permanent")


@contextlib.contextmanager
def machines(count: int) -> Iterator[Machines]:
    """So many machines, gone at the end; the test is skipped where this process may not make any."""
    with contextlib.ExitStack() as stack:
        try:
            made = Machines(count, stack) if shutil.which("ip") else None
        except PermissionError:
            made = None
        if made is None:
            pytest.skip("this user may not make network namespaces")
        yield made


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
