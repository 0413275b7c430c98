"""A producer's entries are applied once each, in order, whatever gets lost; what cannot be applied comes back."""

import threading

import grpc
import numpy as np
import pytest

from sash_client import (
    Client,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Producer,
    WriteResult,
)
from tests.support.numbered import LOST, Numbered, serving
from tests.support.ports import free_port
from tests.support.recorder import status
from tests.support.servers import WAIT_S
from tests.support.waiting import wait_until as eventually

FOREVER_S = 3600.0
GONE = status(grpc.StatusCode.NOT_FOUND, "the window is gone")


@pytest.fixture
def service():
    servicer = Numbered()
    with serving(servicer) as port, Client(f"127.0.0.1:{port}", timeout_s=WAIT_S) as client:
        yield servicer, client.window("w")


def test_entries_are_gathered_by_count(service):
    servicer, window = service
    with window.producer("p", bulk_entries=10, linger_s=FOREVER_S) as producer:
        for i in range(20):
            producer.insert(i, float(i))
        eventually(lambda: producer.acknowledged == 2)
        producer.insert(20, 1.0)
        producer.insert(21, 1.0)
        assert len(servicer.rows) == 20  # these linger
    assert servicer.times() == list(range(22))
    assert servicer.arrived == [("p", 1), ("p", 2), ("p", 3)]
    assert producer.result == WriteResult(inserted=22, durability="sync", sequences=3)


def test_entries_are_gathered_by_bytes(service):
    servicer, window = service
    with window.producer("p", bulk_bytes=100, linger_s=FOREVER_S) as producer:
        for i in range(5):
            producer.insert(i, 0.0)  # counts for 24
        eventually(lambda: servicer.times() == [0, 1, 2, 3, 4])


def test_entries_linger_no_longer_than_they_should(service):
    servicer, window = service
    with window.producer("p", linger_s=0.01) as producer:
        producer.insert(np.datetime64(7, "us"), 1)
        eventually(lambda: servicer.rows == [(7, 1.0)])
        producer.insert(8, fields={"value": 2.0})
        eventually(lambda: producer.acknowledged == 2)


def test_flush_waits_for_the_answers_and_bulks_keep_their_place(service):
    servicer, window = service
    with window.producer("p", linger_s=FOREVER_S) as producer:
        producer.insert(1, 1.0)
        producer.bulk_insert([2, 3], [1.0, 1.0])
        producer.insert(4, 1.0)
        assert producer.flush().inserted == 4
        assert servicer.times() == [1, 2, 3, 4]
        assert producer.flush().sequences == producer.acknowledged == 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_lost_is_sent_again_under_its_number(service, when):
    servicer, window = service
    servicer.script += [(when, LOST), None, (when, LOST), (when, LOST)]
    with window.producer("p", bulk_entries=2) as producer:
        for i in range(6):
            producer.insert(i, 0.0)
    assert servicer.times() == list(range(6))
    assert servicer.applied == {"p": 3}
    assert producer.result.already_applied == (when == "after")


def test_it_survives_a_restart_of_the_service():
    servicer = Numbered()
    with serving(servicer, free_port()) as port:
        client = Client(f"127.0.0.1:{port}", timeout_s=WAIT_S)
        producer = client.window("w").producer("p", bulk_entries=3)
        for i in range(30):
            producer.insert(i, 0.0)
        eventually(lambda: producer.acknowledged >= 1)
        servicer.gate.clear()  # one is in progress when the service ends
        for i in range(30, 40):
            producer.insert(i, 0.0)
        servicer.gate.set()
    for i in range(40, 50):
        producer.insert(i, 0.0)
    with pytest.raises(DeadlineExceeded):
        producer.flush(timeout_s=0.05)
    with serving(servicer, port), client, producer:
        pass
    assert servicer.times() == list(range(50))
    assert servicer.applied == {"p": producer.acknowledged}


def test_a_full_buffer_holds_its_writers_back(service):
    servicer, window = service
    servicer.gate.clear()
    producer = window.producer("p", bulk_entries=1, buffer_bytes=200, timeout_s=0.05)
    taken = []

    def fill():
        for i in range(100):
            producer.insert(i, 0.0)
            taken.append(i)

    with pytest.raises(DeadlineExceeded, match="buffer is full"):
        fill()
    assert 1 <= len(taken) < 30
    patient = threading.Thread(target=lambda: producer.bulk_insert([1000], [0.0]))
    producer._timeout_s = None
    patient.start()
    servicer.gate.set()
    patient.join(120)
    assert not patient.is_alive()
    producer.close()
    assert servicer.times() == [*taken, 1000]


def test_many_threads_may_share_one(service):
    servicer, window = service
    with window.producer("p", bulk_entries=7, linger_s=0.001) as producer:

        def work(base):
            for i in range(200):
                producer.insert(base + i, 0.0)

        threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(servicer.times()) == sorted(1000 * n + i for n in range(4) for i in range(200))
    for n in range(4):  # each thread's entries in its order
        assert [t for t in servicer.times() if t // 1000 == n] == [1000 * n + i for i in range(200)]


def test_what_cannot_be_applied_comes_back_once_and_the_rest_goes_on(service):
    servicer, window = service
    servicer.script.append(("before", GONE))
    producer = window.producer("p", linger_s=FOREVER_S)
    producer.insert(1, 10.0)
    producer.insert(2, 20.0)
    with pytest.raises(
        NotFound, match=r"gone \(producer 'p', sequence 1: its 2 entries, times 1 to 2, are not"
    ) as caught:
        producer.flush()
    (bulk,) = caught.value.unapplied
    assert (bulk.times.tolist(), bulk.columns["value"].tolist()) == ([1, 2], [10.0, 20.0])
    producer.insert(3, 30.0)
    producer.close()
    producer.close()
    assert servicer.rows == [(3, 30.0)]
    assert servicer.applied == {"p": 1}  # the number was free again
    with pytest.raises(FailedPrecondition, match="closed"):
        producer.insert(4, 1.0)


def test_nothing_is_sent_between_an_error_and_its_hearing(service):
    servicer, window = service
    servicer.script.append(("before", GONE))
    producer = window.producer("p", bulk_entries=1)
    for i in range(3):
        try:
            producer.insert(i, 0.0)
        except NotFound:
            break
    eventually(lambda: not servicer.script)
    with pytest.raises(NotFound) as caught:
        producer.close()
    back = [time for bulk in caught.value.unapplied for time in bulk.times.tolist()]
    assert servicer.rows == []
    assert back[0] == 0
    assert back == sorted(back)


def test_a_gap_is_named(service):
    servicer, window = service
    producer = window.producer("p", start=5)
    producer.insert(1, 1.0)
    with pytest.raises(FailedPrecondition, match="the next one is 1"):
        producer.close()
    assert servicer.rows == []


def test_a_new_process_goes_on_where_the_last_one_was_acknowledged(service):
    servicer, window = service
    with window.producer("p") as first:
        first.insert(1, 1.0)
    with window.producer("p", start=first.acknowledged) as second:
        second.insert(2, 2.0)
    assert servicer.times() == [1, 2]
    assert second.acknowledged == 2


@pytest.mark.parametrize("script", [[], [("after", LOST)]])
def test_a_number_that_was_used_before_loses_nothing(service, script):
    """The last process had its second message applied, and died before it knew."""
    servicer, window = service
    window.insert(1, 1.0, producer="p", sequence=1)
    window.insert(2, 2.0, producer="p", sequence=2)
    servicer.script += script
    producer = window.producer("p", start=1)
    producer.insert(3, 3.0)
    with pytest.raises(FailedPrecondition, match="another message with number 2") as caught:
        producer.flush()
    (bulk,) = caught.value.unapplied
    producer.bulk_insert(bulk.times, bulk.columns)
    producer.close()
    assert servicer.times() == [1, 2, 3]
    assert producer.acknowledged == 3


def test_the_block_s_own_error_wins(service):
    servicer, window = service
    servicer.script.append(("before", GONE))

    def work():
        with window.producer("p") as producer:
            producer.insert(1, 1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    assert "the window is gone" in caught.value.__notes__[0]


def test_an_entry_that_does_not_fit_is_refused_at_once_and_spoils_nothing(service):
    servicer, window = service
    servicer.spec.fields["n"] = "int64"
    servicer.spec.fields["on"] = "bool"
    servicer.spec.fields["s"] = "string"
    servicer.spec.keyed = True
    good = {"value": 1, "n": np.int32(2), "on": True, "s": "ü"}
    with window.producer("p", linger_s=FOREVER_S) as producer:
        producer.insert(1, fields=good, key="k")
        for wrong, field in [
            ({"value": "1"}, "value"),
            ({"value": True}, "value"),
            ({"n": 1.0}, "n"),
            ({"n": 2**63}, "n"),
            ({"n": True}, "n"),
            ({"on": 1}, "on"),
            ({"s": b"x"}, "s"),
            ({"s": "\ud800"}, "s"),
            ({"more": 1}, "more"),
        ]:
            with pytest.raises(InvalidArgument) as caught:
                producer.insert(2, fields=good | wrong, key="k")
            assert caught.value.field == field
        for call, field in [
            (lambda: producer.insert(2, fields=good), "key"),
            (lambda: producer.insert(2, fields={"n": 1}, key="k"), "on"),
            (lambda: producer.insert(2, 1.0, key="k"), "value"),
            (lambda: producer.insert(2, key="k"), "value"),
            (lambda: producer.insert("soon", fields=good, key="k"), "time"),
            (lambda: producer.insert(2, fields=good, key=5), "key"),
        ]:
            with pytest.raises(InvalidArgument) as caught:
                call()
            assert caught.value.field == field
    assert servicer.rows == [(1, 1.0)]
    for options in ({"start": -1}, {"linger_s": -1}, {"bulk_entries": 0}, {"buffer_bytes": 0}):
        with pytest.raises(InvalidArgument):
            Producer(window, "p", **options)
