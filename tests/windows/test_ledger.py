"""Who wrote what: retries, gaps, batches in parts, and writers that are forgotten."""

import pytest

from sash.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from sash.windows import ledger as module
from sash.windows.batch import Origin
from sash.windows.ledger import FORGET_AFTER_NS, Ledger


def test_a_producer_goes_on_by_one_and_what_it_repeats_is_known():
    ledger = Ledger()
    for sequence in (1, 2, 3):
        assert not ledger.applied(Origin("p", sequence))
        ledger.note(Origin("p", sequence), 0)
    assert all(ledger.applied(Origin("p", sequence)) for sequence in (1, 2, 3))
    assert not ledger.applied(Origin("p", 4))
    assert not ledger.applied(Origin("q", 1)), "producers do not know of each other"


@pytest.mark.parametrize(("sent", "expected"), [(5, 4), (9, 4)])
def test_a_gap_is_refused_and_says_what_comes_next(sent, expected):
    ledger = Ledger()
    ledger.note(Origin("p", 3), 0)
    with pytest.raises(FailedPrecondition, match=f"the next one is {expected}") as refused:
        ledger.applied(Origin("p", sent))
    assert (refused.value.field, refused.value.limit) == ("sequence", str(expected))


def test_a_new_producer_begins_with_one():
    with pytest.raises(FailedPrecondition, match="up to 0"):
        Ledger().applied(Origin("p", 2))


@pytest.mark.parametrize(
    ("origin", "field"),
    [(Origin("", 1), "producer"), (Origin("p" * 201, 1), "producer"), (Origin("p", 0), "sequence")],
)
def test_what_is_no_origin_is_refused(origin, field):
    with pytest.raises(InvalidArgument) as refused:
        Ledger().applied(origin)
    assert refused.value.field == field


def test_a_batch_is_committed_once_and_drops_all_its_parts_and_earlier_ones():
    ledger = Ledger()
    ledger.stage("old", "q", 6, 10, 0, None)
    ledger.stage("a", "q", 7, 10, 0, None)
    ledger.stage("b", "q", 7, 10, 0, None)
    ledger.stage("next", "q", 8, 10, 0, None)
    ledger.stage("other", "r", 1, 10, 0, None)
    assert not ledger.committed("q", 7)
    assert [part.number for part in ledger.named("q", 7, ["b"])] == [3]
    assert sorted(part.number for part in ledger.commit("q", 7, 0)) == [1, 2, 3]
    assert ledger.committed("q", 7)
    assert ledger.committed("q", 6), "a batch before the last one was committed, or never will be"
    assert not ledger.committed("q", 8)
    assert set(ledger.parts) == {"next", "other"}
    with pytest.raises(FailedPrecondition, match="committed already"):
        ledger.check_stage("q", 7)


def test_a_commit_names_parts_that_are_there_and_its_own():
    ledger = Ledger()
    ledger.stage("a", "q", 7, 10, 0, None)
    with pytest.raises(FailedPrecondition, match="may have expired"):
        ledger.named("q", 7, ["a", "b"])
    with pytest.raises(FailedPrecondition, match="batch 7 of query 'q'"):
        ledger.named("q", 8, ["a"])
    with pytest.raises(InvalidArgument, match="twice"):
        ledger.named("q", 7, ["a", "a"])


def test_parts_expire():
    ledger = Ledger()
    ledger.stage("a", "q", 7, 10, 100, None)
    ledger.stage("b", "q", 7, 10, 105, None)
    ledger.stage("c", "q", 7, 10, 90, None)
    assert ledger.expired(99) == []
    assert ledger.expired(100) == ["a", "c"]
    assert [part.number for part in ledger.drop(["a", "c"])] == [1, 3]
    assert set(ledger.parts) == {"b"}


def test_writers_that_were_silent_for_long_make_room(monkeypatch):
    monkeypatch.setattr(module, "MAX_WRITERS", 2)
    ledger = Ledger()
    ledger.note(Origin("a", 1), 0)
    ledger.note(Origin("b", 1), FORGET_AFTER_NS)
    ledger.check_room(Origin("b", 2), FORGET_AFTER_NS)
    with pytest.raises(ResourceExhausted) as refused:
        ledger.check_room(Origin("c", 1), FORGET_AFTER_NS)
    assert (refused.value.field, refused.value.limit) == ("producer", "2")
    ledger.check_room(Origin("c", 1), FORGET_AFTER_NS + 1)
    assert ledger.applied(Origin("a", 1)), "to ask whether there is room changes nothing: the write may be refused"
    ledger.note(Origin("b", 2), FORGET_AFTER_NS + 1)
    assert ledger.applied(Origin("a", 1)), "nor does who is known need room"
    ledger.note(Origin("c", 1), FORGET_AFTER_NS + 1)
    assert not ledger.applied(Origin("a", 1)), "a is forgotten"
    assert ledger.applied(Origin("b", 1))


def test_queries_that_were_silent_for_long_make_room(monkeypatch):
    monkeypatch.setattr(module, "MAX_WRITERS", 1)
    ledger = Ledger()
    ledger.commit("old", 5, 0)
    with pytest.raises(ResourceExhausted):
        ledger.check_commit("new", FORGET_AFTER_NS)
    ledger.check_commit("new", FORGET_AFTER_NS + 1)
    assert ledger.committed("old", 5)
    ledger.commit("new", 0, FORGET_AFTER_NS + 1)
    assert not ledger.committed("old", 5)


def test_a_ledger_survives_as_a_document():
    ledger = Ledger()
    ledger.note(Origin("p", 41), 3)
    ledger.commit("q", 12, 4)
    ledger.stage("a", "q", 13, 10, 5, None)
    again = Ledger.of(ledger.document())
    assert again.document() == ledger.document()
    assert again.applied(Origin("p", 41))
    assert again.committed("q", 12)
    assert again.named("q", 13, ["a"]) == ledger.named("q", 13, ["a"])
    assert Ledger.of(ledger.document(parts=False)).parts == {}
