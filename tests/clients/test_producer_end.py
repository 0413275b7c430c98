"""A producer step by step: how it ends, and what it hands back."""

import pytest

from sash_client import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
    WriteResult,
)
from tests.support.producer_calls import CALLS, FOREVER_S, gone, insert, unapplied

ENTRY_BYTES = 24  # of one number, without a key


# ---------------------------------------------------------------- the end


def test_closing_sends_everything_and_ends_the_thread(make):
    with make() as p:
        insert(p.producer, 1)
        close = p.call(p.producer.close)
        assert p.wire.sent() == (1, [1])
        p.wire.reply(inserted=1)
        assert close.result() is None
        assert p.ended()
        p.producer.close()
        assert p.producer.result.inserted == 1


@pytest.mark.parametrize("call", CALLS.values())
def test_a_closed_producer_takes_nothing(make, call):
    with make() as p:
        p.producer.close()
        with pytest.raises(FailedPrecondition, match="producer 'p' is closed"):
            call(p.producer)
        assert p.producer.flush() == WriteResult()


@pytest.mark.parametrize("call", CALLS.values())
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
        assert unapplied(caught.value) == [1, 2, 3, 4]
        p.wire.reply(inserted=1)
        assert p.ended()
        assert p.wire.is_silent()
        assert (p.producer.acknowledged, p.producer.result) == (0, WriteResult())
        p.producer.close()


def test_closing_hands_back_what_an_error_had_stopped(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        p.wire.sent()
        p.wire.reply(gone())
        assert p.rests()
        with pytest.raises(NotFound) as caught:
            p.producer.close()
        assert unapplied(caught.value) == [1, 2]
        assert p.ended()
        assert p.wire.is_silent()


def test_closing_does_not_wait_for_a_pause_to_end(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1)
        p.wire.sent()
        p.wire.reply(Unavailable("the tier is away", retry_after_s=FOREVER_S))
        assert p.rests()
        with pytest.raises(DeadlineExceeded):
            p.call(lambda: p.producer.close(timeout_s=0)).result()
        assert p.ended()
        assert p.wire.is_silent()


def test_the_end_of_a_block_waits_until_everything_is_applied(make):
    with make() as p:

        def work():
            with p.producer as same:
                assert same is p.producer
                insert(same, 1)

        working = p.call(work)
        assert p.wire.sent() == (1, [1])
        p.waits.advance(FOREVER_S)
        assert working.waits()
        p.wire.reply(inserted=1)
        working.result()
        assert p.ended()


def test_the_end_of_a_block_raises_what_went_wrong(make):
    with make() as p:

        def work():
            with p.producer:
                insert(p.producer, 1)

        working = p.call(work)
        p.wire.sent()
        p.wire.reply(gone())
        with pytest.raises(NotFound):
            working.result()


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
    "options", [{"start": 0}, {"linger_s": 0}, {"bulk_entries": 1}, {"bulk_bytes": 1}, {"buffer_bytes": 1}]
)
def test_the_least_that_may_be_asked_for(make, options):
    with make(**options) as p:
        insert(p.producer, 1)


@pytest.mark.parametrize(
    "options", [{"start": -1}, {"linger_s": -1}, {"bulk_entries": 0}, {"bulk_bytes": 0}, {"buffer_bytes": 0}]
)
def test_less_may_not_be_asked_for(make, options):
    with pytest.raises(InvalidArgument), make(**options):
        pass


def test_it_says_who_it_is(make):
    with make(start=3) as p:
        assert repr(p.producer) == "Producer('w', 'p', acknowledged=3)"
        assert p.producer._thread.daemon  # a process that ends does not wait for it
