"""The direct client for asyncio, and the producers for asyncio, against real processes."""

from __future__ import annotations

import asyncio
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
from sash_client.direct import AsyncDirectClient, DirectClient
from sash_wire.placement import shard_of
from tests.support.servers import Running, running_service, service_process

KEYS = [f"key-{i}" for i in range(30)]
SPEC = {
    "name": "w",
    "keyed": True,
    "time_unit": "none",
    "fields": {"v": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    arguments = ("--data", str(tmp_path_factory.mktemp("data")), "--processes", "2", "--shards", "4")
    with service_process(*arguments) as running:
        yield running


@pytest.fixture
async def sash(processes: Running) -> AsyncIterator[AsyncDirectClient]:
    async with AsyncDirectClient(processes.grpc_target, timeout_s=120) as client:
        await client.create_window(SPEC)
        yield client
        await client.delete_window("w")


async def sums(client: AsyncClient) -> dict[str | None, tuple[int, Any]]:
    answers = await client.window("w").query(keys=KEYS)
    return {answer.key: (answer.entries, answer.aggregates["sum"]) for answer in answers}


async def test_bulks_and_parts_of_a_batch_go_to_the_owners_of_their_keys(
    sash: AsyncDirectClient, processes: Running
) -> None:
    times, keys = np.arange(300), [KEYS[i * 7 % 30] for i in range(300)]
    window = sash.window("w")
    done = await window.bulk_insert(times, {"v": times}, keys=keys)
    assert (done.inserted, done.already_applied) == (300, False)
    staged = await window.stage(times, {"v": times}, keys=keys, query="q", batch=0)
    assert len(staged) == 2  # one for each process
    assert (await window.commit("q", 0, staged)).inserted == 300
    assert (await window.commit("q", 0, staged)).already_applied
    with pytest.raises(FailedPrecondition):
        await window.stage(times, {"v": times}, keys=keys, query="q", batch=0)
    expected = {key: (20, 2 * sum(v for v, each in enumerate(keys) if each == key)) for key in KEYS}
    assert await sums(sash) == expected
    # The blocking client does the same, by the same plans.
    with DirectClient(processes.grpc_target, timeout_s=120) as blocking:
        same = blocking.window("w")
        assert same.bulk_insert(times, {"v": times}, keys=keys).inserted == 300
        parts = same.stage(times, {"v": times}, keys=keys, query="q", batch=1)
        assert len(parts) == 2
        assert same.commit("q", 1, parts).inserted == 300
    assert await sums(sash) == {key: (2 * n, 2 * total) for key, (n, total) in expected.items()}


async def test_a_bulk_that_is_refused(sash: AsyncDirectClient) -> None:
    window = await sash.create_window({**SPEC, "name": "gone"})
    await sash.delete_window("gone")
    with pytest.raises(NotFound) as raised:
        await window.bulk_insert(np.arange(30), {"v": np.arange(30)}, keys=KEYS)
    assert raised.value.applied == WriteResult()
    rejects = {**SPEC, "name": "rejects", "order": {"late": "reject"}}
    window = await sash.create_window(rejects)
    try:  # a bulk with keys of several shards is refused as a whole, as it is by any process
        with pytest.raises(Unsupported, match="shards"):
            await window.bulk_insert(np.arange(30), {"v": np.arange(30)}, keys=KEYS)
        assert (await window.describe()).entries == 0
    finally:
        await sash.delete_window("rejects")


async def test_the_next_producer_of_a_name_goes_on_in_the_other_client(
    sash: AsyncDirectClient, processes: Running
) -> None:
    async with sash.window("w").producer("p", start=dict.fromkeys(range(4), 0)) as producer:
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


async def test_a_full_buffer_does_not_hold_the_event_loop(processes: Running) -> None:
    """The producer's calls are made on the event loop, so an insert that waited on it would wait for ever."""
    async with AsyncDirectClient(processes.grpc_target, timeout_s=120) as client:
        window = await client.create_window(SPEC)
        async with window.producer("p", buffer_bytes=1, bulk_entries=1) as producer:
            for time in range(20):
                await producer.insert(time, fields={"v": 1}, key="key-1")
        assert producer.result.inserted == 20
        await client.delete_window("w")


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
