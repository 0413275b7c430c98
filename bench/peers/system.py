"""What a system must be able to do to be measured, and the processes of those that are servers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.work import Floats, Ints, Sketches, Trailing
from tests.support.ports import free_port

PATIENCE_S = 60.0


class Cannot(Exception):
    """The system has nothing that does this."""


class NotInstalled(Exception):
    """The system is not on this machine."""


class System:
    """One system. What it does not override, it cannot do.

    Args:
        directory: where it keeps its data.
    """

    name = ""
    kept = ""
    """When a write is answered, and where it is then."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    package = ""
    """That has its version."""

    def version(self) -> str:
        return version(self.package)

    def start(self) -> None:
        """Start it, on the data that is there; return when it answers."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it; nobody needs its data again."""

    def kill(self) -> None:
        """End it as a power cut would."""
        raise Cannot("keeps nothing")

    def resident(self) -> int:
        """Bytes in memory."""
        return resident(os.getpid())

    def prepared(self, times: Ints, codes: Ints, values: Floats) -> Any:
        """A bulk in the form in which the client takes it. This is not measured."""
        return times, codes, values

    def bulk(self, prepared: Any) -> None:
        """Insert many entries."""
        raise Cannot("takes no entries: it is a job over a file")

    def single(self, time_ms: int, code: int, value: float) -> None:
        """Insert one entry."""
        self.bulk(self.prepared(np.array([time_ms]), np.array([code]), np.array([value])))

    def settle(self) -> None:
        """Wait until everything that was inserted is in the answers."""

    def persist(self) -> None:
        """Wait until everything that was inserted would be there after a kill."""

    def trailing(self, code: int, now_ms: int) -> Trailing:
        raise Cannot("answers no questions between the windows that were declared")

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        raise NotImplementedError

    def sketches(self, code: int, now_ms: int) -> Sketches:
        raise Cannot("answers no questions between the windows that were declared")


class Server(System):
    """A system that is a process of its own."""

    _process: subprocess.Popen[bytes] | None = None
    program = ""
    """A package of Debian, and its command, where it is one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        if self.program and shutil.which(self.program) is None:
            raise NotInstalled(f"the Debian package {self.program} is not installed")
        self.port = free_port()

    def command(self) -> list[str]:
        """The command that runs it."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Variables that it needs."""
        return {}

    def ready(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, cwd=self.directory, env={**os.environ, **self.environment()}
            )
        wait_until(self.ready, self._process)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def resident(self) -> int:
        assert self._process is not None
        return resident(self._process.pid)


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if ready():
                return
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}; its log is in {process.args!r}")
        time.sleep(0.01)
    raise TimeoutError("the server does not answer")


def resident(pid: int) -> int:
    """Bytes of a process that are in memory and its own: pages of mapped files do not count."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise ValueError("no RssAnon")
