"""The owner of a tier: enough about a process to name it to people, and to know for certain that it has ended.

A process is identified by its machine (boot and process namespace), number and start time. Numbers are used again;
start times within a boot are not. A process of another machine, or one that says too little, never counts as ended.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """A process that has a tier, or wants to have it.

    Attributes:
        id: 32 hexadecimal digits, new each time.
        host: name of the machine, for people.
        machine: boot and process namespace. Only processes that can see each other have the same; or "".
        pid: number of the process.
        started: its start time, in clock ticks since the boot; or "".
    """

    id: str
    host: str
    machine: str
    pid: int
    started: str

    @classmethod
    def here(cls) -> Owner:
        """This process, with a new id."""
        pid = os.getpid()
        return cls(secrets.token_hex(16), socket.gethostname(), _machine(), pid, _started(pid) or "")

    @classmethod
    def parse(cls, token: bytes) -> Owner | None:
        """Read what `token` made; None for anything else."""
        try:
            owner = cls(**json.loads(token))
        except (ValueError, TypeError):
            return None
        return owner if isinstance(owner.pid, int) and owner.pid > 0 else None

    def token(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    def gone(self) -> bool:
        """Whether it has certainly ended; False if that cannot be known from here."""
        if not self.machine or self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)  # signal 0 only checks; it sees processes that /proc may hide from other users
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass
        started = _started(self.pid)
        return started is not None and started != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host!r}"


def _machine() -> str:
    # The number of a namespace is used again only after the namespace, with all its processes, has ended.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + " " + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since the boot, "" once it is a zombie; None if it cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]  # field 22 of proc(5)
