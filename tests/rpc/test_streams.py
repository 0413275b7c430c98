"""Streams: inserts in a row, watching, entries, export and import; and what becomes of a write that is called off."""

import asyncio
import threading

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from sash.clock import SystemClock
from sash.durability import journal
from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.metrics import Metrics
from sash.plane import Plane
from sash.rpc.operations import CHUNK_BYTES_MAX
from sash.rpc.pipeline import in_order
from sash.tiers.memory import MemoryStore, MemoryTier
from sash_engine.errors import Unavailable
from sash_engine.windows.answers import WriteResult
from sash_engine.windows.batch import Batch, Coded, Origin
from sash_engine.windows.questions import EntriesQuery
from sash_engine.windows.spec import WindowSpec
from sash_proto.v1 import windows_pb2 as pb
from tests.rpc.test_errors import refuse
from tests.rpc.test_operations import aggregates, bulk, float64, int64, strings
from tests.support.mutations import with_counts
from tests.support.servers import WAIT_S, running_service
from tests.support.waiting import awaited, turns, until

# ---------------------------------------------------------------- inserts in a row


def answered(call):
    """What a stream answered, and the error that ended it, if one did."""
    found = []
    try:
        found.extend(call)
    except grpc.RpcError as error:
        return found, error
    return found, None


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
    while len(begun) < 4:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == [0, 1, 2, 3]
    for event in reversed(done[1:]):
        event.set()
    for _ in range(20):
        await asyncio.sleep(0)
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
        await asyncio.sleep(0)
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
    while len(begun) < 4:
        await asyncio.sleep(0)
    closing.set()
    second = asyncio.create_task(anext(answers))
    for _ in range(20):
        await asyncio.sleep(0)
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
    await asyncio.sleep(0)
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
    plane = Plane(catalogue, Metrics(CollectorRegistry()), clock, storage)
    await plane.create(WindowSpec.parse({"name": "w", "aggregates": {"n": {"function": "count"}}}))

    async def requests():
        for sequence in range(1, 301):
            yield sequence
            await turns(sequence % 7)

    async def write(sequence):
        batch = Batch(np.arange(100), {"value": np.zeros(100)})
        return await plane.bulk_insert("w", batch, origin=Origin("p", sequence))

    try:
        assert [answer.inserted async for answer in in_order(requests(), write, asyncio.Event())] == [100] * 300
    finally:
        await storage.stop()


# ---------------------------------------------------------------- calls that are called off


class Gate:
    """Stands for a plane whose tier takes its time: a write begins, and ends when it is let."""

    def __init__(self):
        self.begun, self.ended = threading.Semaphore(0), threading.Semaphore(0)
        self.open = threading.Event()

    async def write(self, *arguments, **options):
        self.begun.release()
        await until(self.open.is_set)
        self.ended.release()
        return WriteResult(inserted=1)


@pytest.fixture
def gate(service, monkeypatch):
    made = Gate()
    for name in ("insert", "bulk_insert"):
        monkeypatch.setattr(service.plane, name, made.write)
    yield made
    made.open.set()


def test_a_write_whose_client_goes_is_ended(stub, window, gate):
    call = stub.Insert.future(pb.InsertRequest(window=window, time=1, value=1))
    assert gate.begun.acquire(timeout=WAIT_S)
    assert call.cancel()
    stub.ListWindows(pb.ListWindowsRequest())  # behind the cancellation, on the same connection
    gate.open.set()
    assert gate.ended.acquire(timeout=WAIT_S)


def test_the_writes_of_a_stream_whose_client_goes_are_ended(stub, window, gate):
    call = stub.InsertStream(iter([bulk(window, [i], [i]) for i in range(3)]))
    for _ in range(3):
        assert gate.begun.acquire(timeout=WAIT_S)
    assert call.cancel()
    stub.ListWindows(pb.ListWindowsRequest())
    gate.open.set()
    for _ in range(3):
        assert gate.ended.acquire(timeout=WAIT_S)


def test_nothing_is_answered_before_the_tier_has_it(stub, window, gate):
    call = stub.Insert.future(pb.InsertRequest(window=window, time=1, value=1))
    assert gate.begun.acquire(timeout=WAIT_S)
    stub.ListWindows(pb.ListWindowsRequest())
    assert not call.done()
    gate.open.set()
    assert call.result(WAIT_S).inserted == 1


# ---------------------------------------------------------------- watching


def test_changes_and_nothing_else(stub, window):
    question = pb.QueryRequest(window=window, lookbacks=["10s", "1m"])
    stub.Insert(pb.InsertRequest(window=window, time=1, value=float("nan")))
    stream = stub.Watch(pb.WatchRequest(query=question, interval_ms=50), timeout=WAIT_S)
    assert str(next(stream)) == str(stub.Query(question))  # as texts: a NaN does not equal itself
    stub.Insert(pb.InsertRequest(window=window, time=20, value=2))
    assert [aggregates(each)["n"] for each in next(stream).answers] == [1, 2]
    stub.DeleteWindow(pb.DeleteWindowRequest(name=window))
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name=window, aggregates={"n": COUNT})))


COUNT = pb.AggregateSpec(function="count")


@pytest.mark.parametrize(
    ("question", "interval_ms", "field"),
    [
        ({"key": "k"}, 1000, "key"),
        ({"lookbacks": ["soon"]}, 1000, "lookback"),
        ({}, 49, "interval_ms"),
        ({}, -1, "interval_ms"),
        ({}, 3_600_001, "interval_ms"),
    ],
)
def test_a_wrong_watch(stub, window, question, interval_ms, field):
    request = pb.WatchRequest(query=pb.QueryRequest(window=window, **question), interval_ms=interval_ms)
    with pytest.raises(grpc.RpcError) as caught:
        next(stub.Watch(request, timeout=WAIT_S))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in rpc_status.from_call(caught.value).details)
    assert info.metadata["field"] == field


def test_a_watcher_does_not_hold_the_service_up():
    with running_service(shutdown_grace_s=WAIT_S * 2) as service:
        stub = service.stub()
        stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates={"n": COUNT})))
        stream = stub.Watch(pb.WatchRequest(query=pb.QueryRequest(window="w"), interval_ms=3_600_000))
        assert next(stream).answers[0].entries == 0
        service.stop()  # asserts that it ends within WAIT_S, which is less than the grace
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


# ---------------------------------------------------------------- entries


def test_entries_are_bulks_that_could_be_inserted_again(stub, service, typed, monkeypatch):
    columns = {
        "f": np.array([0.5, np.nan]),
        "i": np.array([1, -(2**63)]),
        "s": np.array(["ä", "x"], object),
        "b": np.array([True, False]),
    }
    asked = []

    def entries(*arguments):
        asked.append(arguments)
        for letter in "ab":
            yield Batch(np.array([3, 4]), columns, Coded([letter], np.array([0, 0])))

    monkeypatch.setattr(service.plane, "entries", awaited(entries))
    found = list(stub.Entries(pb.EntriesRequest(window=typed, keys=["a", "b"], start=0, end=9)))
    assert asked == [(typed, EntriesQuery(0, 9, keys=["a", "b"]))]
    assert [list(each.key.dictionary) for each in found] == [["a"], ["b"]]
    assert found[0].fields["f"].float64 == float64(0.5, np.nan)
    assert found[0].fields["i"].int64 == int64(1, -(2**63))
    assert found[0].fields["s"].string == strings(["ä", "x"], 0, 1)
    assert found[0].fields["b"].bool == b"\x01\x00"
    assert [stub.BulkInsert(each).inserted for each in found] == [2, 2]
    assert [each.fields["s"].string.dictionary[0] for each in found] == ["ä", "ä"]


def test_a_stream_that_fails_half_way_says_so(stub, service, window, monkeypatch):
    def entries(*arguments):
        yield Batch(np.array([1]), {"value": np.array([1.0])})
        raise Unavailable("the tier is away", retry_after_s=2)

    monkeypatch.setattr(service.plane, "entries", awaited(entries))
    found, error = answered(stub.Entries(pb.EntriesRequest(window=window)))
    assert len(found) == 1
    assert error.code() == grpc.StatusCode.UNAVAILABLE


# ---------------------------------------------------------------- export and import


def test_an_export_comes_in_messages_of_bounded_size(stub, service, window, monkeypatch):
    parts = [b"head", b"x" * (2 * CHUNK_BYTES_MAX + 5), b"tail"]
    monkeypatch.setattr(service.plane, "export", awaited(lambda name: iter(parts)))
    found = [chunk.data for chunk in stub.ExportWindow(pb.ExportWindowRequest(window=window))]
    assert b"".join(found) == b"".join(parts)
    assert max(map(len, found)) == CHUNK_BYTES_MAX


class Restored:
    """Stands for the plane's restore: keeps what it is given, and how that ended."""

    def __init__(self, plane, shown):
        self.plane, self.shown, self.parts, self.ending, self.name = plane, shown, [], None, None
        self.began, self.ended = threading.Event(), threading.Event()

    async def restore(self, parts, name=None):
        self.name = name
        try:
            async for part in parts:
                self.parts.append(part)
                self.began.set()
        except BaseException as error:
            self.ending = error
            raise
        finally:
            self.ended.set()
        return self.plane.describe(self.shown)


@pytest.fixture
def restored(service, window, monkeypatch):
    keeper = Restored(service.plane, window)
    monkeypatch.setattr(service.plane, "restore", keeper.restore)
    return keeper


def test_an_import_is_read_in_parts(stub, window, restored):
    chunks = [pb.WindowChunk(data=b"a", name="other"), pb.WindowChunk(data=b"b"), pb.WindowChunk(data=b"c")]
    assert stub.ImportWindow(iter(chunks)).spec.name == window
    assert (b"".join(restored.parts), restored.name) == (b"abc", "other")
    assert stub.ImportWindow(iter(chunks[1:])).spec.name == window
    assert restored.name is None
    chunks = [pb.WindowChunk(data=b"a"), pb.WindowChunk(data=b"b", name="late")]
    refuse(lambda request: stub.ImportWindow(iter(request)), chunks, "INVALID_ARGUMENT", "name")


def test_a_file_that_somebody_made_up_is_refused_and_spoils_nothing(stub, window):
    stub.BulkInsert(bulk(window, [1], [1]))
    exported = b"".join(chunk.data for chunk in stub.ExportWindow(pb.ExportWindowRequest(window=window)))

    def chunks(counts):
        return [pb.WindowChunk(data=with_counts(exported, counts), name="other")]

    for counts, field in (
        ({"late": "many"}, "counts.late"),
        ({"late": 2**63}, "counts.late"),
        ({"late": 2**62}, "counts"),
    ):
        refuse(lambda request: stub.ImportWindow(iter(request)), chunks(counts), "INVALID_ARGUMENT", f"header.{field}")
        assert [each.spec.name for each in stub.ListWindows(pb.ListWindowsRequest()).windows] == [window]
    assert stub.ImportWindow(iter(chunks({"late": 2**62 - 1}))).counts.late == 2**62 - 1
    stub.DeleteWindow(pb.DeleteWindowRequest(name="other"))


def test_an_import_whose_client_goes_comes_to_an_end(stub, restored):
    """Whoever restores is not cancelled, which could leave half a window, but sees that there is no more."""
    more = threading.Event()

    def chunks():
        yield pb.WindowChunk(data=b"half")
        more.wait(WAIT_S)

    call = stub.ImportWindow.future(chunks())
    assert restored.began.wait(WAIT_S)
    call.cancel()
    assert restored.ended.wait(WAIT_S)
    more.set()
    assert not isinstance(restored.ending, asyncio.CancelledError)
    assert restored.parts == [b"half"]
