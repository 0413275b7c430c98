"""Answers that come as streams: when they are asked for again, and how long a client waits for a message."""

import asyncio
import io
import threading

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from sash_client import (
    Bulk,
    Client,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    SashClientError,
    Unavailable,
    Window,
)
from sash_client.aio import AsyncClient, AsyncWindow
from sash_client.calls.connection import OPTIONS
from sash_client.calls.plans import READ_ATTEMPTS, Restarts
from sash_client.calls.streams import Patience
from sash_client.windows import writes
from sash_proto.v1 import windows_pb2 as pb
from tests.support.clocks import Clock
from tests.support.either_client import CLIENTS, opened
from tests.support.numbered import LOST, Numbered, serving
from tests.support.recorder import status
from tests.support.servers import WAIT_S

SPEC = pb.WindowSpec(name="w", time_unit="us", fields={"value": "float64"})


@pytest.fixture
def service():
    servicer = Numbered()
    servicer.rows += [(1, 1.0), (2, 2.0), (3, 3.0)]
    servicer.files["w"] = EXPORT
    with serving(servicer) as port:
        yield servicer, f"127.0.0.1:{port}"


ENTRIES, EXPORT = [1, 2, 3], b"x" * 2500  # three messages each


@pytest.fixture(params=CLIENTS)
def kind(request):
    return request.param


@pytest.fixture
def read(kind, service, tmp_path):
    """Functions that read a stream with one of the clients; each returns what arrived, and the error at its end."""
    _, target = service
    path = tmp_path / "w"

    def entries():
        found = []
        with opened(kind, target, timeout_s=WAIT_S) as client:
            try:
                for bulk in client.window("w").entries():
                    found += bulk.times.tolist()
            except SashClientError as error:
                return found, error
        return found, None

    def export():
        with opened(kind, target, timeout_s=WAIT_S) as client:
            try:
                client.export_window("w", path)
            except SashClientError as error:
                return path.exists(), error
        return path.read_bytes(), None

    return {"entries": entries, "export": export}


WHAT = pytest.mark.parametrize("what", ["entries", "export"])


@WHAT
def test_a_stream_that_has_not_begun_is_asked_for_again(service, read, what):
    servicer, _ = service
    servicer.script += [("before", LOST)] * (READ_ATTEMPTS - 1)
    assert read[what]() == (ENTRIES if what == "entries" else EXPORT, None)
    assert servicer.streams == READ_ATTEMPTS


@WHAT
def test_a_stream_that_does_not_begin_is_given_up(service, read, what):
    servicer, _ = service
    servicer.script += [("before", LOST)] * (READ_ATTEMPTS + 1)
    found, error = read[what]()
    assert not found
    assert (type(error), error.message) == (Unavailable, "lost")
    assert servicer.streams == READ_ATTEMPTS


@WHAT
def test_a_stream_that_breaks_off_says_so_and_repeats_nothing(service, read, what):
    servicer, _ = service
    servicer.script += [None, None, ("before", LOST)]
    found, error = read[what]()
    assert found == (ENTRIES[:2] if what == "entries" else False)
    assert type(error) is Unavailable
    assert str(error) == error.message == "the stream broke off after message 2: lost"
    assert servicer.streams == 1


@WHAT
def test_a_refusal_is_not_asked_for_again(service, read, what):
    servicer, _ = service
    servicer.script += [("before", status(grpc.StatusCode.DATA_LOSS, "block 7 is damaged"))]
    _, error = read[what]()
    assert (type(error), error.message) == (DataLoss, "block 7 is damaged")
    assert servicer.streams == 1


@WHAT
def test_a_refusal_half_way_keeps_its_own_words(service, read, what):
    servicer, _ = service
    servicer.script += [None, ("before", status(grpc.StatusCode.DATA_LOSS, "block 7 is damaged"))]
    _, error = read[what]()
    assert (type(error), error.message) == (DataLoss, "block 7 is damaged")


@WHAT
def test_a_service_that_says_when_to_come_again_is_not_waited_for_beyond_the_timeout(service, read, what):
    servicer, _ = service
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=3600))
    servicer.script += [("before", status(grpc.StatusCode.UNAVAILABLE, "the tier is away", delay))]
    _, error = read[what]()
    assert (type(error), error.retry_after_s, servicer.streams) == (Unavailable, 3600, 1)


def test_no_stream_has_a_retry_policy_of_grpc():
    """With one, gRPC 1.85.1 never ends the call where the service dies before the first message."""
    methods = pb.DESCRIPTOR.services_by_name["Windows"].methods_by_name
    config = OPTIONS["grpc.service_config"]
    for name, method in methods.items():
        assert (f'"{name}"' in config) <= (not method.server_streaming and not method.client_streaming)
    assert '"Query"' in config


# ---------------------------------------------------------------- restarts


@pytest.fixture
def unconnected():
    with Client("127.0.0.1:1", timeout_s=5) as client:
        yield client


def test_restarts_end_with_the_time(unconnected):
    clock = Clock()
    restarts = Restarts(unconnected, clock)
    away = Unavailable("away", retry_after_s=3.0)
    assert restarts.pause_s(away) == 3.0
    clock.now_s = 2.0  # the next attempt would be made as the time ends
    with pytest.raises(Unavailable) as caught:
        restarts.pause_s(away)
    assert caught.value is away


def test_restarts_come_after_longer_and_longer_pauses(unconnected):
    restarts = Restarts(unconnected, Clock())
    for most_s in (0.1, 0.2, 0.4):
        assert most_s / 2 <= restarts.pause_s(Unavailable("away")) <= most_s
    with pytest.raises(Unavailable):
        restarts.pause_s(Unavailable("away", retry_after_s=0.1))


def test_a_closed_client_does_not_restart(unconnected):
    restarts = Restarts(unconnected, Clock())
    unconnected.close()
    with pytest.raises(Unavailable):
        restarts.pause_s(Unavailable("the client is closed"))


def test_only_a_service_that_is_away_is_asked_again(unconnected):
    with pytest.raises(FailedPrecondition):
        Restarts(unconnected, Clock()).pause_s(FailedPrecondition("never", retry_after_s=1.0))


# ---------------------------------------------------------------- patience


def test_a_wait_is_as_long_as_the_timeout():
    clock = Clock()
    patience = Patience(5.0, now_s=clock)
    clock.now_s = 100.0
    assert not patience.is_over  # nobody waits
    patience.wait()
    clock.now_s = 105.0
    assert not patience.is_over
    clock.now_s = 105.1
    assert patience.is_over
    patience.rest()
    assert not patience.is_over
    patience.wait()
    assert not patience.is_over


def test_a_wait_goes_on_over_restarts():
    clock = Clock()
    patience = Patience(5.0, now_s=clock)
    patience.wait()
    clock.now_s = 4.0
    patience.wait()
    clock.now_s = 5.1
    assert patience.is_over


def test_whoever_watches_waits_without_limit():
    clock = Clock()
    patience = Patience(None, now_s=clock)
    patience.wait()
    clock.now_s = 1e9
    assert not patience.is_over


def test_only_an_answer_that_is_owed_is_late():
    """Two requests at 10 and 12, answered at 14 and 20: time counts from the first that has no answer yet."""
    clock = Clock()
    patience = Patience(5.0, owed=False, now_s=clock)
    patience.wait()
    clock.now_s = 10.0
    assert not patience.is_over
    patience.sent()
    clock.now_s = 12.0
    patience.sent()
    clock.now_s = 14.0
    patience.answered()
    clock.now_s = 19.0
    assert not patience.is_over
    clock.now_s = 19.1
    assert patience.is_over
    clock.now_s = 20.0
    patience.answered()
    clock.now_s = 1000.0
    assert not patience.is_over


class Watched(Patience):
    """Shows when an answer has been taken, and when somebody looks whether the wait is over."""

    made = None

    def __init__(self, timeout_s, owed=True):
        self.clock = Clock()
        super().__init__(timeout_s, owed, self.clock)
        self.taken, self.looks = threading.Event(), threading.Semaphore(0)
        Watched.made = self

    def answered(self):
        super().answered()
        self.taken.set()

    @property
    def is_over(self):
        found = super().is_over
        self.looks.release()
        return found


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(writes, "Patience", Watched)


def test_a_stream_without_news_is_kept(service, patience):
    """The producer has nothing to send for longer than an answer may take: none is owed."""
    _, target = service

    def rarely():
        yield Bulk([1], [1.0])
        watched = Watched.made
        assert watched.taken.wait(WAIT_S)
        watched.clock.now_s += 1000
        while watched.looks.acquire(blocking=False):
            pass
        for _ in range(2):  # one may have begun to look before
            assert watched.looks.acquire(timeout=WAIT_S)
        yield Bulk([2], [1.0])

    with Client(target, timeout_s=0.2) as client:
        assert [result.inserted for result in Window(client, "w", SPEC).insert_stream(rarely())] == [1, 1]


async def test_an_awaited_stream_without_news_is_kept(service, patience):
    _, target = service

    async def rarely():
        yield Bulk([1], [1.0])
        watched = Watched.made
        assert await asyncio.to_thread(watched.taken.wait, WAIT_S)
        watched.clock.now_s += 1000
        while watched.looks.acquire(blocking=False):
            pass
        assert await asyncio.to_thread(watched.looks.acquire, timeout=WAIT_S)
        yield Bulk([2], [1.0])

    async with AsyncClient(target, timeout_s=0.2) as client:
        answers = AsyncWindow(client, "w", SPEC).insert_stream(rarely())
        assert [answer.inserted async for answer in answers] == [1, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: list(client.window("w").insert_stream([Bulk([1], [1.0])])),
        lambda client: next(client.window("w").entries()),
        lambda client: client.export_window("w", io.BytesIO()),
        lambda client: client.import_window(io.BytesIO(b"abc"), "new"),  # all of it is sent, and no answer comes
    ],
)
def test_a_stream_that_stands_still_is_given_up(service, kind, call):
    servicer, target = service
    servicer.gate.clear()
    try:
        with (
            opened(kind, target, timeout_s=0.2) as client,
            pytest.raises(DeadlineExceeded, match=r"stood still for 0\.2 s"),
        ):
            call(client)
    finally:
        servicer.gate.set()
    assert servicer.streams <= 1
