"""A service that runs as long as a block, for demos and tests.

    with local_service() as service, Client(service.target) as sash:
        ...

It needs the package `sash` in this environment, but does not import it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_STARTED = re.compile(r"gRPC on (\S+), REST and page on (\S+?)/?$")


@dataclass(frozen=True, slots=True)
class LocalService:
    """The addresses of a service: `target` for gRPC (host and port), `address` for REST and the page (a URL)."""

    target: str
    address: str


@contextmanager
def local_service(
    *, grpc_port: int = 0, rest_port: int = 0, data: str = "memory", wait_s: float = 120.0
) -> Iterator[LocalService]:
    """Run ``sash serve`` beside this process; stop it at the end of the block.

    Args:
        grpc_port: port for gRPC; 0 takes a free one.
        rest_port: port for REST; 0 takes a free one.
        data: where it stores windows: a directory, ``redis://…``, or memory, which is lost when it ends.
        wait_s: seconds that it may take to start, and to stop.

    Raises:
        RuntimeError: it did not start; the message has its log.
    """
    command = [sys.executable, "-m", "sash.main", "serve"]
    command += ["--grpc-port", str(grpc_port), "--rest-port", str(rest_port), "--data", data]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            started = _STARTED.search(_first_line(process, wait_s))
            if started is None:
                log.seek(0)
                raise RuntimeError(f"sash serve did not start: {log.read().decode(errors='replace').strip()}")
            yield LocalService(*started.groups())
        finally:
            _stop(process, wait_s)


def _first_line(process: subprocess.Popen[str], wait_s: float) -> str:
    # Reading blocks until there is a line or the process ends, so the timer only has to end the process.
    timer = threading.Timer(wait_s, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        return process.stdout.readline().strip()
    finally:
        timer.cancel()


def _stop(process: subprocess.Popen[str], wait_s: float) -> None:
    process.terminate()
    try:
        process.communicate(timeout=wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
