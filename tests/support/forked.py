"""`sash` as a process that need not import anything: `sash_daemon.py` forks it.

`Forked` has what tests use of `subprocess.Popen`; `command` makes a command for shells. Their processes are children of
the daemon, which says how they ended.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

NUMBER = struct.Struct("q")
"""How the daemon writes the number of a process, and its exit status."""

File = int | IO[Any] | None


@functools.cache
def _daemon() -> socket.socket:
    """Where the daemon of this process takes messages."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        command = [sys.executable, "-m", "tests.support.sash_daemon", str(there.fileno())]
        null = subprocess.DEVNULL
        daemon = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=null, stdout=null)
    atexit.register(daemon.wait)
    atexit.register(here.close)
    return here


_first = threading.Lock()

COMMAND = """#!{python} -IS
import json, os, socket, struct, sys
told, telling = os.pipe()
given = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "directory": os.getcwd()}}
with socket.socket(fileno={daemon}) as daemon:
    socket.send_fds(daemon, [json.dumps(given).encode()], [0, 1, 2, telling])
os.close(telling)
number = struct.Struct("{number}")
os.read(told, number.size)
sys.exit(number.unpack(os.read(told, number.size))[0])
"""


def command(directory: Path) -> int:
    """Make a command `sash` in a directory. Returns the file that its processes must be given."""
    with _first:
        daemon = _daemon().fileno()
    path = directory / "sash"
    path.write_text(COMMAND.format(python=sys.executable, daemon=daemon, number=NUMBER.format))
    path.chmod(0o755)
    return daemon


class Forked:
    """Has the arguments, output and environment that `subprocess.Popen` would give it. Its pipes have text."""

    def __init__(
        self, arguments: Sequence[object], *, stdout: File = None, stderr: File = None, env: Mapping[str, str]
    ) -> None:
        self.args = [str(each) for each in arguments]
        self.returncode: int | None = None
        self.stdout, output = _opened(stdout, 1)
        self.stderr, errors = _opened(stderr, 2)
        self._told, telling = os.pipe()
        given = {"arguments": self.args, "environment": dict(env), "directory": os.getcwd()}
        with _first:
            daemon = _daemon()
        socket.send_fds(daemon, [json.dumps(given).encode()], [0, output, errors, telling])
        os.close(telling)
        for file, number in ((output, 1), (errors, 2)):
            if file != number:
                os.close(file)
        self._ending = threading.Lock()
        self.pid = self._number()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()

    def poll(self) -> int | None:
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read its output and its errors to their ends, and wait for its own; nothing where that has been read."""
        read = {"stdout": "", "stderr": ""}

        def to_the_end(name: str) -> None:
            file = getattr(self, name)
            if file is not None and not file.closed:
                with file:
                    read[name] = file.read()

        beside = threading.Thread(target=to_the_end, args=("stderr",))
        beside.start()
        to_the_end("stdout")
        beside.join()
        self.wait(timeout)
        return read["stdout"], read["stderr"]

    def _status(self, timeout_s: float | None) -> int | None:
        """Its exit status, as soon as it has one; None where that takes longer."""
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._told, select.POLLIN)
            if ended.poll(None if timeout_s is None else timeout_s * 1000):
                with self._ending:
                    if self.returncode is None:
                        self.returncode = self._number()
                        os.close(self._told)
        return self.returncode

    def _number(self) -> int:
        told = os.read(self._told, NUMBER.size)
        assert told, "the daemon has ended"
        number: int = NUMBER.unpack(told)[0]
        return number


def _opened(given: File, inherited: int) -> tuple[IO[str] | None, int]:
    """What reads a pipe, if one is given; and what the process writes to."""
    if given is None:
        return None, inherited
    if given == subprocess.PIPE:
        reads, writes = os.pipe()
        return os.fdopen(reads), writes
    return None, os.open(os.devnull, os.O_WRONLY) if given == subprocess.DEVNULL else os.dup(given.fileno())
