"""A producer step by step, on the test's clock and wire: what it gathers, when it sends, when its callers wait."""

import numpy as np
import pytest

from sash_client import (
    DeadlineExceeded,
    NotFound,
    WriteResult,
)
from sash_proto.v1 import windows_pb2 as pb
from tests.support.producer_calls import CALLS, gone, insert

ENTRY_BYTES = 24  # of one number, without a key
TWO = pb.WindowSpec(name="w", time_unit="us", keyed=True, fields={"value": "float64", "word": "string"})


# ---------------------------------------------------------------- gathering


def test_a_bulk_is_sent_when_it_has_so_many_entries(make):
    with make(bulk_entries=3) as p:
        insert(p.producer, 1, 2)
        assert p.rests()
        insert(p.producer, 3, 4)
        assert p.wire.sent() == (1, [1, 2, 3])
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
    fields = {"value": 0.0, "word": word}
    with make(TWO, bulk_bytes=size) as p:
        p.producer.insert(1, fields=fields, key=key)
        assert p.wire.sent() == (1, [1])
    with make(TWO, bulk_bytes=size + 1) as p:
        p.producer.insert(1, fields=fields, key=key)
        assert p.rests()


def test_the_count_begins_anew_with_each_bulk(make):
    with make(bulk_entries=2) as p:
        for number in (1, 2, 3):
            insert(p.producer, 10 * number)
            assert p.rests()
            insert(p.producer, 10 * number + 1)
            assert p.wire.sent() == (number, [10 * number, 10 * number + 1])
            p.wire.reply(inserted=2)
            assert p.rests()


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
        insert(p.producer, 1, 2, 3)
        for number in (7, 8, 9):
            assert p.wire.sent() == (number, [number - 6])
            assert p.wire.is_silent()
            assert p.producer.acknowledged == number - 1
            p.wire.reply(inserted=1)
        assert p.rests()
        assert p.producer.acknowledged == 9
        assert p.producer.result == WriteResult(inserted=3, sequences=3)


# ---------------------------------------------------------------- flush


def test_a_flush_sends_what_lingers_and_nothing_that_comes_after_it(make):
    with make() as p:
        assert p.producer.flush() == WriteResult()  # there is nothing to wait for
        assert p.waits.timed_s == []
        insert(p.producer, 1)
        assert p.rests()
        flush = p.call(p.producer.flush)
        assert p.wire.sent() == (1, [1])
        assert flush.waits()
        p.wire.reply(inserted=1)
        assert flush.result() == WriteResult(inserted=1, sequences=1)
        insert(p.producer, 2)
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


def test_a_flush_waits_for_all_messages(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        flush = p.call(p.producer.flush)
        for number in (1, 2):
            assert p.wire.sent() == (number, [number])
            assert flush.waits()
            p.wire.reply(inserted=1)
        assert flush.result().inserted == 2


@pytest.mark.parametrize("call", CALLS)
def test_a_full_buffer_holds_its_writers_back(make, call):
    """What is gathered counts, and what is sent and not answered; whoever waits for room has it sent."""
    with make(buffer_bytes=2 * ENTRY_BYTES) as p:
        insert(p.producer, 1, 2)
        assert p.rests()
        waiting = p.call(lambda: CALLS[call](p.producer))
        assert p.wire.sent() == (1, [1, 2])
        assert waiting.waits()
        p.wire.reply(inserted=2)
        waiting.result()
        flush = p.call(p.producer.flush)
        assert p.wire.sent() == (2, [9])
        p.wire.reply(inserted=1)
        assert flush.result().inserted == 3


@pytest.mark.parametrize("call", CALLS)
def test_a_buffer_that_is_not_quite_full_takes_one_more(make, call):
    with make(buffer_bytes=2 * ENTRY_BYTES + 1) as p:
        insert(p.producer, 1, 2)
        CALLS[call](p.producer)


@pytest.mark.parametrize("call", CALLS)
def test_a_bulk_may_be_larger_than_the_buffer_and_fills_it(make, call):
    with make(buffer_bytes=100) as p:
        p.producer.bulk_insert(range(50), [0.0] * 50)
        p.wire.sent()
        waiting = p.call(lambda: CALLS[call](p.producer))
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
        p.wire.reply(gone())
        with pytest.raises(NotFound):
            p.call(lambda: insert(p.producer, 2)).result()
        insert(p.producer, 3)


@pytest.mark.parametrize("call", CALLS)
def test_room_is_not_waited_for_without_end(make, call):
    with make(buffer_bytes=ENTRY_BYTES, timeout_s=2.0) as p:
        insert(p.producer, 1)
        waiting = p.call(lambda: CALLS[call](p.producer))
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
