"""Requests of a stream: their writes are begun without waiting and answered in order, until the service closes."""

import asyncio

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from sash.durability.catalogue import Catalogue
from sash.durability.journal import journal
from sash.durability.records.commands import BulkInsert
from sash.durability.storage import Storage
from sash.plane import Plane
from sash.rpc.pipeline import in_order, until_closed
from sash.runtime.clock import SystemClock
from sash.runtime.metrics import Metrics
from sash.tiers.memory import MemoryStore, MemoryTier
from sash_engine.errors import InvalidArgument, Unavailable
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.spec.window import WindowSpec
from tests.support.servers import WAIT_S
from tests.support.waiting import turns, until


async def requests(count, error=None):
    """So many numbers, then an error; or nothing more."""
    for i in range(count):
        yield i
    if error is not None:
        raise error


async def unending(count=0):
    async for request in requests(count):
        yield request
    await asyncio.Event().wait()


# ---------------------------------------------------------------- writes


async def test_writes_are_begun_without_waiting_and_answered_in_order():
    """Ten writes, four at a time, each done before the one that came before it."""
    done = [asyncio.Event() for _ in range(10)]
    begun = []

    async def write(i):
        begun.append(i)
        await done[i].wait()
        return i

    answers = in_order(requests(10), write, asyncio.Event(), in_flight_max=4)
    found = asyncio.create_task(anext(answers))
    await until(lambda: len(begun) >= 4)
    await turns(20)
    assert begun == [0, 1, 2, 3]
    for event in reversed(done[1:]):
        event.set()
    await turns(20)
    assert not found.done()
    done[0].set()
    assert [await found] + [answer async for answer in answers] == list(range(10))
    assert begun == list(range(10))


async def test_an_error_of_the_tier_is_said_after_the_answers_before_it():
    failing = asyncio.Event()

    async def write(i):
        if i == 2:
            await failing.wait()
            raise Unavailable("the tier is away")
        await turns(1)
        return i

    answers = in_order(requests(5), write, asyncio.Event())
    asyncio.get_running_loop().call_later(0.01, failing.set)
    assert [await anext(answers), await anext(answers)] == [0, 1]
    with pytest.raises(Unavailable):
        await anext(answers)


async def test_a_service_that_closes_answers_what_was_begun_and_begins_nothing_more():
    """Ten writes, four of them begun, one answered; then the service closes: three more answers, and the reason."""
    closing, may_end, begun = asyncio.Event(), asyncio.Event(), []

    async def write(i):
        begun.append(i)
        if i:
            await may_end.wait()
        return i

    answers = in_order(requests(10), write, closing, in_flight_max=4)
    assert await anext(answers) == 0
    await until(lambda: len(begun) >= 4)
    closing.set()
    second = asyncio.create_task(anext(answers))
    await turns(20)
    assert not second.done()
    may_end.set()
    count = len(begun)
    assert [await second] + [await anext(answers) for _ in range(count - 2)] == list(range(1, count))
    with pytest.raises(Unavailable) as caught:
        await anext(answers)
    assert len(begun) == count < 10
    assert caught.value.retry_after_s == 1.0


async def test_writes_that_wait_for_room_keep_their_order(monkeypatch):
    """A slow tier, and room for a few writes: none overtakes the one before it, which would be a gap."""
    loop = asyncio.get_running_loop()

    class SlowTier(MemoryTier):
        def commit(self, puts, deletes=()):
            """Takes as long as the loop takes for some turns, in which further writes come."""
            asyncio.run_coroutine_threadsafe(turns(20), loop).result(WAIT_S)
            super().commit(puts, deletes)

    monkeypatch.setattr(journal, "PENDING_BYTES", 3000)
    clock = SystemClock()
    storage = Storage(Catalogue(clock=clock), clock, SlowTier(MemoryStore()))
    await storage.start()
    plane = Plane.of(storage, Metrics(CollectorRegistry()), clock)
    await plane.create(WindowSpec.parse({"name": "w", "aggregates": {"n": {"function": "count"}}}))

    async def with_pauses():
        async for i in requests(300):
            yield i + 1
            await turns(i % 7)

    async def write(sequence):
        batch = Batch(np.arange(100), {"value": np.zeros(100)})
        return await plane.write("w", BulkInsert(batch), Origin("p", sequence))

    try:
        assert [answer.inserted async for answer in in_order(with_pauses(), write, asyncio.Event())] == [100] * 300
    finally:
        await storage.stop()


# ---------------------------------------------------------------- requests of any stream


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("of", ["writes", "questions"])
async def test_a_service_that_closes_ends_a_stream_on_which_nothing_more_comes(of, count):
    async def write(i):
        return i

    closing, task = asyncio.Event(), asyncio.current_task()
    sent = unending(count)
    open_ = until_closed(sent, closing) if of == "questions" else in_order(sent, write, closing)
    assert [await anext(open_) for _ in range(count)] == list(range(count))
    asyncio.get_running_loop().call_soon(closing.set)
    with pytest.raises(Unavailable) as ended:
        await anext(open_)
    assert ended.value.retry_after_s == 1.0
    assert task.cancelling() == 0


async def test_what_comes_when_the_service_has_closed_is_not_begun():
    closing, more = asyncio.Event(), asyncio.Queue()

    async def as_they_come():
        while True:
            yield await more.get()

    open_ = until_closed(as_they_come(), closing)
    more.put_nowait(1)
    assert await anext(open_) == 1
    waits = asyncio.create_task(anext(open_))
    await turns(1)
    more.put_nowait(2)
    assert await waits == 2  # the same task waits again
    closing.set()
    more.put_nowait(3)
    with pytest.raises(Unavailable):
        await anext(open_)


async def test_a_request_that_is_served_when_the_service_closes_is_served():
    closing, served, watching = asyncio.Event(), [], set()

    async def serve():
        async for request in until_closed(requests(2), closing):
            watching.update(asyncio.all_tasks() - {asyncio.current_task()})
            closing.set()
            await turns(5)
            served.append(request)

    with pytest.raises(Unavailable):
        await serve()
    assert served == [0]
    assert [task.exception() for task in watching] == [None]


async def test_requests_end_with_their_own_end_and_errors():
    assert [found async for found in until_closed(requests(1), asyncio.Event())] == [0]
    for error in (TimeoutError("theirs"), InvalidArgument("no")):
        with pytest.raises(type(error)):
            assert [found async for found in until_closed(requests(1, error), asyncio.Event())] == []
    await turns(1)
    assert asyncio.all_tasks() == {asyncio.current_task()}  # none waits for a close any more
