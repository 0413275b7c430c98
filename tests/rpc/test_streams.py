"""Streams of inserts, entries, changes, exports and imports; and writes whose client cancels."""

import asyncio
import threading

import grpc
import numpy as np
import pytest

from sash.rpc.operations import CHUNK_BYTES_MAX
from sash_engine.errors import Unavailable
from sash_engine.windows.answers import WriteResult
from sash_engine.windows.batches.batch import Batch
from sash_proto.v1 import windows_pb2 as pb
from tests.support.messages import COUNT, aggregates, answered, bulk, int64
from tests.support.rpc_errors import ended_with, refuse
from tests.support.servers import WAIT_S
from tests.support.waiting import awaited, until

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
    monkeypatch.setattr(service.plane, "write", made.write)
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


# ---------------------------------------------------------------- inserts in a row


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
    assert ended_with(error)["applied"] == "2"
    assert stub.GetWindow(pb.GetWindowRequest(name=window)).entries == 2


def test_bytes_in_a_stream_that_are_no_message(service, stub, window):
    path = "/sash.v1.Windows/InsertStream"
    call = service.channel().stream_stream(path, _registered_method=False)
    requests = [bulk(window, [1], [1]).SerializeToString(), b"\xff\xff", bulk(window, [2], [2]).SerializeToString()]
    found, error = answered(call(iter(requests), timeout=WAIT_S))
    assert len(found) == 1
    assert (error.code(), ended_with(error)["applied"]) == (grpc.StatusCode.INVALID_ARGUMENT, "1")
    assert stub.GetWindow(pb.GetWindowRequest(name=window)).entries == 1


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


@pytest.mark.parametrize("interval_ms", [49, -1, 3_600_001])
def test_an_interval_at_which_nobody_may_watch(stub, window, interval_ms):
    request = pb.WatchRequest(query=pb.QueryRequest(window=window), interval_ms=interval_ms)
    refuse(lambda sent: next(stub.Watch(sent, timeout=WAIT_S)), request, "INVALID_ARGUMENT", "interval_ms")


# ---------------------------------------------------------------- entries


def test_a_stream_that_fails_half_way_says_so(stub, service, window, monkeypatch):
    def entries(*arguments):
        yield Batch(np.array([1]), {"value": np.array([1.0])})
        raise Unavailable("the tier is away", retry_after_s=2)

    monkeypatch.setattr(service.plane, "ask", awaited(entries))
    found, error = answered(stub.Entries(pb.EntriesRequest(window=window)))
    assert len(found) == 1
    assert error.code() == grpc.StatusCode.UNAVAILABLE


# ---------------------------------------------------------------- export and import


def test_an_export_comes_in_messages_of_bounded_size(stub, service, window, monkeypatch):
    parts = [b"head", b"x" * (2 * CHUNK_BYTES_MAX + 5), b"tail"]
    files = [(window, part) for part in parts]
    monkeypatch.setattr(service.plane, "export_together", awaited(lambda name, derived: iter(files)))
    found = list(stub.ExportWindow(pb.ExportWindowRequest(window=window)))
    assert b"".join(chunk.data for chunk in found) == b"".join(parts)
    assert max(len(chunk.data) for chunk in found) == CHUNK_BYTES_MAX
    assert {chunk.name for chunk in found} == {""}


class Restored:
    """Stands for the plane's restore: keeps what it is given, and how that ended."""

    def __init__(self, plane, shown):
        self.plane, self.shown, self.parts, self.ending, self.name = plane, shown, [], None, None
        self.began, self.ended = threading.Event(), threading.Event()

    async def restore(self, parts, name=None, derived=()):
        self.name, self.derived = name, list(derived)
        try:
            async for part in parts:
                self.parts.append(part)
                self.began.set()
        except BaseException as error:
            self.ending = error
            raise
        finally:
            self.ended.set()
        return await self.plane.window(self.shown)


@pytest.fixture
def restored(service, window, monkeypatch):
    keeper = Restored(service.plane, window)
    monkeypatch.setattr(service.plane, "restore", keeper.restore)
    return keeper


def test_an_import_is_read_in_parts(stub, window, restored):
    chunks = [pb.WindowChunk(data=b"a", name="other"), pb.WindowChunk(data=b"b"), pb.WindowChunk(data=b"c")]
    assert stub.ImportWindow(iter(chunks)).spec.name == window
    assert (b"".join(restored.parts), restored.name, restored.derived) == (b"abc", "other", [])
    assert stub.ImportWindow(iter(chunks[1:])).spec.name == window
    assert restored.name is None
    chunks = [pb.WindowChunk(data=b"a"), pb.WindowChunk(data=b"b", name="late")]
    refuse(lambda request: stub.ImportWindow(iter(request)), chunks, "INVALID_ARGUMENT", "name")


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
