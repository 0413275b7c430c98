"""Who wrote what: retries, gaps, batches in parts, and writers that are forgotten."""

import pytest

from sash.durability.formats import VALUE_BYTES_MAX
from sash.rpc.pipeline import IN_FLIGHT_MAX
from sash_engine.errors import FailedPrecondition, InvalidArgument, ProducerFenced, ResourceExhausted, SequenceReused
from sash_engine.windows.batches import ledger as module
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.batches.ledger import (
    DIGEST_BYTES,
    DIGESTS_ALL,
    DIGESTS_MAX,
    DIGESTS_MIN,
    FORGET_AFTER_NS,
    MAX_WRITERS,
    Ledger,
)
from tests.support.refused import refusal, refused


def sent(sequence, what="data", epoch=0, producer="p"):
    """A write as the ledger sees it; `what` stands for what it carries."""
    return Origin(producer, sequence, epoch, f"{sequence % 100:02}{what[:2]}".encode())


def noted(*origins):
    ledger = Ledger()
    for origin in origins:
        assert not ledger.applied(origin)
        ledger.note(origin, 0)
    return ledger


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
    assert refusal(
        ledger.applied, Origin("p", sent), error=FailedPrecondition, match=f"the next one is {expected}"
    ) == ("sequence", str(expected))


def test_a_new_producer_begins_with_one():
    with pytest.raises(FailedPrecondition, match="up to 0"):
        Ledger().applied(Origin("p", 2))


@pytest.mark.parametrize(
    ("origin", "field", "limit"),
    [
        (Origin("", 1), "producer", "1 to 200 bytes"),
        (Origin("p" * 201, 1), "producer", "1 to 200 bytes"),
        (Origin("ß" * 100 + "p", 1), "producer", "1 to 200 bytes"),
        (Origin("\ud800" * 67, 1), "producer", "1 to 200 bytes"),
        (Origin("p", 0), "sequence", "1 to 2^63 - 1"),
        (Origin("p", -1), "sequence", "1 to 2^63 - 1"),
        (Origin("p", 2**63), "sequence", "1 to 2^63 - 1"),
        (Origin("p", 1, -1), "epoch", "0 to 2^63 - 1"),
        (Origin("p", 1, 2**63), "epoch", "0 to 2^63 - 1"),
    ],
)
def test_what_is_no_origin_is_refused(origin, field, limit):
    assert refusal(Ledger().applied, origin) == (field, limit)


@pytest.mark.parametrize("name", ["p", "p" * 200, "ß" * 100, "\ud800" * 66])
def test_names_have_up_to_200_bytes(name):
    assert not Ledger().applied(Origin(name, 1))
    assert not Ledger().committed(name, 0)


def test_numbers_go_up_to_the_greatest_int64():
    ledger = Ledger()
    ledger.note(Origin("p", 2**63 - 2, 2**63 - 1), 0)
    last = Origin("p", 2**63 - 1, 2**63 - 1)
    assert not ledger.applied(last)
    ledger.note(last, 0)
    assert ledger.applied(last)
    assert not ledger.committed("q", 2**63 - 1)
    ledger.commit("q", 2**63 - 1, 0)
    assert ledger.committed("q", 2**63 - 1)


@pytest.mark.parametrize(
    ("query", "batch", "field", "limit"),
    [
        ("", 0, "query", "1 to 200 bytes"),
        ("q" * 201, 0, "query", "1 to 200 bytes"),
        ("ß" * 101, 0, "query", "1 to 200 bytes"),
        ("q", -1, "batch", "0 to 2^63 - 1"),
        ("q", 2**63, "batch", "0 to 2^63 - 1"),
    ],
)
def test_what_is_no_batch_is_refused(query, batch, field, limit):
    for check in (Ledger().committed, Ledger().check_stage):
        assert refusal(check, query, batch) == (field, limit)


# ---------------------------------------------------------------- other data


def test_a_used_number_with_other_data_is_refused():
    ledger = noted(sent(1), sent(2), sent(3))
    for sequence in (1, 2, 3):
        assert ledger.applied(sent(sequence))
        assert refusal(
            ledger.applied,
            sent(sequence, "other"),
            error=SequenceReused,
            match=f"'p' has sent {sequence} before, with other data",
        ) == ("sequence", "4")
    assert not ledger.applied(sent(4, "other")), "what comes next carries what it likes"
    assert not ledger.applied(sent(1, "other", producer="q"))


@pytest.mark.parametrize("further", [0, 1, 5, 300])
def test_the_last_digests_and_the_first_are_remembered(further):
    last = DIGESTS_MAX + further
    ledger = noted(*(sent(sequence) for sequence in range(1, last + 1)))
    refused = set()
    for sequence in range(1, last + 1):
        assert ledger.applied(sent(sequence))
        try:
            assert ledger.applied(sent(sequence, "other"))
        except SequenceReused:
            refused.add(sequence)
    assert refused == {1, *range(further + 1, last + 1)}


def test_what_is_remembered_covers_a_stream_and_fits_into_an_image():
    assert DIGESTS_MAX == 2 * IN_FLIGHT_MAX, "as many may be begun, and as many answers on their way"
    most = sum(min(DIGESTS_MAX, max(DIGESTS_MIN, DIGESTS_ALL // n)) for n in range(1, MAX_WRITERS + 1))
    assert most * DIGEST_BYTES < VALUE_BYTES_MAX / 4, "even where each writes all it has before the next one comes"


def test_where_there_are_many_producers_each_has_its_share(monkeypatch):
    monkeypatch.setattr(module, "DIGESTS_ALL", 30)
    monkeypatch.setattr(module, "DIGESTS_MAX", 10)
    monkeypatch.setattr(module, "DIGESTS_MIN", 2)

    def remembered(producers):
        ledger = noted(*(sent(1, producer=str(i)) for i in range(producers - 1)))
        for sequence in range(1, 20):
            ledger.note(sent(sequence), 0)
        known = 0
        for sequence in range(2, 20):
            try:
                ledger.applied(sent(sequence, "other"))
            except SequenceReused:
                known += 1
        return known

    assert [remembered(n) for n in (1, 3, 4, 5, 10, 15, 16, 29)] == [10, 10, 7, 6, 3, 2, 2, 2]


@pytest.mark.parametrize("digest", [None, b"any!"])
def test_without_a_digest_a_used_number_is_taken_for_a_retry(digest):
    ledger = noted(Origin("p", 1), sent(2))
    assert ledger.applied(Origin("p", 1, 0, digest)), "it was written without one"
    assert ledger.applied(Origin("p", 2)), "it is sent without one"


def test_what_was_remembered_before_a_write_without_a_digest_is_forgotten():
    """Or the digests of earlier writes would be taken for those of later ones."""
    ledger = noted(sent(1), sent(2), Origin("p", 3), sent(4))
    assert ledger.applied(sent(2, "other"))
    assert ledger.applied(sent(3, "other"))
    for sequence in (1, 4):
        with pytest.raises(SequenceReused):
            ledger.applied(sent(sequence, "other"))


# ---------------------------------------------------------------- epochs


def test_a_higher_epoch_takes_the_name_over():
    ledger = noted(sent(1), sent(2), sent(1, "other", epoch=3))
    for sequence in (1, 2, 3, 9):
        assert refusal(
            ledger.applied, sent(sequence, epoch=2), error=ProducerFenced, match="epoch 3 has taken the name over"
        ) == ("epoch", "3")
    with pytest.raises(ProducerFenced):
        ledger.applied(Origin("p", 3))
    assert ledger.applied(sent(1, "other", epoch=3))
    with pytest.raises(SequenceReused, match="The next number is 2"):
        ledger.applied(sent(1, epoch=3))
    assert not ledger.applied(sent(2, epoch=3)), "what an earlier epoch sent under this number does not matter"


def test_a_higher_epoch_begins_with_one_and_only_a_write_takes_over():
    ledger = noted(sent(1), sent(2))
    assert refusal(
        ledger.applied, sent(3, epoch=1), error=FailedPrecondition, match="up to 0 of epoch 1: the next one is 1"
    ) == ("sequence", "1")
    assert not ledger.applied(sent(1, epoch=1))
    assert not ledger.applied(sent(3)), "nothing of epoch 1 was applied yet"
    assert ledger.applied(sent(2))


def test_the_digests_of_an_epoch_are_its_own():
    ledger = noted(sent(1), sent(2), sent(3), Origin("p", 1, 1), sent(2, epoch=1))
    assert ledger.applied(sent(1, "other", epoch=1)), "its first digest is not known"
    assert ledger.applied(sent(2, epoch=1))


# ---------------------------------------------------------------- batches


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


def test_a_commit_of_other_parts_under_a_used_number_changes_nothing():
    """A batch is the same by its number, as a query that starts again stages parts with other tokens."""
    ledger = Ledger()
    ledger.stage("a", "q", 7, 10, 0, None)
    ledger.stage("of another client", "q", 7, 10, 0, None)
    ledger.commit("q", 7, 0)
    assert ledger.committed("q", 7), "whatever parts the next commit names"
    assert not ledger.parts, "those that were staged for the same batch are dropped"
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


def test_who_was_silent_for_just_a_week_is_remembered(monkeypatch):
    monkeypatch.setattr(module, "MAX_WRITERS", 2)
    ledger = Ledger()
    ledger.note(Origin("a", 1), 0)
    ledger.note(Origin("b", 1), 1)
    ledger.note(Origin("c", 1), FORGET_AFTER_NS + 1)
    assert not ledger.applied(Origin("a", 1))
    assert ledger.applied(Origin("b", 1))


def test_there_are_only_so_many_parts(monkeypatch):
    monkeypatch.setattr(module, "MAX_PARTS", 2)
    ledger = Ledger()
    for token in "ab":
        ledger.check_stage("q", 1)
        ledger.stage(token, "q", 1, 10, 0, None)
    assert refusal(ledger.check_stage, "q", 1, error=ResourceExhausted) == ("batch", "2 parts")
    ledger.commit("q", 1, 0)
    ledger.check_stage("q", 2)


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
    ledger = noted(*(sent(sequence, producer="s") for sequence in range(1, 301)), sent(1, epoch=4, producer="e"))
    ledger.note(Origin("p", 41), 3)
    ledger.note(Origin("without", 1, 2), 3)
    ledger.note(sent(1, producer="once"), 3)
    ledger.note(Origin("once", 2), 3)
    ledger.commit("q", 12, 4)
    ledger.stage("a", "q", 13, 10, 5, None)
    again = Ledger.of(ledger.document())
    assert again.document() == ledger.document()
    assert again.applied(Origin("p", 41))
    for sequence in (1, *range(301 - DIGESTS_MAX, 301)):
        with pytest.raises(SequenceReused):
            again.applied(sent(sequence, "other", producer="s"))
    for name, epoch in (("e", 4), ("once", 0)):
        with pytest.raises(SequenceReused):
            again.applied(sent(1, "other", epoch, name))
    for name in ("e", "without"):
        with pytest.raises(ProducerFenced):
            again.applied(sent(1, epoch=1, producer=name))
    assert again.committed("q", 12)
    assert again.named("q", 13, ["a"]) == ledger.named("q", 13, ["a"])
    assert Ledger.of(ledger.document(parts=False)).parts == {}


def test_a_copy_does_not_change_with_it():
    ledger = noted(sent(1), sent(2))
    ledger.commit("q", 1, 4)
    ledger.stage("a", "q", 2, 10, 5, None)
    copied, before = ledger.copy(), ledger.document()
    assert copied.document() == before
    ledger.note(sent(3), 9)
    ledger.note(sent(1, producer="q"), 9)
    ledger.commit("r", 1, 9)
    ledger.stage("b", "q", 2, 10, 5, None)
    ledger.drop(["a", "b"])
    assert copied.document() == before


def test_a_document_of_an_earlier_version_has_no_fences():
    old = {"producers": {"p": [41, 3]}, "queries": {"q": [12, 4]}, "next_part": 1, "parts": {}}
    ledger = Ledger.of(old)
    assert ledger.applied(sent(41)), "with whatever data, as none is known"
    assert ledger.committed("q", 12)
    ledger.note(sent(42), 5)
    with pytest.raises(SequenceReused):
        ledger.applied(sent(42, "other"))
    assert ledger.applied(sent(41, "other"))
    assert old.items() <= Ledger.of(old).document().items(), "and what it had stands where it stood"


# ---------------------------------------------------------------- numbers with gaps


def behind(after, sequence, epoch=0):
    return Origin("p", sequence, epoch, b"data", after=after)


def test_numbers_with_gaps_go_on_behind_the_last_one():
    ledger = noted(behind(0, 100), behind(100, 150), behind(150, 151))
    for write in (behind(0, 100), behind(20, 50), behind(100, 150), behind(150, 151), behind(0, 151)):
        assert ledger.applied(write), "a number stands for its data, wherever the write was cut"
    assert not ledger.applied(behind(151, 152))
    assert not ledger.applied(behind(151, 2**63 - 1))


@pytest.mark.parametrize(
    ("after", "field", "limit"), [(150, "after", "151"), (0, "after", "151"), (152, "sequence", "152")]
)
def test_a_write_that_overlaps_or_leaves_a_gap_is_refused(after, field, limit):
    ledger = noted(behind(0, 100), behind(100, 151))
    assert refusal(ledger.applied, behind(after, 200), error=FailedPrecondition) == (field, limit)
    assert not ledger.applied(behind(151, 200)), "and nothing has changed"


def test_numbers_with_gaps_go_on_under_a_higher_epoch():
    ledger = noted(behind(0, 100), behind(100, 200, epoch=3))
    assert refused(ledger.applied, behind(200, 300, epoch=2), error=ProducerFenced).limit == "3"
    assert ledger.applied(behind(0, 100, epoch=4))
    with pytest.raises(FailedPrecondition, match="send what is behind"):
        ledger.applied(behind(100, 300, epoch=4))
    assert not ledger.applied(behind(200, 300, epoch=4))


def test_no_digest_of_an_earlier_number_is_taken_for_one_in_a_gap():
    ledger = noted(sent(1), sent(2), Origin("p", 10, 0, b"tenn", after=2), sent(11))
    assert ledger.applied(sent(11))
    for sequence in (8, 9):
        assert ledger.applied(Origin("p", sequence, 0, b"else")), "its digest is not known"
    for sequence in (1, 10, 11):
        with pytest.raises(SequenceReused):
            ledger.applied(Origin("p", sequence, 0, b"else"))
    assert Ledger.of(ledger.document()).document() == ledger.document()


@pytest.mark.parametrize(("after", "sequence"), [(-1, 1), (1, 1), (5, 4)])
def test_after_is_below_the_number(after, sequence):
    assert refused(Ledger().applied, behind(after, sequence)).field == "after"
