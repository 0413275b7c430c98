"""Streams of inserts: answered in order, and ended by the first error."""

import asyncio
import threading

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from sash.durability.catalogue import Catalogue
from sash.durability.journal import journal
from sash.durability.records.commands import BulkInsert
from sash.durability.storage import Storage
from sash.plane import Plane
from sash.rpc.pipeline import in_order
from sash.runtime.clock import SystemClock
from sash.runtime.metrics import Metrics
from sash.tiers.memory import MemoryStore, MemoryTier
from sash_engine.errors import Unavailable
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.spec.window import WindowSpec
from sash_proto.v1 import windows_pb2 as pb
from tests.support.messages import COUNT, answered, bulk, int64
from tests.support.servers import WAIT_S, running_service
from tests.support.waiting import turns, until

# ---------------------------------------------------------------- inserts in a row


def applied(error):
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in rpc_status.from_call(error).details)
    return info.metadata["applied"]


def test_a_stream_of_inserts_is_answered_in_order(stub, window):
    requests = [bulk(window, range(100 * i, 100 * i + i), range(i)) for i in range(200)]
    found, error = answered(stub.InsertStream(iter(requests), timeout=WAIT_S))
    assert error is None
    assert [each.inserted for each in found] == list(range(200))
    (answer,) = stub.Query(pb.QueryRequest(window=window)).answers
    assert answer.entries == sum(range(200))


def test_a_stream_of_no_inserts(stub):
    assert answered(stub.InsertStream(iter([]), timeout=WAIT_S)) == ([], None)


def test_an_answer_does_not_wait_for_the_next_request(stub, window):
    """The client asks on only after it was answered: nobody waits for a full pipeline."""
    turn = threading.Semaphore(0)

    def requests():
        for i in range(3):
            yield bulk(window, [i], [i])
            assert turn.acquire(timeout=WAIT_S)

    for response in stub.InsertStream(requests(), timeout=WAIT_S):
        assert response.inserted == 1
        turn.release()


def test_the_first_error_ends_the_stream_and_nothing_after_it_is_applied(stub, window):
    good = [bulk(window, [i], [i]) for i in range(5)]
    wrong = pb.BulkInsertRequest(window=window, time=int64(7), fields={})
    found, error = answered(stub.InsertStream(iter([*good[:2], wrong, *good[2:]]), timeout=WAIT_S))
    assert [each.inserted for each in found] == [1, 1]
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert applied(error) == "2"
    assert stub.GetWindow(pb.GetWindowRequest(name=window)).entries == 2


def test_bytes_in_a_stream_that_are_no_message(service, stub, window):
    path = "/sash.v1.Windows/InsertStream"
    call = service.channel().stream_stream(path, _registered_method=False)
    requests = [bulk(window, [1], [1]).SerializeToString(), b"\xff\xff", bulk(window, [2], [2]).SerializeToString()]
    found, error = answered(call(iter(requests), timeout=WAIT_S))
    assert len(found) == 1
    assert (error.code(), applied(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "1")
    assert stub.GetWindow(pb.GetWindowRequest(name=window)).entries == 1


async def test_writes_are_begun_without_waiting_and_answered_in_order():
    """Ten writes, four at a time, each done before the one that came before it."""
    done = [asyncio.Event() for _ in range(10)]
    begun = []

    async def write(i):
        begun.append(i)
        await done[i].wait()
        return i

    async def requests():
        for i in range(10):
            yield i

    answers = in_order(requests(), write, asyncio.Event(), in_flight_max=4)
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

    async def requests():
        for i in range(5):
            yield i

    answers = in_order(requests(), write, asyncio.Event())
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

    async def requests():
        for i in range(10):
            yield i

    answers = in_order(requests(), write, closing, in_flight_max=4)
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


async def test_a_service_that_closes_ends_a_stream_on_which_nothing_happens():
    closing = asyncio.Event()

    async def requests():
        await asyncio.Event().wait()
        yield 0

    async def write(i):
        raise AssertionError("there is nothing to write")

    answer = asyncio.create_task(anext(in_order(requests(), write, closing)))
    await turns(1)
    closing.set()
    with pytest.raises(Unavailable):
        await answer


def test_an_idle_stream_of_inserts_does_not_hold_the_service_up():
    """Its producer is told, and what was answered is applied."""
    more = threading.Event()
    with running_service(shutdown_grace_s=WAIT_S * 2) as service:
        stub = service.stub()
        stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates={"n": COUNT})))

        def requests():
            yield bulk("w", [1], [1])
            more.wait(WAIT_S)

        answers = stub.InsertStream(requests())
        assert next(answers).inserted == 1
        service.stop()  # asserts that it ends within WAIT_S, which is less than the grace
        found, error = answered(answers)
        more.set()
        assert (found, error.code(), applied(error)) == ([], grpc.StatusCode.UNAVAILABLE, "1")


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
    catalogue = Catalogue(clock=clock)
    storage = Storage(catalogue, clock, SlowTier(MemoryStore()))
    await storage.start()
    plane = Plane.of(storage, Metrics(CollectorRegistry()), clock)
    await plane.create(WindowSpec.parse({"name": "w", "aggregates": {"n": {"function": "count"}}}))

    async def requests():
        for sequence in range(1, 301):
            yield sequence
            await turns(sequence % 7)

    async def write(sequence):
        batch = Batch(np.arange(100), {"value": np.zeros(100)})
        return await plane.write("w", BulkInsert(batch), Origin("p", sequence))

    try:
        assert [answer.inserted async for answer in in_order(requests(), write, asyncio.Event())] == [100] * 300
    finally:
        await storage.stop()
