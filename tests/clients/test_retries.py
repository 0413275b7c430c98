"""Numbered writes, parts and commits survive lost requests and lost replies; nothing is applied twice."""

import contextlib
import os
import socket
import threading

import grpc
import numpy as np
import pytest

from sash_client import (
    Bulk,
    Client,
    DeadlineExceeded,
    FailedPrecondition,
    SashClientError,
    Unavailable,
    WriteResult,
)
from sash_client.calls.connection import OPTIONS
from sash_client.calls.plans import Ask, Pause, asked_again, pauses_s
from tests.support.connect_server import address, over_connect
from tests.support.either_client import CLIENTS, opened
from tests.support.numbered import LOST, Numbered, serving
from tests.support.recorder import status
from tests.support.refused import field_of


@pytest.fixture
def served(transport):
    servicer = Numbered()
    with serving(servicer) as port, over_connect(servicer) as http:
        yield servicer, address(transport, port, http.server_port)


@pytest.fixture
def where(served):
    return served[1]


@pytest.fixture(params=CLIENTS)
def kind(request):
    return request.param


@pytest.fixture
def service(served, where, kind):
    with opened(kind, **where, timeout_s=60) as client:
        yield served[0], client.window("w")


BLOCKING = pytest.mark.parametrize("kind", ["blocking"])


WRITES = [
    lambda window, **number: window.insert(1, 1.0, **number),
    lambda window, **number: window.bulk_insert([1], [1.0], **number),
    lambda window, **number: window.bulk_evict(1, **number),
]


def streamed(window, **number):
    return list(window.insert_stream([Bulk([1], [1.0])], **number))


@pytest.mark.parametrize(
    ("write", "code"),
    [
        (WRITES[0], grpc.StatusCode.UNAVAILABLE),
        (WRITES[1], grpc.StatusCode.CANCELLED),
        (WRITES[2], grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_a_request_that_was_lost_is_sent_again(service, write, code):
    servicer, window = service
    servicer.script += [("before", status(code, "lost"))] * 2
    result = write(window, producer="p", sequence=1)
    assert (result.already_applied, result.sequences) == (False, 1)
    assert servicer.arrived == [("p", 1)] * 3
    assert servicer.applied == {"p": 1}


@pytest.mark.parametrize("write", WRITES)
def test_a_reply_that_was_lost_is_answered_again(service, write):
    servicer, window = service
    servicer.script.append(("after", LOST))
    result = write(window, producer="p", sequence=1)
    assert (result.already_applied, result.inserted, result.evicted) == (True, 0, 0)
    assert servicer.applied == {"p": 1}
    assert len(servicer.rows) <= 1


@pytest.mark.parametrize("write", WRITES)
def test_a_write_without_a_number_is_sent_once(service, write):
    servicer, window = service
    servicer.script.append(("after", LOST))
    with pytest.raises(Unavailable):
        write(window)
    assert servicer.arrived == [("", 0)]


def test_what_a_retry_cannot_mend_is_raised_at_once(service):
    servicer, window = service
    with pytest.raises(FailedPrecondition, match="the next one is 1"):
        window.insert(1, 1.0, producer="p", sequence=3)
    assert servicer.arrived == [("p", 3)]


def test_retries_end_with_the_time(service, where, kind):
    servicer, _ = service
    servicer.script += [("before", LOST)] * 100
    with opened(kind, **where, timeout_s=0.5) as hasty, pytest.raises(SashClientError) as caught:
        hasty.window("w").insert(1, 1.0, producer="p", sequence=1)
    assert type(caught.value) in (Unavailable, DeadlineExceeded)


def performed(plan, error, clock):
    """Perform a plan whose calls all fail with an error; return its steps until it raises the error."""
    step = next(plan)
    steps = [step]
    while True:
        try:
            step = plan.throw(error) if isinstance(step, Ask) else next(plan)
        except SashClientError as raised:
            if raised is not error:
                raise
            return steps
        steps.append(step)
        if isinstance(step, Pause):
            clock.now_s += step.seconds


def test_each_attempt_has_the_time_that_is_left(unconnected, clock):
    steps = performed(asked_again(unconnected, "Insert", None), Unavailable("lost"), clock)
    left_s = 5.0
    for step in steps:
        if isinstance(step, Ask):
            assert step.timeout_s == pytest.approx(left_s)
        else:
            left_s -= step.seconds
    assert left_s > 0
    assert isinstance(steps[-1], Ask)
    pauses = [step.seconds for step in steps if isinstance(step, Pause)]
    for pause_s, most_s in zip(pauses[:5], [0.1, 0.2, 0.4, 0.8, 1.6], strict=True):  # less than 5 s in all
        assert most_s / 2 <= pause_s <= most_s


def test_a_client_that_is_closed_makes_no_further_attempt(unconnected, clock):
    unconnected.close()
    assert len(performed(asked_again(unconnected, "Insert", None), Unavailable("closed"), clock)) == 1


def test_an_attempt_that_is_due_at_the_deadline_is_not_made(unconnected, clock):
    for retry_after_s, attempts in [(4.5, 2), (5.0, 1), (60.0, 1)]:
        plan = asked_again(unconnected, "Insert", None)
        assert len(performed(plan, Unavailable("away", retry_after_s=retry_after_s), clock)) == 2 * attempts - 1


def test_an_attempt_after_too_long_a_pause_still_has_some_time(unconnected, clock):
    """A machine that was asleep: a call without time to live would not be a call."""
    plan = asked_again(unconnected, "Insert", None)
    next(plan)
    assert isinstance(plan.throw(Unavailable("lost")), Pause)
    clock.now_s = 3600.0
    assert next(plan).timeout_s == 0.001


def test_the_service_says_when_to_come_again(unconnected):
    plan = asked_again(unconnected, "Insert", None)
    assert isinstance(next(plan), Ask)
    assert plan.throw(FailedPrecondition("not yet", retry_after_s=1.0)) == Pause(1.0)
    assert isinstance(next(plan), Ask)
    pause = plan.throw(Unavailable("away", retry_after_s=0.01))  # sooner than the client would come by itself
    assert 0.1 <= pause.seconds <= 0.2


@pytest.mark.parametrize("error", [FailedPrecondition("a gap"), SashClientError("a bug", code="INTERNAL")])
def test_what_no_retry_mends_is_not_sent_again(unconnected, clock, error):
    assert len(performed(asked_again(unconnected, "Insert", None), error, clock)) == 1


def test_a_bulk_in_parts_has_a_number_for_each(service, where, kind):
    servicer, _ = service
    with opened(kind, **where, bulk_entries_max=10) as client:
        small = client.window("w")
        servicer.script += [None, ("after", LOST)]
        result = small.bulk_insert(np.arange(35), np.zeros(35), producer="p", sequence=1)
        expected = WriteResult(inserted=25, already_applied=True, durability="sync", sequences=4)
        assert result == expected
        assert servicer.times() == list(range(35))
        # The same call again changes nothing, and neither does the part of it that was sent before an error.
        again = small.bulk_insert(np.arange(35), np.zeros(35), producer="p", sequence=1)
        assert again == WriteResult(already_applied=True, durability="sync", sequences=4)
        servicer.script += [None, None, ("before", status(grpc.StatusCode.INTERNAL, "a bug"))]
        with pytest.raises(SashClientError, match="a bug") as caught:
            small.bulk_insert(np.arange(35, 70), np.zeros(35), producer="p", sequence=5)
        assert caught.value.applied.sequences == 2
        assert small.bulk_insert(np.arange(35, 70), np.zeros(35), producer="p", sequence=5).sequences == 4
        assert servicer.times() == list(range(70))


def test_a_number_is_checked_before_anything_is_sent(service):
    servicer, window = service
    for number, field in [
        ({"producer": "p"}, "sequence"),
        ({"sequence": 1}, "sequence"),
        ({"producer": 5, "sequence": 1}, "producer"),
        ({"producer": "p", "sequence": -1}, "sequence"),
        ({"producer": "p", "sequence": "1"}, "sequence"),
        ({"producer": "p", "sequence": 2**63}, "sequence"),
        ({"epoch": 1}, "epoch"),
        *(({"producer": "p", "sequence": 1, "epoch": wrong}, "epoch") for wrong in (-1, 2**63, 1.5, True)),
    ]:
        for write in [*WRITES, streamed]:
            assert field_of(write, window, **number) == field
    assert servicer.arrived == []


def test_parts_and_commits_are_sent_again(service, where, kind):
    servicer, window = service
    servicer.script += [("after", LOST), ("before", LOST)]
    with opened(kind, **where, bulk_entries_max=2) as client:
        small = client.window("w")
        first = small.stage([1, 2, 3], [0.0] * 3, query="q", batch=0)
        second = small.stage([4], [0.0], query="q", batch=0)
    assert len(servicer.stages) == 4  # one is an orphan
    assert [(part.entries, part.durability) for part in first + second] == [(2, "sync"), (1, "sync"), (1, "sync")]
    servicer.script.append(("after", LOST))
    result = window.commit("q", 0, [*second, *(part.stage for part in first)])
    assert result.already_applied
    assert servicer.times() == [4, 1, 2, 3]
    assert window.commit("q", 1, []) == WriteResult(durability="sync")
    for call, field in [
        (lambda: window.commit("q", -1, []), "batch"),
        (lambda: window.commit(5, 0, []), "query"),
        (lambda: window.commit("q", 2, [5]), "stages"),
        (lambda: window.stage([1], [1.0], query="q", batch=None), "batch"),
    ]:
        assert field_of(call) == field


def test_a_stream_of_bulks_is_answered_bulk_by_bulk(service, where, kind):
    servicer, _ = service
    with opened(kind, **where, bulk_entries_max=10) as client:
        bulks = (Bulk(np.arange(n), np.zeros(n)) for n in (3, 25, 0, 10))
        results = list(client.window("w").insert_stream(bulks, producer="p", sequence=1))
    assert [(result.inserted, result.sequences) for result in results] == [(3, 1), (25, 3), (0, 1), (10, 1)]
    assert servicer.applied == {"p": 6}


def test_the_first_error_ends_a_stream(service, where, kind):
    servicer, _ = service
    servicer.script += [None, None, ("before", status(grpc.StatusCode.NOT_FOUND, "gone"))]
    with opened(kind, **where, bulk_entries_max=10) as client:
        answers = client.window("w").insert_stream([Bulk([1], [1.0]), Bulk(np.arange(20), np.zeros(20))])
        assert next(answers).inserted == 1
        with pytest.raises(SashClientError, match="gone") as caught:
            next(answers)
    assert caught.value.applied.inserted == 10


def test_a_bulk_that_cannot_be_sent_ends_a_stream_with_its_own_error(service):
    servicer, window = service
    answers = window.insert_stream([Bulk([1], [1.0]), Bulk([1, 2], [1.0])])
    assert field_of(list, answers) == "value"
    assert len(servicer.rows) <= 1


def test_a_service_that_is_cut_off_is_noticed(service, monkeypatch):
    """Whoever watches waits for ever, but not for a machine that is gone without a word."""
    _, window = service
    for name in ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
        assert name in OPTIONS
        monkeypatch.setitem(OPTIONS, name, 300)
    with (
        cable(int(window._client._grpc_target.rpartition(":")[2])) as (port, cut),
        Client(f"127.0.0.1:{port}") as client,
    ):
        looks = client.window("quiet").watch()
        assert next(looks)[0].entries == 1
        cut.set()
        with pytest.raises(Unavailable):
            next(looks)


@contextlib.contextmanager
def cable(to):
    """A port that leads to another one, until it is cut: then nothing comes through, and nobody is told."""
    cut, ends = threading.Event(), []

    def carry(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not cut.is_set():
                    target.sendall(data)

    def lead(entrance):
        ends.append(entrance.accept()[0])
        ends.append(socket.create_connection(("127.0.0.1", to)))
        back = threading.Thread(target=carry, args=ends[::-1])
        back.start()
        carry(*ends)
        back.join()

    with socket.create_server(("127.0.0.1", 0)) as entrance:
        leading = threading.Thread(target=lead, args=(entrance,))
        leading.start()
        try:
            yield entrance.getsockname()[1], cut
        finally:
            for end in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            leading.join()
            for end in ends:
                end.close()


@BLOCKING
def test_a_client_is_of_its_process(service):
    """After a fork gRPC's threads are not there: calls are refused instead of failing in ways of their own."""
    _, window = service
    producer = window.producer("p")
    calls = (
        *(window.describe, producer.flush, producer.close),
        *(lambda: producer.insert(1, 1.0), lambda: producer.bulk_insert([1], [1.0])),
    )
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except FailedPrecondition:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    producer.insert(1, 1.0)
    producer.close()
    assert producer.result.inserted == 1


def test_watch_yields_until_the_service_ends_it(service):
    _, window = service
    looks = window.watch()
    assert [next(looks)[0].entries, next(looks)[0].entries] == [1, 2]
    with pytest.raises(Unavailable, match="shutting down"):
        next(looks)
    assert next(window.watch(lookbacks=["5m"], every_s=0.1))[0].entries == 1


def test_pauses_double_and_differ():
    def longest():
        return pauses_s(lambda low, high: high)

    assert [pause for pause, _ in zip(longest(), range(7), strict=False)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    for pause, most in zip(pauses_s(), [0.1, 0.2, 0.4, 0.8, 1.6, 2.0], strict=False):
        assert most / 2 <= pause <= most


@BLOCKING
def test_a_closed_client_is_not_asked_again(service):
    _, window = service
    window._client.close()
    start = threading.active_count()
    with pytest.raises(Unavailable, match="closed"):
        window.insert(1, 1.0, producer="p", sequence=1)
    assert threading.active_count() == start
