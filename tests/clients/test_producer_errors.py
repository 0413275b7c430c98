"""A producer step by step: errors, and messages that are sent again."""

import pytest

from sash_client import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    SashClientError,
    Unavailable,
    WriteResult,
)
from tests.support.producer_calls import CALLS, gone, insert, lost, unapplied

# ---------------------------------------------------------------- errors


def test_an_error_stops_the_sending_until_somebody_knows(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        assert p.wire.sent() == (1, [1])
        p.wire.reply(gone())
        assert p.rests()
        with pytest.raises(NotFound, match="gone") as caught:
            insert(p.producer, 3)
        assert unapplied(caught.value) == [1]
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
        p.wire.sent()
        p.wire.reply(gone())
        assert p.rests()
        with pytest.raises(NotFound) as caught:
            call(p.producer)
        assert unapplied(caught.value) == [1]


def test_whoever_waits_hears_of_an_error(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1)
        p.wire.sent()
        flush = p.call(p.producer.flush)
        assert flush.waits()
        p.wire.reply(gone())
        with pytest.raises(NotFound):
            flush.result()


def test_a_refusal_says_what_was_not_applied(make):
    with make(start=3) as p:
        insert(p.producer, 7, 5)
        flush = p.call(p.producer.flush)
        p.wire.sent()
        p.wire.reply(FailedPrecondition("not so", field="time"))
        with pytest.raises(FailedPrecondition) as caught:
            flush.result()
        error = caught.value
        said = "not so (producer 'p', sequence 4: its 2 entries, times 5 to 7, are not applied)"
        assert (str(error), error.message, error.field) == (said, said, "time")
        assert p.producer.acknowledged == 3


def test_an_empty_bulk_that_is_refused_has_no_times(make):
    with make() as p:
        p.producer.bulk_insert([], [])
        p.wire.sent()
        p.wire.reply(gone())
        assert p.rests()
        with pytest.raises(NotFound, match="its 0 entries are not applied"):
            p.producer.flush()


# ---------------------------------------------------------------- sending again


@pytest.mark.parametrize(
    "error",
    [
        lost(),
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


@pytest.mark.parametrize("error", [gone(), SashClientError("a bug", code="INTERNAL"), FailedPrecondition("a gap")])
def test_what_will_not_pass_is_not_sent_again(make, error):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1)
        p.wire.sent()
        p.wire.reply(error)
        assert p.rests()
        with pytest.raises(type(error)):
            p.producer.flush()
        assert p.rests()


def test_pauses_double_and_begin_anew_with_each_message(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        for _ in range(2):
            for longest_s in (0.1, 0.2, 0.4):
                p.wire.sent()
                p.wire.reply(lost())
                assert p.rests()
                assert longest_s / 2 <= p.waits.timed_s[-1] <= longest_s
                p.waits.advance(longest_s)
            p.wire.sent()
            p.wire.reply(inserted=1)


def test_the_service_says_when_to_come_again(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1)
        p.wire.sent()
        p.wire.reply(Unavailable("the tier is away", retry_after_s=7.0))
        assert p.rests()
        p.waits.advance(6.9)
        assert p.rests()
        p.waits.advance(0.1)
        assert p.wire.sent() == (1, [1])
        p.wire.reply(Unavailable("the tier is away", retry_after_s=0.001))  # sooner than it would come by itself
        assert p.rests()
        assert p.waits.timed_s[-2] == 7.0
        assert p.waits.timed_s[-1] >= 0.1


def test_a_client_that_is_closed_sends_nothing_again(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1)
        p.wire.sent()
        p.wire._is_closed = True
        p.wire.reply(Unavailable("the client is closed"))
        assert p.rests()
        with pytest.raises(Unavailable, match="closed") as caught:
            p.producer.flush()
        assert unapplied(caught.value) == [1]


# ---------------------------------------------------------------- numbers that were used before


def answered(p, *replies):
    """Reply to one message's attempts, after pauses."""
    for reply in replies:
        p.wire.sent()
        if isinstance(reply, Exception):
            p.wire.reply(reply)
            assert p.rests()
            p.waits.advance(1.0)
        else:
            p.wire.reply(**reply)


AGAIN = {"already_applied": True}


@pytest.mark.parametrize("start", [0, 4])
def test_a_first_attempt_that_was_applied_before_is_somebody_else_s(make, start):
    with make(bulk_entries=1, start=start) as p:
        insert(p.producer, 1, 2)
        answered(p, {"inserted": 1}, AGAIN)
        assert p.rests()
        with pytest.raises(FailedPrecondition, match=f"another message with number {start + 2} was applied") as caught:
            p.producer.flush()
        assert (caught.value.field, unapplied(caught.value)) == ("sequence", [2])
        assert p.producer.acknowledged == start + 2  # the number is used
        assert p.producer.result.inserted == 1


def test_a_reply_that_was_lost_is_no_error(make):
    with make(bulk_entries=1) as p:
        insert(p.producer, 1, 2)
        answered(p, lost(), AGAIN, lost(), AGAIN)
        assert p.producer.flush() == WriteResult(already_applied=True, sequences=2)
        assert p.producer.acknowledged == 2


def test_the_first_message_of_a_new_process_may_be_the_last_of_the_one_before(make):
    """With `start`, even a later attempt does not say whose message was applied; the ones after it do."""
    with make(bulk_entries=1, start=4) as p:
        insert(p.producer, 1, 2)
        answered(p, lost(), AGAIN)
        assert p.rests()
        with pytest.raises(FailedPrecondition, match="another message with number 5"):
            p.producer.flush()
        answered(p, lost(), AGAIN)
        assert p.producer.flush() == WriteResult(already_applied=True, sequences=1)
        assert p.producer.acknowledged == 6
