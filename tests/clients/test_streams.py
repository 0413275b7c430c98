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
from sash_client.calls.streams import Patience, received
from sash_client.windows import writes
from sash_proto.v1 import windows_pb2 as pb
from tests.support.clocks import Clock
from tests.support.either_client import CLIENTS, opened
from tests.support.numbered import LOST, Numbered, serving
from tests.support.recorder import status
from tests.support.servers import WAIT_S
from tests.support.waiting import wait_until

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


def read(what, client, path):
    """Read a stream; return what arrived, and the error at its end."""
    found = []
    try:
        if what == "entries":
            for bulk in client.window("w").entries():
                found += bulk.times.tolist()
        else:
            client.export_window("w", path)
    except SashClientError as error:
        return found, error
    finally:
        if path.exists():
            found = path.read_bytes()
    return found, None


def away(code, message, *details):
    return ("before", status(code, message, *details))


DAMAGED = away(grpc.StatusCode.DATA_LOSS, "block 7 is damaged")
MUCH_LATER = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=3600))
ENDS = {
    "not begun, so asked for again": ([("before", LOST)] * (READ_ATTEMPTS - 1), 3, None, "", READ_ATTEMPTS),
    "never begun": ([("before", LOST)] * (READ_ATTEMPTS + 1), 0, Unavailable, "lost", READ_ATTEMPTS),
    "broken off": (
        [None, None, ("before", LOST)], 2, Unavailable, "the stream broke off after message 2: lost", 1),
    "refused": ([DAMAGED], 0, DataLoss, "block 7 is damaged", 1),
    "refused half-way": ([None, DAMAGED], 1, DataLoss, "block 7 is damaged", 1),
    "to be asked for beyond the timeout": (
        [away(grpc.StatusCode.UNAVAILABLE, "the tier is away", MUCH_LATER)], 0, Unavailable, "the tier is away", 1),
}  # fmt: skip
"""What happens, how many messages of three arrive, the error, and how often the stream is asked for."""


@pytest.mark.parametrize("what", ["entries", "export"])
@pytest.mark.parametrize("end", ENDS)
def test_only_a_stream_that_has_not_begun_is_asked_for_again(service, kind, tmp_path, what, end):
    servicer, target = service
    script, messages, error, message, attempts = ENDS[end]
    servicer.script += script
    with opened(kind, target, timeout_s=WAIT_S) as client:
        found, raised = read(what, client, tmp_path / "w")
    whole = messages == 3
    assert found == (ENTRIES[:messages] if what == "entries" else EXPORT if whole else [])
    assert servicer.streams == attempts
    if error is None:
        assert raised is None
    else:
        assert (type(raised), raised.message, str(raised)) == (error, message, message)
        assert raised.retry_after_s == (3600 if "beyond" in end else None)


def test_no_stream_has_a_retry_policy_of_grpc():
    """With one, gRPC 1.85.1 never ends the call where the service dies before the first message."""
    methods = pb.DESCRIPTOR.services_by_name["Windows"].methods_by_name
    config = OPTIONS["grpc.service_config"]
    for name, method in methods.items():
        assert (f'"{name}"' in config) <= (not method.server_streaming and not method.client_streaming)
    assert '"Query"' in config


# ---------------------------------------------------------------- restarts


def test_restarts_end_with_the_time(unconnected, clock):
    restarts = Restarts(unconnected)
    away = Unavailable("away", retry_after_s=3.0)
    assert restarts.pause_s(away) == 3.0
    clock.now_s = 2.0  # the next attempt would be made as the time ends
    with pytest.raises(Unavailable) as caught:
        restarts.pause_s(away)
    assert caught.value is away


def test_restarts_come_after_longer_and_longer_pauses(unconnected):
    restarts = Restarts(unconnected)
    for most_s in (0.1, 0.2, 0.4):
        assert most_s / 2 <= restarts.pause_s(Unavailable("away")) <= most_s
    with pytest.raises(Unavailable):
        restarts.pause_s(Unavailable("away", retry_after_s=0.1))


def test_a_closed_client_does_not_restart(unconnected):
    restarts = Restarts(unconnected)
    unconnected.close()
    with pytest.raises(Unavailable):
        restarts.pause_s(Unavailable("the client is closed"))


def test_only_a_service_that_is_away_is_asked_again(unconnected):
    with pytest.raises(FailedPrecondition):
        Restarts(unconnected).pause_s(FailedPrecondition("never", retry_after_s=1.0))


# ---------------------------------------------------------------- patience


WAITS = {
    "as long as the timeout": (
        5.0, True,
        [(100, None, False), (100, "wait", False), (105, None, False), (105.1, None, True), (105.1, "rest", False),
         (105.1, "wait", False)]),
    "over restarts": (5.0, True, [(0, "wait", False), (4, "wait", False), (5.1, None, True)]),
    "without limit": (None, True, [(0, "wait", False), (1e9, None, False)]),
    "from the first request that has no answer": (
        5.0, False,
        [(0, "wait", False), (10, None, False), (10, "sent", False), (12, "sent", False), (14, "answered", False),
         (19, None, False), (19.1, None, True), (20, "answered", False), (1000, None, False)]),
}  # fmt: skip
"""The timeout, whether an answer is owed from the start; and when what is done, and whether the wait is over then."""


@pytest.mark.parametrize("wait", WAITS)
def test_how_long_a_wait_may_be(wait):
    timeout_s, owed, timeline = WAITS[wait]
    clock = Clock()
    patience = Patience(timeout_s, owed=owed, now_s=clock)
    for now_s, done, is_over in timeline:
        clock.now_s = now_s
        if done is not None:
            getattr(patience, done)()
        assert patience.is_over == is_over, (now_s, done)


def test_nobody_watches_a_stream_that_has_ended():
    class Call:
        def __next__(self):
            raise StopIteration

        def cancel(self):
            pass

    assert list(received(Call(), Patience(3600.0))) == []
    wait_until(lambda: not any(thread.name == "sash stream" for thread in threading.enumerate()))


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
