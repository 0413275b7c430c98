"""Clients that go straight to the process that has a key, and their producers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from sash_client import (
    Client,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unsupported,
    WriteResult,
)
from sash_client.aio import AsyncClient
from sash_client.answers import ServingProcess, Topology
from sash_client.calls.owners import is_safe_elsewhere, targets_of
from sash_client.direct import AsyncDirectClient, DirectClient
from sash_client.errors import unreachable
from sash_wire.placement import shard_of
from tests.support.either_client import CLIENTS, opened
from tests.support.servers import Running, running_service, service_process

KEYS = [f"key-{i}" for i in range(30)]
SPEC = {
    "name": "w",
    "keyed": True,
    "time_unit": "none",
    "fields": {"v": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum", "field": "v"}},
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    arguments = ("--data", str(tmp_path_factory.mktemp("data")), "--processes", "2", "--shards", "4")
    with service_process(*arguments) as running:
        yield running


@pytest.fixture(params=CLIENTS)
def sash(processes: Running, request: pytest.FixtureRequest) -> Iterator[Any]:
    with opened(request.param, processes.grpc_target, direct=True, timeout_s=120) as client:
        client.create_window(SPEC)
        yield client
        client.delete_window("w")


def entries(client: Any) -> dict[str | None, tuple[int, Any]]:
    return {answer.key: (answer.entries, answer.aggregates["sum"]) for answer in client.window("w").query(keys=KEYS)}


def test_calls_for_one_key_go_to_its_owner(sash: Any, processes: Running) -> None:
    window = sash.window("w")
    for time, key in enumerate(KEYS):
        assert window.insert(time, fields={"v": time}, key=key).inserted == 1
    ports = {process.grpc_port for process in sash.topology().processes}
    assert {int(target.rpartition(":")[2]) for target in sash._others} == ports
    for time, key in enumerate(KEYS):
        (answer,) = window.query(key=key)
        assert answer.aggregates["sum"] == window.range_query(0, 99, key=key).aggregates["sum"] == time
    assert window.bulk_evict(99, key=KEYS[3]).evicted == 1
    with Client(processes.grpc_target) as other:
        assert entries(other) == entries(sash)


def test_a_producer_numbers_its_writes_for_each_shard(sash: Any) -> None:
    window = sash.window("w")
    with window.producer("p", linger_s=60) as producer:
        for time in range(3):
            for key in KEYS:
                producer.insert(time, fields={"v": time}, key=key)
            assert producer.flush().inserted == (time + 1) * len(KEYS)
        numbers = producer.acknowledged
        assert numbers == dict.fromkeys(range(4), 3)
    assert entries(sash) == dict.fromkeys(KEYS, (3, 3))
    with pytest.raises(FailedPrecondition, match="closed"):
        producer.insert(1, fields={"v": 1}, key="new")
    # The next one of this name goes on, and is refused if it does not.
    with window.producer("p", start=numbers) as producer:
        producer.insert(5, fields={"v": 0}, key=KEYS[0])
        assert producer.flush().inserted == 1
        shard = shard_of("w", KEYS[0], 4)
        assert producer.acknowledged == {**numbers, shard: 4}
    again = window.producer("p", linger_s=0)
    again.insert(6, fields={"v": 0}, key=KEYS[1])
    with pytest.raises(FailedPrecondition) as raised:
        again.close()
    assert sum(map(len, raised.value.unapplied)) == 1


def test_bulks_are_split_by_shard(sash: Any) -> None:
    window = sash.window("w")
    keys = [KEYS[i * 7 % 30] for i in range(300)]
    with window.producer("p") as producer:
        producer.bulk_insert(range(300), {"v": range(300)}, keys=keys)
        producer.bulk_insert([300], {"v": [1]}, keys="key-0")
        with pytest.raises(InvalidArgument, match="has 2 values"):
            producer.bulk_insert([1], {"v": [1, 2]}, keys="key-0")
    assert producer.result.inserted == 301
    found = {key: (10, sum(v for v, each in enumerate(keys) if each == key)) for key in KEYS}
    found["key-0"] = (11, found["key-0"][1] + 1)
    assert entries(sash) == found


def test_a_service_without_shards_and_a_window_without_keys() -> None:
    for shards in (None, 3):
        with running_service(shards=shards) as running, DirectClient(running.grpc_target) as client:
            client.create_window({"name": "plain", "time_unit": "none", "aggregates": {"n": {"function": "count"}}})
            window = client.window("plain")
            with window.producer("p") as producer:
                producer.insert(1, 1.0)
                producer.bulk_insert([2, 3], [1.0, 2.0])
            window.insert(4, 1.0)
            assert window.query()[0].entries == 4
            client.create_window(SPEC)
            with client.window("w").producer("p") as producer:
                producer.bulk_insert([2], {"v": [1]}, keys=["a"])
            assert client.window("w").query(key="a")[0].entries == 1


def test_threads_may_add_shards_while_others_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_service(shards=3) as running, DirectClient(running.grpc_target) as client:
        client.create_window(SPEC)
        producer = client.window("w").producer("p")
        monkeypatch.setattr(producer._of(0), "flush", lambda timeout_s: producer._of(1))
        producer.flush()
        assert set(producer.acknowledged) == {0, 1}
        monkeypatch.undo()
        producer.close()
        with pytest.raises(FailedPrecondition, match="closed"):
            producer._of(2)


def test_a_process_that_the_client_cannot_reach_is_gone_around() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,  # as behind a firewall: nobody answers
        running_service(shards=3) as running,
        DirectClient(running.grpc_target, timeout_s=120) as client,
    ):
        window = client.create_window(SPEC)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client._perform(client.owners.learnt())
        client.owners._targets = dict.fromkeys(range(3), address)
        assert window.insert(1, fields={"v": 1}, key="a").inserted == 1
        assert set(client.owners._away_until_s) == {address}


def test_a_forked_process_makes_a_client_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_service(shards=3) as running, DirectClient(running.grpc_target) as client:
        client.create_window(SPEC)
        producer = client.window("w").producer("p")
        monkeypatch.setattr(client, "_process", -1)
        with pytest.raises(FailedPrecondition, match="forked"):
            producer.insert(1, fields={"v": 1}, key="a")
        with pytest.raises(FailedPrecondition, match="forked"):
            producer.bulk_insert([1], {"v": [1]}, keys=["a"])
        assert producer.acknowledged == {}  # no thread was started for a shard
        monkeypatch.undo()
        producer.close()


def test_where_processes_are() -> None:
    processes = [
        ServingProcess(0, True, 5, [0]),
        ServingProcess(1, True, 0, [1], "b:1"),
        ServingProcess(2, True, 0, [2]),
    ]
    assert targets_of(Topology(3, processes), "10.0.0.1:7070") == {0: "10.0.0.1:5", 1: "b:1", 2: "10.0.0.1:7070"}


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_direct_client_needs_grpc(kind: str) -> None:
    with pytest.raises(InvalidArgument, match="gRPC"), opened(kind, "http://127.0.0.1:7071", direct=True):
        pass


def test_a_write_that_may_have_arrived_is_not_sent_elsewhere() -> None:
    lost, never, nothing = Unavailable("lost"), unreachable("never"), Unavailable("moving", unchanged=True)
    assert [is_safe_elsewhere("Insert", error) for error in (lost, never, nothing)] == [False, True, True]
    assert is_safe_elsewhere("Query", lost)
    assert not is_safe_elsewhere("Query", FailedPrecondition("no"))


# ---------------------------------------------------------------- for asyncio, and its producers


@pytest.fixture
async def aio(processes: Running) -> AsyncIterator[AsyncDirectClient]:
    async with AsyncDirectClient(processes.grpc_target, timeout_s=120) as client:
        await client.create_window(SPEC)
        yield client
        await client.delete_window("w")


async def sums(client: AsyncClient) -> dict[str | None, tuple[int, Any]]:
    answers = await client.window("w").query(keys=KEYS)
    return {answer.key: (answer.entries, answer.aggregates["sum"]) for answer in answers}


async def test_bulks_and_parts_of_a_batch_go_to_the_owners_of_their_keys(
    aio: AsyncDirectClient, processes: Running
) -> None:
    times, keys = np.arange(300), [KEYS[i * 7 % 30] for i in range(300)]
    window = aio.window("w")
    done = await window.bulk_insert(times, {"v": times}, keys=keys)
    assert (done.inserted, done.already_applied) == (300, False)
    assert len(aio._others) == 2, "both processes were called"
    staged = await window.stage(times, {"v": times}, keys=keys, query="q", batch=0)
    assert len(staged) == 2  # one for each process
    assert (await window.commit("q", 0, staged)).inserted == 300
    assert (await window.commit("q", 0, staged)).already_applied
    with pytest.raises(FailedPrecondition):
        await window.stage(times, {"v": times}, keys=keys, query="q", batch=0)
    expected = {key: (20, 2 * sum(v for v, each in enumerate(keys) if each == key)) for key in KEYS}
    assert await sums(aio) == expected
    # The blocking client does the same, by the same plans.
    with DirectClient(processes.grpc_target, timeout_s=120) as blocking:
        same = blocking.window("w")
        assert same.bulk_insert(times, {"v": times}, keys=keys).inserted == 300
        parts = same.stage(times, {"v": times}, keys=keys, query="q", batch=1)
        assert len(parts) == 2
        assert same.commit("q", 1, parts).inserted == 300
    assert await sums(aio) == {key: (2 * n, 2 * total) for key, (n, total) in expected.items()}


async def test_a_bulk_that_is_refused(aio: AsyncDirectClient) -> None:
    window = await aio.create_window({**SPEC, "name": "gone"})
    await aio.delete_window("gone")
    with pytest.raises(NotFound) as raised:
        await window.bulk_insert(np.arange(30), {"v": np.arange(30)}, keys=KEYS)
    assert raised.value.applied == WriteResult()
    rejects = {**SPEC, "name": "rejects", "order": {"late": "reject"}}
    window = await aio.create_window(rejects)
    try:  # a bulk with keys of several shards is refused as a whole, as it is by any process
        with pytest.raises(Unsupported, match="shards"):
            await window.bulk_insert(np.arange(30), {"v": np.arange(30)}, keys=KEYS)
        assert (await window.describe()).entries == 0
    finally:
        await aio.delete_window("rejects")


async def test_the_next_producer_of_a_name_goes_on_in_the_other_client(
    aio: AsyncDirectClient, processes: Running
) -> None:
    async with aio.window("w").producer("p", start=dict.fromkeys(range(4), 0)) as producer:
        await producer.bulk_insert([5, 6], {"v": [0, 0]}, keys=[KEYS[0], KEYS[0]])
        await producer.flush()
        numbers = producer.acknowledged
    with (
        DirectClient(processes.grpc_target, timeout_s=120) as blocking,
        blocking.window("w").producer("p", start=numbers) as goes_on,
    ):
        goes_on.insert(7, fields={"v": 0}, key=KEYS[0])
        assert goes_on.flush().inserted == 1
        assert goes_on.acknowledged[shard_of("w", KEYS[0], 4)] == 2


async def test_producers_of_the_ordinary_client(processes: Running) -> None:
    async with AsyncClient(processes.grpc_target, timeout_s=120) as client:
        window = await client.create_window(SPEC)
        producer = window.producer("p", start=0)
        assert (producer.acknowledged, producer.result.inserted) == (0, 0)
        async with producer:
            await producer.insert(1, fields={"v": 1}, key="key-1")
            with pytest.raises(InvalidArgument, match="key"):
                await producer.insert(1, fields={"v": 1})
            assert (await producer.flush()).inserted == 1
            assert producer.acknowledged == 1
        await producer.close()
        await client.delete_window("w")


async def test_a_full_buffer_does_not_hold_the_event_loop(aio: AsyncDirectClient) -> None:
    """The producer's calls are made on the event loop, so an insert that waited on it would wait for ever."""
    async with aio.window("w").producer("p", buffer_bytes=1, bulk_entries=1) as producer:
        for time in range(20):
            await producer.insert(time, fields={"v": 1}, key="key-1")
    assert producer.result.inserted == 20


async def test_a_producer_whose_client_is_closed(processes: Running) -> None:
    async with AsyncDirectClient(processes.grpc_target, timeout_s=120) as client:
        window = await client.create_window(SPEC)
        producer = window.producer("p", linger_s=60)
        await producer.insert(1, fields={"v": 1}, key="key-1")
    with pytest.raises(Unavailable, match="closed") as raised:
        await producer.close()
    assert sum(map(len, raised.value.unapplied)) == 1
    with Client(processes.grpc_target) as other:
        other.delete_window("w")


def test_a_producer_whose_loop_has_ended_ends_by_itself(processes: Running) -> None:
    before = set(threading.enumerate())

    async def abandon() -> Any:
        client = AsyncDirectClient(processes.grpc_target, timeout_s=120)
        window = await client.create_window(SPEC)
        producer = window.producer("p", linger_s=0, timeout_s=60)
        await producer.insert(1, fields={"v": 1}, key="key-1")
        await producer.flush()
        return producer

    producer = asyncio.run(abandon())
    producer._inner.insert(2, fields={"v": 1}, key="key-1")
    with pytest.raises(Unavailable, match="event loop") as raised:
        producer._inner.close()
    assert sum(map(len, raised.value.unapplied)) == 1
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("sash producer"):
            thread.join(60)
            assert not thread.is_alive()
    with Client(processes.grpc_target) as other:
        other.delete_window("w")


async def test_a_closed_client_is_unavailable() -> None:
    with running_service(shards=3) as running:
        async with AsyncClient(running.grpc_target) as client:
            await client.create_window(SPEC)
            direct = AsyncDirectClient(running.grpc_target)
            assert (await direct.window("w").insert(1, fields={"v": 1}, key="a")).inserted == 1
            await direct.close()
            with pytest.raises(Unavailable, match="closed"):
                await direct.window("w").insert(1, fields={"v": 1}, key="a")
