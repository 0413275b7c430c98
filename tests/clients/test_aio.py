"""The client for asyncio: what the other client answers, it answers; what the other raises, it raises.

`test_retries.py` and `test_streams.py` run with both clients.
"""

import asyncio
import contextlib
import inspect
import io

import numpy as np
import pytest

from sash_client import (
    ALL_KEYS,
    AlreadyExists,
    Bulk,
    Client,
    NotFound,
    SashClientError,
    Unavailable,
    Window,
)
from sash_client.aio import AsyncClient, AsyncWindow
from tests.support.connect_server import address, address_of, over_connect
from tests.support.numbered import Numbered, serving
from tests.support.servers import WAIT_S, running_service
from tests.support.waiting import turns, until

SPEC = {
    "time_unit": "s",
    "keyed": True,
    "fields": {"delay": "float64", "carrier": "string"},
    "aggregates": {
        "n": {"function": "count"},
        "mean": {"function": "mean", "field": "delay"},
        "worst": {"function": "arg_max", "field": "delay", "returns": "carrier"},
    },
}
COLUMNS = {"delay": np.arange(6.0), "carrier": list("abcabc")}
KEYS = ["x", "y", "x", "y", "x", "z"]


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("mine", "other", "missing"), [(AsyncClient, Client, set()), (AsyncWindow, Window, {"spec"})])
def test_it_has_the_methods_of_the_other_client(mine, other, missing):
    assert public(mine) == public(other) - missing
    for name in public(mine) - {"name"}:
        theirs, ours = (inspect.signature(getattr(cls, name)).parameters for cls in (other, mine))
        assert list(theirs) == list(ours)
        if name != "insert_stream":  # which takes asynchronous bulks, too
            assert list(theirs.values())[1:] == list(ours.values())[1:]
        assert inspect.getdoc(getattr(mine, name))


async def gathered(found):
    """What a method gives: a value, or the items of a stream."""
    if inspect.isawaitable(found):
        return await found
    if hasattr(found, "__aiter__"):
        return [item async for item in found]
    return list(found) if hasattr(found, "__next__") else found


@pytest.fixture
def where(service, transport):
    return address_of(service, transport)


@pytest.fixture
async def both(where):
    """The same window twice, each with one of the clients."""
    with Client(**where) as sync:
        async with AsyncClient(**where) as aio:
            one = await asyncio.to_thread(sync.create_window, {"name": "one", **SPEC})
            two = await aio.create_window({"name": "two", **SPEC})
            yield one, two
            for info in await aio.list_windows():
                await aio.delete_window(info.name)


async def test_many_calls_at_once(both):
    _, window = both
    row = {"delay": 1.0, "carrier": "a"}
    written = await asyncio.gather(*(window.insert(i, fields=row, key=f"k{i % 3}") for i in range(60)))
    assert sum(result.inserted for result in written) == 60
    answers = await window.query(keys=ALL_KEYS)
    assert [answer.entries for answer in answers] == [20] * 3


async def test_a_window_as_a_file(both, tmp_path):
    one, two = both
    await two.bulk_insert(np.arange(6), COLUMNS, keys=KEYS)
    client, path = two._client, tmp_path / "two.sash"
    size = await client.export_window("two", path)
    assert path.stat().st_size == size > 0
    assert (await client.import_window(path, "three")).entries == 6
    with pytest.raises(AlreadyExists):
        await client.import_window(path)
    (tmp_path / "half").write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(SashClientError):
        await client.import_window(tmp_path / "half", "four")
    with pytest.raises(NotFound):
        await client.export_window("nope", tmp_path / "nope")
    with pytest.raises(FileNotFoundError):
        await client.import_window(tmp_path / "nope")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["half", "two.sash"]
    # Either client reads what the other wrote.
    assert (await asyncio.to_thread(one._client.import_window, path, "five")).entries == 6


# ---------------------------------------------------------------- what goes wrong


@pytest.fixture
async def numbered(transport):
    servicer = Numbered()
    with serving(servicer) as port, over_connect(servicer) as http:
        where = address(transport, port, http.server_port)
        async with AsyncClient(**where, timeout_s=60, bulk_entries_max=10) as client:
            yield servicer, client.window("w")


async def test_a_stream_takes_bulks_that_are_awaited(numbered):
    servicer, window = numbered

    async def bulks():
        for n in (3, 25, 0, 10):
            yield Bulk(np.arange(n), np.zeros(n))
            await turns(1)

    results = [result async for result in window.insert_stream(bulks(), producer="p", sequence=1)]
    assert [(result.inserted, result.sequences) for result in results] == [(3, 1), (25, 3), (0, 1), (10, 1)]
    assert servicer.applied == {"p": 6}


async def test_cancelling_a_task_is_no_error_of_the_service(numbered):
    servicer, window = numbered
    servicer.gate.clear()
    try:
        for call in (
            lambda: window.insert(1, 1.0),
            lambda: gathered(window.insert_stream([Bulk([1], [1.0])])),
        ):
            arrived = len(servicer.arrived)
            task = asyncio.create_task(call())
            await until(lambda arrived=arrived: len(servicer.arrived) > arrived)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    finally:
        servicer.gate.set()


async def test_an_import_whose_file_cannot_be_read_ends_its_call(numbered):
    servicer, window = numbered

    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell():
                assert servicer.importing.wait(WAIT_S)
                raise OSError("the disk is broken")
            return super().read(10)

    with pytest.raises(OSError, match="the disk is broken") as caught:
        await window._client.import_window(Broken(b"x" * 100), "new")
    await until(lambda: not servicer.importing.is_set())
    assert caught.tb is not None  # it refers to the call, so that nothing else has ended that


async def test_closing_ends_calls_in_progress(numbered):
    servicer, window = numbered
    servicer.gate.clear()
    try:
        tasks = [
            asyncio.create_task(window.insert(1, 1.0)),
            asyncio.create_task(gathered(window.insert_stream([Bulk([1], [1.0])]))),
        ]
        await until(lambda: len(servicer.arrived) >= 2)
        await window._client.close()
        for task in tasks:
            with pytest.raises(Unavailable):
                await asyncio.wait_for(task, WAIT_S)
    finally:
        servicer.gate.set()
    await window._client.close()
    for call in (window.insert(1, 1.0, producer="p", sequence=1), window._client.list_windows()):
        with pytest.raises(Unavailable, match="closed"):
            await call


def test_a_client_may_be_made_before_its_event_loop(transport):
    async def listed(client):
        async with client:
            await client.wait_until_ready()
            return await client.list_windows()

    with running_service() as service:
        assert asyncio.run(listed(AsyncClient(**address(transport, service.grpc_port, service.rest_port)))) == []
    asyncio.run(AsyncClient(**address(transport, 1, 1)).close())


async def test_a_service_that_shuts_down_tells_its_producers():
    """What was answered is there, and what was not is sent to the next one; the numbers say what that is."""
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(running_service(shutdown_grace_s=WAIT_S * 2))
        client = AsyncClient(service.grpc_target)
        window = await client.create_window({"name": "w", "aggregates": {"n": {"function": "count"}}})
        more = asyncio.Event()

        async def bulks():
            yield Bulk([1], [1.0])
            await more.wait()

        answers = window.insert_stream(bulks(), producer="p", sequence=1)
        assert (await anext(answers)).inserted == 1
        await asyncio.to_thread(service.stop)  # asserts that it ends within WAIT_S, which is less than the grace
        with pytest.raises(Unavailable, match="shutting down") as caught:
            await anext(answers)
        assert caught.value.retry_after_s == 1.0
        await client.close()
