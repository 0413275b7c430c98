"""`sash serve --processes N`: real processes on one directory, killed while producers write.

`SASH_PROFILE=soak` kills 100 times, else once.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from sash_client import Client
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc
from sash_wire.placement import shard_of
from tests.support.deployments import KEYS, Process, Producer, check, made
from tests.support.profile import THOROUGH
from tests.support.servers import PLAIN, WAIT_S, refused_start
from tests.support.waiting import wait_until

KILLS = 100 if THOROUGH else 1
TWO = ("--processes", "2")
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes on one directory."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **environment: str) -> Process:
            process = Process(str(tmp_path / "data"), *arguments, **environment)
            stack.callback(process.end)
            return process

        yield start


def workers_of(running: Any) -> list[int]:
    pid = running.process.pid
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def there(pids: list[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_nothing_acknowledged_is_lost_and_nothing_counts_twice_when_processes_are_killed(start: Start) -> None:
    running = start(*TWO, "--shards", "4")
    made(running)
    producers = [Producer(f"p{i}", running.target) for i in range(2)]
    chosen = random.Random(7)
    for _ in range(KILLS):
        for producer in producers:
            producer.rounds(2)
        before = workers_of(running)
        assert len(before) == 2
        os.kill(chosen.choice(before), signal.SIGKILL)
        wait_until(lambda before=before: len(now := workers_of(running)) == 2 and now != before)
    wrote = [producer.end() for producer in producers]
    check(running, *wrote)
    workers = workers_of(running)
    os.kill(workers[0], signal.SIGSTOP)  # it ends with the others all the same
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(WAIT_S) == 0
    assert not there(workers)
    # One process serves the same store.
    alone = start("--shards", "4")
    check(alone, *wrote)
    (info,) = httpx.get(f"{alone.url}/v1/windows", **PLAIN).json()["windows"]
    assert info["counts"]["inserted"] == sum(each.total() for each in wrote)


def test_processes_end_with_the_one_that_looks_after_them_and_wait_for_no_call(start: Start) -> None:
    """Who is started in its place waits until they have released the store."""
    running = start(*TWO, SASH_SHUTDOWN_GRACE_S="3600", SASH_SHUTDOWN_DELAY_S="3600")
    made(running)
    workers = workers_of(running)
    end = threading.Event()

    def requests() -> Any:
        one = struct.pack("<q", 1)
        key = pb.Strings(dictionary=["key-0"], codes=struct.pack("<i", 0))
        yield pb.BulkInsertRequest(window="w", time=one, key=key, fields={"value": pb.Column(int64=one)})
        end.wait(WAIT_S)

    with grpc.insecure_channel(running.target) as channel:
        answers = pb_grpc.WindowsStub(channel).InsertStream(requests())
        next(answers)
        running.kill()
        wait_until(lambda: not there(workers))
        end.set()
    assert start(*TWO).answers() == {"key-0": (1, 1)}


def straight_to_its_owner(stub: Any) -> None:
    """Numbers of a producer are counted for each shard, if its writes say which one they are for."""
    mine = [key for key in KEYS if shard_of("w", key, 3) == 1]
    other = next(key for key in KEYS if shard_of("w", key, 3) == 2)

    def insert(key: str, sequence: int, shard: str) -> Any:
        request = pb.InsertRequest(window="w", key=key, time=1, producer="direct", sequence=sequence)
        request.fields["value"].int64 = 1
        return stub.Insert(request, metadata=[("sash-shard", shard)])

    assert insert(mine[0], 1, "1").inserted == 1
    assert insert(mine[1], 2, "1").inserted == 1
    assert insert(mine[1], 2, "1").already_applied
    for key, shard, code in (
        (other, "1", grpc.StatusCode.INVALID_ARGUMENT),
        (other, "2", grpc.StatusCode.UNAVAILABLE),
        (mine[0], "x", grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.RpcError) as raised:
            insert(key, 3, shard)
        assert raised.value.code() == code


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Two processes that are not killed."""
    process = Process(str(tmp_path_factory.mktemp("data")), *TWO, "--shards", "3")
    made(process)
    yield process
    process.end()


def test_metrics_and_topology_are_of_all_processes(running: Process) -> None:
    with Client(running.target) as client:
        found = client.topology()
    assert (found.shards, [process.shards for process in found.processes]) == (3, [[0, 2], [1]])
    assert all(process.up for process in found.processes)
    ports = {process.grpc_port for process in found.processes}
    assert len(ports) == 2
    for port in ports:  # each answers on its own port, too
        with Client(f"127.0.0.1:{port}") as client:
            assert client.topology() == found
    one = next(process for process in found.processes if 1 in process.shards)
    with grpc.insecure_channel(f"127.0.0.1:{one.grpc_port}") as channel:
        straight_to_its_owner(pb_grpc.WindowsStub(channel))
    with Client(running.target) as client:
        window = client.window("w")
        window.bulk_insert(range(len(KEYS)), range(len(KEYS)), keys=KEYS)
        found, entries = client.topology(), window.describe().entries
    sizes = [size for process in found.processes for size in process.sizes]
    assert sorted(size.shard for size in sizes) == [0, 1, 2]
    assert sum(size.entries for size in sizes) == entries >= len(KEYS)
    told = httpx.get(f"{running.url}/v1/topology", **PLAIN).raise_for_status().json()
    assert told == asdict(found)
    text = httpx.get(f"{running.url}/metrics", **PLAIN).text
    for process in "01":
        assert f'sash_process_up{{process="{process}"}} 1.0' in text
        assert f'sash_windows{{process="{process}"}} 1.0' in text
    assert text.count("# TYPE sash_windows gauge") == 1


def test_a_port_that_another_service_has(running: Process, tmp_path: Path) -> None:
    port = running.target.rpartition(":")[2]
    assert f"port {port}" in refused_start("--data", tmp_path, *TWO, "--grpc-port", port)


class Unreadable(io.BytesIO):
    """A file that cannot be read to its end."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise OSError("the disk is broken")
        return super().read(1000)


def test_imports_whose_clients_go_end_no_process(running: Process, tmp_path: Path) -> None:
    workers = workers_of(running)
    with Client(running.target, timeout_s=WAIT_S) as client:
        client.window("w").bulk_insert(range(5000), [1] * 5000, keys=[KEYS[i % 40] for i in range(5000)])
        client.export_window("w", tmp_path / "file")
        for _ in range(3):
            with pytest.raises(OSError, match="the disk is broken"):
                client.import_window(Unreadable((tmp_path / "file").read_bytes()), "copy")
            assert [window.name for window in client.list_windows()] == ["w"]
    assert workers_of(running) == workers
