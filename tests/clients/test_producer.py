"""A producer's entries are applied once each, in order, whatever gets lost; what cannot be applied comes back.

Most tests go step by step, on the test's clock and wire (`tests/support/driven.py`).
"""

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
    ResourceExhausted,
    SashClientError,
    Unavailable,
    WriteResult,
)
from sash_proto.v1 import windows_pb2 as pb
from tests.support.driven import FOREVER_S, SPEC, driven
from tests.support.numbered import LOST, Numbered, serving
from tests.support.ports import free_port
from tests.support.recorder import status
from tests.support.refused import field_of
from tests.support.servers import WAIT_S
from tests.support.waiting import wait_until as eventually

ENTRY_BYTES = 24  # of one number, without a key
GONE, LATER = NotFound("the window is gone"), Unavailable("lost")
AGAIN = {"already_applied": True}
CALLS = {
    "insert": lambda producer: producer.insert(9, 0.0),
    "bulk_insert": lambda producer: producer.bulk_insert([9], [0.0]),
}
EITHER = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def make(monkeypatch):
    """Make a producer on a clock and a wire of its own; nothing lingers to an end by itself."""
    return lambda spec=SPEC, **options: driven(monkeypatch, spec, **({"linger_s": FOREVER_S} | options))


def insert(producer, *times):
    for time in times:
        producer.insert(time, 0.0)


def unapplied(caught):
    return [time for bulk in caught.value.unapplied for time in bulk.times.tolist()]


def refused(p, error=GONE):
    """Answer the next message with an error, and wait until the producer has taken it."""
    p.wire.sent()
    p.wire.reply(error)
    assert p.rests()


# ---------------------------------------------------------------- gathering


def test_a_bulk_is_sent_when_it_has_so_many_entries_and_the_count_begins_anew(make):
    with make(bulk_entries=3) as p:
        for number in (1, 2, 3):
            insert(p.producer, 10 * number, 10 * number + 1)
            assert p.rests()
            insert(p.producer, 10 * number + 2)
            assert p.wire.sent() == (number, [10 * number, 10 * number + 1, 10 * number + 2])
            p.wire.reply(inserted=3)
            assert p.rests()


@pytest.mark.parametrize(("bulk_bytes", "entries"), [(24, 1), (25, 2), (48, 2), (49, 3)])
def test_a_bulk_is_sent_when_it_has_so_many_bytes(make, bulk_bytes, entries):
    with make(bulk_bytes=bulk_bytes) as p:
        insert(p.producer, *range(entries - 1))
        assert p.rests()
        insert(p.producer, 9)
        assert p.wire.sent() == (1, [*range(entries - 1), 9])


@pytest.mark.parametrize(
    ("key", "word", "size"), [("", "", 32), ("abc", "", 35), ("", "x" * 10, 42), ("abc", "xy", 37)]
)
def test_keys_and_strings_count(make, key, word, size):
    """16 bytes for the entry, 8 for each field, and the text."""
    spec = pb.WindowSpec(name="w", keyed=True, fields={"value": "float64", "word": "string"})
    for bulk_bytes, is_full in ((size, True), (size + 1, False)):
        with make(spec, bulk_bytes=bulk_bytes) as p:
            p.producer.insert(1, fields={"value": 0.0, "word": word}, key=key)
            assert p.wire.sent() == (1, [1]) if is_full else p.rests()


def test_an_entry_lingers_as_long_as_it_should(make):
    with make(linger_s=5.0) as p:
        assert p.rests()
        insert(p.producer, 1)
        assert p.rests()
        assert p.waits.timed_s == [5.0]
        p.waits.advance(3.0)
        insert(p.producer, 2)  # the time of a bulk is that of its first entry
        p.waits.advance(1.9)
        assert p.rests()
        p.waits.advance(0.1)
        assert p.wire.sent() == (1, [1, 2])
        p.wire.reply(inserted=2)
        insert(p.producer, 3)
        assert p.rests()
        assert p.waits.timed_s[-1] == 5.0


def test_without_lingering_each_entry_is_sent_at_once(make):
    with make(linger_s=0.0) as p:
        assert p.rests()
        insert(p.producer, 1)
        assert p.wire.sent() == (1, [1])


def test_a_bulk_keeps_its_place_and_is_sent_at_once(make):
    with make() as p:
        insert(p.producer, 1)
        p.producer.bulk_insert([2, 3], [0.0, 0.0])
        insert(p.producer, 4)
        assert p.wire.sent() == (1, [1])
        p.wire.reply(inserted=1)
        assert p.wire.sent() == (2, [2, 3])
        p.wire.reply(inserted=2)
        assert p.rests()


@pytest.mark.parametrize(("unit", "ticks"), [("s", 7), ("ms", 7000), ("", 7_000_000)])
def test_times_are_ticks_of_the_window(make, unit, ticks):
    """Microseconds, where the spec says nothing."""
    with make(pb.WindowSpec(name="w", time_unit=unit, fields={"value": "float64"}), bulk_entries=1) as p:
        insert(p.producer, np.datetime64(7, "s"))
        assert p.wire.sent() == (1, [ticks])


def test_one_message_is_in_flight_and_numbers_have_no_gap(make):
    with make(bulk_entries=1, start=6) as p:
        assert repr(p.producer) == "Producer('w', 'p', acknowledged=6)"
        insert(p.producer, 1, 2, 3)
        for number in (7, 8, 9):
            assert p.wire.sent() == (number, [number - 6])
            assert p.wire.is_silent()
            assert p.producer.acknowledged == number - 1
            p.wire.reply(inserted=1)
        assert p.rests()
        assert p.producer.acknowledged == 9
        assert p.producer.result == WriteResult(inserted=3, sequences=3)


# ---------------------------------------------------------------- flush, and a full buffer


def test_a_flush_sends_what_lingers_and_nothing_that_comes_after_it(make):
    with make() as p:
        assert p.producer.flush() == WriteResult()  # there is nothing to wait for
        assert p.waits.timed_s == []
        insert(p.producer, 1)
        p.producer.bulk_insert([2], [0.0])
        assert p.wire.sent() == (1, [1])
        flush = p.call(p.producer.flush)
        for number in (1, 2):
            assert flush.waits()
            p.wire.reply(inserted=1)
            if number == 1:
                assert p.wire.sent() == (2, [2])
        assert flush.result() == WriteResult(inserted=2, sequences=2)
        insert(p.producer, 3)
        assert p.rests()


@pytest.mark.parametrize(("of_producer", "of_flush", "limit_s"), [(None, 2.0, 2.0), (3.0, None, 3.0), (3.0, 2.0, 2.0)])
def test_a_flush_gives_up_when_its_time_is_over_and_the_entries_are_sent_on(make, of_producer, of_flush, limit_s):
    with make(timeout_s=of_producer) as p:
        insert(p.producer, 1)
        flush = p.call(lambda: p.producer.flush(of_flush))
        assert p.wire.sent() == (1, [1])
        p.waits.advance(limit_s - 0.5)
        assert flush.waits()
        p.waits.advance(0.5)
        with pytest.raises(DeadlineExceeded, match=rf"producer 'p': its entries were not applied within {limit_s:g} s"):
            flush.result()
        insert(p.producer, 2)
        p.wire.reply(inserted=1)
        assert p.rests()  # nobody is in a hurry any more
        assert p.producer.result.inserted == 1


@EITHER
def test_a_full_buffer_holds_its_writers_back(make, call):
    """What is gathered counts, and what is sent and not answered; whoever waits for room has it sent."""
    with make(buffer_bytes=2 * ENTRY_BYTES) as p:
        insert(p.producer, 1, 2)
        assert p.rests()
        waiting = p.call(lambda: call(p.producer))
        assert p.wire.sent() == (1, [1, 2])
        assert waiting.waits()
        p.wire.reply(inserted=2)
        waiting.result()
        flush = p.call(p.producer.flush)
        assert p.wire.sent() == (2, [9])
        p.wire.reply(inserted=1)
        assert flush.result().inserted == 3


@EITHER
def test_a_buffer_that_is_not_quite_full_takes_one_more(make, call):
    with make(buffer_bytes=2 * ENTRY_BYTES + 1) as p:
        insert(p.producer, 1, 2)
        call(p.producer)


@EITHER
def test_a_bulk_may_be_larger_than_the_buffer_and_fills_it(make, call):
    with make(buffer_bytes=100) as p:
        p.producer.bulk_insert(range(50), [0.0] * 50)
        p.wire.sent()
        waiting = p.call(lambda: call(p.producer))
        assert waiting.waits()
        p.wire.reply(inserted=50)
        waiting.result()


def test_messages_count_by_their_size(make):
    size = pb.BulkInsertRequest(window="w", time=bytes(8), fields={"value": pb.Column(float64=bytes(8))}).ByteSize()
    with make(buffer_bytes=2 * size + 1) as p:
        for time in range(3):
            p.producer.bulk_insert([time], [0.0])
        for time in range(3, 6):  # each goes in when one has left
            assert p.wire.sent()[1] == [time - 3]
            waiting = p.call(lambda time=time: p.producer.bulk_insert([time], [0.0]))
            assert waiting.waits()
            p.wire.reply(inserted=1)
            waiting.result()


def test_a_refused_message_leaves_the_buffer(make):
    with make(bulk_entries=1, buffer_bytes=1) as p:
        insert(p.producer, 1)
        p.wire.sent()
        p.wire.reply(GONE)
        with pytest.raises(NotFound):
            p.call(lambda: insert(p.producer, 2)).result()
        insert(p.producer, 3)


@EITHER
def test_room_is_not_waited_for_without_end(make, call):
    with make(buffer_bytes=ENTRY_BYTES, timeout_s=2.0) as p:
        insert(p.producer, 1)
        waiting = p.call(lambda: call(p.producer))
        assert p.wire.sent() == (1, [1])
        p.waits.advance(1.9)
        assert waiting.waits()
        p.waits.advance(0.1)
        with pytest.raises(DeadlineExceeded, match="producer 'p': its buffer is full, and had no room within 2 s"):
            waiting.result()
        p.wire.reply(inserted=1)
        assert p.rests()  # the entry that had no room was not taken
        insert(p.producer, 2)
        assert p.rests()  # and nobody is in a hurry any more


# ---------------------------------------------------------------- errors


def test_an_error_stops_the_sending_until_somebody_knows(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        refused(p)
        with pytest.raises(NotFound, match="gone") as caught:
            insert(p.producer, 3)
        assert unapplied(caught) == [1]
        assert p.wire.sent() == (1, [2])  # the number is free, and the entry that met the error was not taken
        p.wire.reply(inserted=1)
        assert p.rests()
        p.producer.flush()  # it was raised once
        assert p.producer.acknowledged == 1
        assert p.producer.result.inserted == 1


@pytest.mark.parametrize("call", [*CALLS.values(), lambda producer: producer.flush()])
def test_every_call_hears_of_an_error(make, call):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1)
        refused(p)
        with pytest.raises(NotFound) as caught:
            call(p.producer)
        assert unapplied(caught) == [1]


def test_whoever_waits_hears_what_was_not_applied(make):
    with make(start=3) as p:
        insert(p.producer, 7, 5)
        flush = p.call(p.producer.flush)
        p.wire.sent()
        assert flush.waits()
        p.wire.reply(FailedPrecondition("not so", field="time"))
        with pytest.raises(FailedPrecondition) as caught:
            flush.result()
        error = caught.value
        said = "not so (producer 'p', sequence 4: its 2 entries, times 5 to 7, are not applied)"
        assert (str(error), error.message, error.field) == (said, said, "time")
        (bulk,) = error.unapplied
        assert (bulk.times.tolist(), bulk.columns["value"].tolist()) == ([7, 5], [0.0, 0.0])
        assert p.producer.acknowledged == 3


def test_an_empty_bulk_that_is_refused_has_no_times(make):
    with make() as p:
        p.producer.bulk_insert([], [])
        refused(p)
        with pytest.raises(NotFound, match="its 0 entries are not applied"):
            p.producer.flush()


@pytest.mark.parametrize(
    "error",
    [
        LATER,
        DeadlineExceeded("no reply"),
        SashClientError("cut off", code="CANCELLED"),
        ResourceExhausted("full", retry_after_s=0.01),
    ],
)
def test_what_may_pass_is_sent_again_under_its_number(make, error):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        for _ in range(3):
            assert p.wire.sent() == (1, [1])
            p.wire.reply(error)
            assert p.rests()
            p.waits.advance(p.waits.timed_s[-1])
        assert p.wire.sent() == (1, [1])
        p.wire.reply(inserted=1)
        assert p.wire.sent() == (2, [2])


@pytest.mark.parametrize("error", [GONE, SashClientError("a bug", code="INTERNAL"), FailedPrecondition("a gap")])
def test_what_will_not_pass_is_not_sent_again(make, error):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1)
        refused(p, error)
        with pytest.raises(type(error)):
            p.producer.flush()
        assert p.rests()


def test_pauses_double_and_begin_anew_with_each_message(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        for _ in range(2):
            for longest_s in (0.1, 0.2, 0.4):
                refused(p, LATER)
                assert longest_s / 2 <= p.waits.timed_s[-1] <= longest_s
                p.waits.advance(longest_s)
            p.wire.sent()
            p.wire.reply(inserted=1)


def test_the_service_says_when_to_come_again(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1)
        refused(p, Unavailable("the tier is away", retry_after_s=7.0))
        p.waits.advance(6.9)
        assert p.rests()
        p.waits.advance(0.1)
        refused(p, Unavailable("the tier is away", retry_after_s=0.001))  # sooner than it would come by itself
        assert p.waits.timed_s[-2] == 7.0
        assert p.waits.timed_s[-1] >= 0.1


def test_a_client_that_is_closed_sends_nothing_again(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1)
        p.wire._is_closed = True
        refused(p, Unavailable("the client is closed"))
        with pytest.raises(Unavailable, match="closed") as caught:
            p.producer.flush()
        assert unapplied(caught) == [1]


# ---------------------------------------------------------------- numbers that were used before


def answered(p, *replies):
    """Reply to one message's attempts, after pauses."""
    for reply in replies:
        if reply is LATER:
            refused(p, reply)
            p.waits.advance(1.0)
        else:
            p.wire.sent()
            p.wire.reply(**reply)


@pytest.mark.parametrize("start", [0, 4])
def test_a_first_attempt_that_was_applied_before_is_somebody_else_s(make, start):
    with make(bulk_entries=1, start=start) as p:
        insert(p.producer, 1, 2)
        answered(p, {"inserted": 1}, AGAIN)
        assert p.rests()
        with pytest.raises(FailedPrecondition, match=f"another message with number {start + 2} was applied") as caught:
            p.producer.flush()
        assert (caught.value.field, unapplied(caught)) == ("sequence", [2])
        assert p.producer.acknowledged == start + 2  # the number is used
        assert p.producer.result.inserted == 1


def test_a_reply_that_was_lost_is_no_error(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        answered(p, LATER, AGAIN, LATER, AGAIN)
        assert p.producer.flush() == WriteResult(already_applied=True, sequences=2)
        assert p.producer.acknowledged == 2


def test_the_first_message_of_a_new_process_may_be_the_last_of_the_one_before(make):
    """With `start`, even a later attempt does not say whose message was applied; the ones after it do."""
    with make(bulk_entries=1, start=4) as p:
        insert(p.producer, 1, 2)
        answered(p, LATER, AGAIN)
        assert p.rests()
        with pytest.raises(FailedPrecondition, match="another message with number 5"):
            p.producer.flush()
        answered(p, LATER, AGAIN)
        assert p.producer.flush() == WriteResult(already_applied=True, sequences=1)
        assert p.producer.acknowledged == 6


# ---------------------------------------------------------------- the end


def test_closing_sends_everything_and_ends_the_thread(make):
    with make() as p:
        assert p.producer._thread.daemon  # a process that ends does not wait for it
        insert(p.producer, 1)
        close = p.call(p.producer.close)
        assert p.wire.sent() == (1, [1])
        p.wire.reply(inserted=1)
        assert close.result() is None
        assert p.ended()
        p.producer.close()
        assert p.producer.result.inserted == 1


@EITHER
def test_a_closed_producer_takes_nothing(make, call):
    with make() as p:
        p.producer.close()
        with pytest.raises(FailedPrecondition, match="producer 'p' is closed"):
            call(p.producer)
        assert p.producer.flush() == WriteResult()


@EITHER
def test_whoever_waits_for_room_hears_that_it_is_closed(make, call):
    with make(buffer_bytes=ENTRY_BYTES) as p:
        insert(p.producer, 1)
        waiting = p.call(lambda: call(p.producer))
        assert p.wire.sent() == (1, [1])
        assert waiting.waits()
        close = p.call(lambda: p.producer.close(timeout_s=1.0))
        assert close.waits()
        p.waits.advance(1.0)
        with pytest.raises(DeadlineExceeded):
            close.result()
        with pytest.raises(FailedPrecondition, match="closed"):
            waiting.result()


def test_closing_hands_back_what_was_not_applied(make):
    """In flight, waiting to be sent, and gathered: in this order; an answer that comes later changes nothing."""
    with make() as p:
        p.producer.bulk_insert([1], [0.0])
        p.producer.bulk_insert([2, 3], [0.0, 0.0])
        insert(p.producer, 4)
        assert p.wire.sent() == (1, [1])
        close = p.call(lambda: p.producer.close(timeout_s=1.0))
        assert close.waits()
        p.waits.advance(1.0)
        with pytest.raises(DeadlineExceeded) as caught:
            close.result()
        assert unapplied(caught) == [1, 2, 3, 4]
        p.wire.reply(inserted=1)
        assert p.ended()
        assert p.wire.is_silent()
        assert (p.producer.acknowledged, p.producer.result) == (0, WriteResult())
        p.producer.close()


@pytest.mark.parametrize(
    ("error", "raised"),
    [(GONE, NotFound), (Unavailable("the tier is away", retry_after_s=FOREVER_S), DeadlineExceeded)],
)
def test_closing_waits_for_no_pause_and_hands_back_what_an_error_had_stopped(make, error, raised):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        refused(p, error)
        with pytest.raises(raised) as caught:
            p.call(lambda: p.producer.close(timeout_s=0)).result()
        assert unapplied(caught) == [1, 2]
        assert p.ended()
        assert p.wire.is_silent()


@pytest.mark.parametrize("error", [None, GONE])
def test_the_end_of_a_block_waits_until_everything_is_applied_and_raises_what_went_wrong(make, error):
    with make() as p:

        def work():
            with p.producer as same:
                assert same is p.producer
                insert(same, 1)

        working = p.call(work)
        assert p.wire.sent() == (1, [1])
        p.waits.advance(FOREVER_S)
        assert working.waits()
        p.wire.reply(error, inserted=1)
        if error is None:
            working.result()
        else:
            with pytest.raises(NotFound):
                working.result()
        assert p.ended()


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(None, 5.0), (2.0, 2.0)])
def test_after_an_error_of_the_block_the_end_is_not_waited_for_without_end(make, timeout_s, limit_s):
    """As long as the producer's timeout, or else the client's."""
    with make(timeout_s=timeout_s) as p:
        insert(p.producer, 1)

        def work():
            with p.producer:
                raise ZeroDivisionError

        working = p.call(work)
        p.wire.sent()
        assert working.waits()
        p.waits.advance(limit_s - 0.1)
        assert working.waits()
        p.waits.advance(0.1)
        with pytest.raises(ZeroDivisionError) as caught:
            working.result()
        (note,) = caught.value.__notes__
        assert note == f"and the producer: producer 'p': its entries were not applied within {limit_s:g} s"


@pytest.mark.parametrize(
    ("name", "least"), [("start", 0), ("linger_s", 0), ("bulk_entries", 1), ("bulk_bytes", 1), ("buffer_bytes", 1)]
)
def test_the_least_that_may_be_asked_for(make, name, least):
    with make(**{name: least}) as p:
        insert(p.producer, 1)
    with pytest.raises(InvalidArgument), make(**{name: least - 1}):
        pass


# ---------------------------------------------------------------- over gRPC


@pytest.fixture
def service():
    servicer = Numbered()
    with serving(servicer) as port, Client(f"127.0.0.1:{port}", timeout_s=WAIT_S) as client:
        yield servicer, client.window("w")


def test_it_survives_a_restart_of_the_service():
    servicer = Numbered()
    with serving(servicer, free_port()) as port:
        client = Client(f"127.0.0.1:{port}", timeout_s=WAIT_S)
        producer = client.window("w").producer("p", bulk_entries=3)
        insert(producer, *range(30))
        eventually(lambda: producer.acknowledged >= 1)
        servicer.gate.clear()  # one is in progress when the service ends
        insert(producer, *range(30, 40))
        servicer.gate.set()
    insert(producer, *range(40, 50))
    with pytest.raises(DeadlineExceeded):
        producer.flush(timeout_s=0.05)
    with serving(servicer, port), client, producer:
        pass
    assert servicer.times() == list(range(50))
    assert servicer.applied == {"p": producer.acknowledged}


def test_many_threads_may_share_one(service):
    servicer, window = service
    with window.producer("p", bulk_entries=7, linger_s=0.001) as producer:
        threads = [threading.Thread(target=insert, args=(producer, *range(1000 * n, 1000 * n + 200))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(servicer.times()) == 800
    for n in range(4):  # each thread's entries in its order
        assert [t for t in servicer.times() if t // 1000 == n] == [1000 * n + i for i in range(200)]


def test_what_cannot_be_applied_comes_back_once_and_what_is_lost_is_sent_again(service):
    servicer, window = service
    gone = status(grpc.StatusCode.NOT_FOUND, "the window is gone")
    servicer.script += [("before", gone), ("before", LOST), ("after", LOST)]
    producer = window.producer("p", linger_s=FOREVER_S)
    insert(producer, 1, 2)
    with pytest.raises(NotFound) as caught:
        producer.flush()
    assert unapplied(caught) == [1, 2]
    insert(producer, 3)
    producer.close()
    assert servicer.rows == [(3, 0.0)]
    assert servicer.applied == {"p": 1}  # the number was free again
    assert producer.result == WriteResult(already_applied=True, durability="sync", sequences=1)


def test_an_entry_that_does_not_fit_is_refused_at_once_and_spoils_nothing(service):
    servicer, window = service
    for name, kind in (("n", "int64"), ("on", "bool"), ("s", "string")):
        servicer.spec.fields[name] = kind
    servicer.spec.keyed = True
    good = {"value": 1, "n": np.int32(2), "on": True, "s": "ü"}
    with window.producer("p", linger_s=FOREVER_S) as producer:
        producer.insert(1, fields=good, key="k")
        for wrong, field in [
            *(({"fields": good | {field: value}}, field) for field, value in (
                ("value", "1"), ("value", True), ("n", 1.0), ("n", 2**63), ("n", True), ("on", 1), ("s", b"x"),
                ("s", "\ud800"), ("more", 1))),
            ({"fields": good, "key": None}, "key"),
            ({"fields": good, "key": 5}, "key"),
            ({"fields": {"n": 1}}, "on"),
            ({"value": 1.0}, "value"),
            ({}, "value"),
            ({"time": "soon", "fields": good}, "time"),
        ]:  # fmt: skip
            assert field_of(producer.insert, **({"time": 2, "key": "k"} | wrong)) == field
    assert servicer.rows == [(1, 1.0)]
