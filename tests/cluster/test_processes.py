"""`sash serve --processes N`: real processes on one directory, killed while producers write.

`SASH_PROFILE=soak` kills 100 times, else twice.
"""

from __future__ import annotations

import io
import os
import random
import signal
import struct
import threading
from collections import Counter
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
from tests.support.profile import THOROUGH
from tests.support.servers import WAIT_S, Running, refused_start, running_service, service_process
from tests.support.waiting import wait_until

KILLS = 100 if THOROUGH else 2
KEYS = [f"key-{i}" for i in range(40)]
SPEC = {
    "name": "w",
    "keyed": True,
    "time_unit": "none",
    "fields": {"value": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}


def workers_of(running: Running) -> list[int]:
    pid = running.process.pid
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def made(running: Running) -> None:
    running.http().post("/v1/windows", json=SPEC).raise_for_status()


def sums(target: str) -> dict[str, tuple[int, int]]:
    """Count and sum of every key."""
    with Client(target, timeout_s=WAIT_S) as client:
        answers = client.window("w").query(keys=KEYS)
        together = client.window("w").query(keys=KEYS, combine=True)
    assert together[0].entries == sum(answer.entries for answer in answers)
    return {answer.key: (answer.entries, answer.aggregates["sum"]) for answer in answers if answer.entries}


def served(running: Running) -> bool:
    """Whether every key is answered."""
    try:
        return running.http().get("/v1/windows").status_code == 200
    except httpx.TransportError:
        return False


def test_nothing_acknowledged_is_lost_and_nothing_counts_twice_when_processes_are_killed(tmp_path: Path) -> None:
    arguments = ("--data", str(tmp_path), "--processes", "2", "--shards", "4")
    wrote: Counter[str] = Counter()
    failed: list[BaseException] = []
    acknowledged = threading.Semaphore(0)
    end = threading.Event()

    def produce(name: str, target: str) -> None:
        mine: Counter[str] = Counter()
        try:
            with (
                Client(target, timeout_s=WAIT_S) as client,
                client.window("w").producer(name, linger_s=0.001) as producer,
            ):
                time = 0
                while not end.is_set():
                    for _ in range(20):
                        time += 1
                        key = KEYS[time * 7 % len(KEYS)]
                        producer.insert(time, 1, key=key)
                        mine[key] += 1
                    producer.flush()
                    acknowledged.release()
        except BaseException as error:
            failed.append(error)
            acknowledged.release(1000)
        wrote.update(mine)

    with service_process(*arguments) as running:
        made(running)
        threads = [threading.Thread(target=produce, args=(f"p{i}", running.grpc_target)) for i in range(2)]
        for thread in threads:
            thread.start()
        chosen = random.Random(7)
        for _ in range(KILLS):
            for _ in range(5):
                assert acknowledged.acquire(timeout=WAIT_S)
            assert not failed
            before = workers_of(running)
            assert len(before) == 2
            os.kill(chosen.choice(before), signal.SIGKILL)
            wait_until(lambda before=before: len(now := workers_of(running)) == 2 and now != before)
        end.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert not failed
        wait_until(lambda: served(running))
        expected = {key: (count, count) for key, count in wrote.items()}
        assert sums(running.grpc_target) == expected
        before = workers_of(running)
    assert running.process.returncode == 0
    for pid in before:
        assert not Path(f"/proc/{pid}").exists()
    # One process serves the same store.
    with running_service(data=str(tmp_path)) as alone:
        assert sums(alone.grpc_target) == expected
        (info,) = alone.http().get("/v1/windows").json()["windows"]
        assert info["counts"]["inserted"] == sum(wrote.values())


def test_processes_end_with_the_one_that_looks_after_them(tmp_path: Path) -> None:
    with service_process("--data", str(tmp_path), "--processes", "2") as running:
        workers = workers_of(running)
        running.process.kill()
        running.process.wait(WAIT_S)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), WAIT_S)


def test_processes_whose_first_one_is_killed_wait_for_no_call(tmp_path: Path) -> None:
    """Who is started in its place waits until they have released the store."""
    arguments = ("--data", str(tmp_path), "--processes", "2")
    with service_process(*arguments, SASH_SHUTDOWN_GRACE_S="3600", SASH_SHUTDOWN_DELAY_S="3600") as running:
        made(running)
        workers = workers_of(running)
        end = threading.Event()

        def requests() -> Any:
            one = struct.pack("<q", 1)
            key = pb.Strings(dictionary=["key-0"], codes=struct.pack("<i", 0))
            yield pb.BulkInsertRequest(window="w", time=one, key=key, fields={"value": pb.Column(int64=one)})
            end.wait(WAIT_S)

        with grpc.insecure_channel(running.grpc_target) as channel:
            answers = pb_grpc.WindowsStub(channel).InsertStream(requests())
            next(answers)
            running.process.kill()
            running.process.wait(WAIT_S)
            wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
            end.set()
    with service_process(*arguments) as running:
        assert sums(running.grpc_target) == {"key-0": (1, 1)}


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


def test_metrics_and_topology_are_of_all_processes(tmp_path: Path) -> None:
    with service_process("--data", str(tmp_path), "--processes", "2", "--shards", "3") as running:
        made(running)
        with Client(running.grpc_target) as client:
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
        with Client(running.grpc_target) as client:
            window = client.window("w")
            window.bulk_insert(range(len(KEYS)), range(len(KEYS)), keys=KEYS)
            found, entries = client.topology(), window.describe().entries
        sizes = [size for process in found.processes for size in process.sizes]
        assert sorted(size.shard for size in sizes) == [0, 1, 2]
        assert sum(size.entries for size in sizes) == entries >= len(KEYS)
        told = running.http().get("/v1/topology").raise_for_status().json()
        assert told == asdict(found)
        text = running.http().get("/metrics").text
        for process in "01":
            assert f'sash_process_up{{process="{process}"}} 1.0' in text
            assert f'sash_windows{{process="{process}"}} 1.0' in text
        assert text.count("# TYPE sash_windows gauge") == 1


def test_a_port_that_another_service_has(tmp_path: Path) -> None:
    with service_process("--data", str(tmp_path / "a"), "--processes", "2") as running:
        port = str(running.grpc_port)
        said = refused_start("--data", tmp_path / "b", "--processes", "2", "--grpc-port", port)
        assert f"port {port}" in said


class Unreadable(io.BytesIO):
    """A file that cannot be read to its end."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise OSError("the disk is broken")
        return super().read(1000)


def test_imports_whose_clients_go_end_no_process(tmp_path: Path) -> None:
    with service_process("--data", str(tmp_path / "data"), "--processes", "2") as running:
        made(running)
        workers = workers_of(running)
        with Client(running.grpc_target, timeout_s=WAIT_S) as client:
            client.window("w").bulk_insert(range(5000), [1] * 5000, keys=[KEYS[i % 40] for i in range(5000)])
            client.export_window("w", tmp_path / "file")
            for _ in range(3):
                with pytest.raises(OSError, match="the disk is broken"):
                    client.import_window(Unreadable((tmp_path / "file").read_bytes()), "copy")
                assert [window.name for window in client.list_windows()] == ["w"]
        assert workers_of(running) == workers
