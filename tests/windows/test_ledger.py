"""Who wrote what: retries, gaps, batches in parts, and writers that are forgotten."""

import pytest

from sash.durability.formats import VALUE_BYTES_MAX
from sash.rpc.pipeline import IN_FLIGHT_MAX
from sash_engine.errors import (
    FailedPrecondition,
    InvalidArgument,
    ProducerFenced,
    ResourceExhausted,
    SashError,
    SequenceReused,
)
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


def sent(sequence, what="data", epoch=0, producer="p", after=None):
    """A write as the ledger sees it; `what` stands for what it carries."""
    return Origin(producer, sequence, epoch, f"{sequence % 100:02}{what[:2]}".encode(), after=after)


def behind(after, sequence, epoch=0):
    """A write whose number goes on behind another one; it stands for its data."""
    return Origin("p", sequence, epoch, b"data", after=after)


def plain(sequence, epoch=0, producer="p", after=None):
    """A write without a digest."""
    return Origin(producer, sequence, epoch, after=after)


def noted(*origins):
    ledger = Ledger()
    for origin in origins:
        assert not ledger.applied(origin)
        ledger.note(origin, 0)
    return ledger


def told(ledger, origin):
    """Whether a write was applied; or how it is refused, by what and with which limit."""
    try:
        return ledger.applied(origin)
    except SashError as error:
        return type(error), error.field, error.limit


def gap(limit):
    return FailedPrecondition, "sequence", str(limit)


def other(limit):
    """Other data under a used number; what comes next."""
    return SequenceReused, "sequence", str(limit)


NO_NAME = InvalidArgument, "producer", "1 to 200 bytes"
NO_NUMBER = InvalidArgument, "sequence", "1 to 2^63 - 1"
NO_AFTER = InvalidArgument, "after", "0 to sequence - 1"
NO_EPOCH = InvalidArgument, "epoch", "0 to 2^63 - 1"
FENCED = ProducerFenced, "epoch", "3"
OVERLAP = FailedPrecondition, "after", "151"
THREE = sent(1), sent(2), sent(3)
HISTORIES = {
    "a producer goes on by one, and what it repeats is known": (
        [plain(1), plain(2), plain(3)],
        [(plain(1), True), (plain(2), True), (plain(3), True), (plain(4), False), (plain(1, producer="q"), False)],
    ),
    "a gap is refused, and says what comes next": ([*THREE], [(plain(5), gap(4)), (plain(9), gap(4))]),
    "a new producer begins with one": ([], [(plain(2), gap(1)), (plain(1), False)]),
    "names have up to 200 bytes": (
        [],
        [(plain(1, producer=name), False) for name in ("p", "p" * 200, "ß" * 100, "\ud800" * 66)]
        + [(plain(1, producer=name), NO_NAME) for name in ("", "p" * 201, "ß" * 100 + "p", "\ud800" * 67)],
    ),
    "numbers are those of an int64": (
        [],
        [(plain(number), NO_NUMBER) for number in (0, -1, 2**63)]
        + [(plain(1, epoch), NO_EPOCH) for epoch in (-1, 2**63)]
        + [(behind(after, number), NO_AFTER) for after, number in ((-1, 1), (1, 1), (5, 4))],
    ),
    "a used number with other data is refused": (
        [*THREE],
        [(sent(number, "other"), other(4)) for number in (1, 2, 3)]
        + [(sent(2), True), (sent(4, "other"), False), (sent(1, "other", producer="q"), False)],
    ),
    "without a digest a used number is taken for a retry": (
        [plain(1), sent(2)],
        [(Origin("p", 1, 0, b"any!"), True), (plain(2), True)],
    ),
    "digests before a write without one are forgotten, or they would be taken for those of later ones": (
        [sent(1), sent(2), plain(3), sent(4)],
        [(sent(number, "other"), known) for number, known in ((1, other(5)), (2, True), (3, True), (4, other(5)))],
    ),
    "a higher epoch takes the name over": (
        [sent(1), sent(2), sent(1, "other", epoch=3)],
        [(sent(number, epoch=2), FENCED) for number in (1, 2, 3, 9)]
        + [(plain(3), FENCED), (sent(1, "other", epoch=3), True), (sent(1, epoch=3), other(2))]
        + [(sent(2, epoch=3), False)],
    ),
    "a higher epoch begins with one, and only a write takes over": (
        [sent(1), sent(2)],
        [(sent(3, epoch=1), gap(1)), (sent(1, epoch=1), False), (sent(3), False), (sent(2), True)],
    ),
    "the digests of an epoch are its own": (
        [*THREE, plain(1, 1), sent(2, epoch=1)],
        [(sent(1, "other", epoch=1), True), (sent(2, epoch=1), True)],
    ),
    "numbers with gaps stand for their data, wherever the write was cut": (
        [behind(0, 100), behind(100, 150), behind(150, 151)],
        [(behind(*write), True) for write in ((0, 100), (20, 50), (100, 150), (150, 151), (0, 151))]
        + [(behind(151, 152), False), (behind(151, 2**63 - 1), False)],
    ),
    "a write that overlaps, or leaves a gap, is refused": (
        [behind(0, 100), behind(100, 151)],
        [
            (behind(150, 200), OVERLAP),
            (behind(0, 200), OVERLAP),
            (behind(152, 200), gap(152)),
            (behind(151, 200), False),
        ],
    ),
    "numbers with gaps go on under a higher epoch": (
        [behind(0, 100), behind(100, 200, 3)],
        [
            (behind(200, 300, 2), FENCED),
            (behind(0, 100, 4), True),
            (behind(100, 300, 4), (FailedPrecondition, "after", "200")),
            (behind(200, 300, 4), False),
        ],
    ),
    "no digest of an earlier number is taken for one in a gap": (
        [sent(1), sent(2), sent(10, after=2), sent(11)],
        [(sent(11), True), (sent(8, "other"), True), (sent(9, "other"), True)]
        + [(sent(number, "other"), other(12)) for number in (1, 10, 11)],
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_what_was_applied_is_known_and_what_cannot_be_is_refused(name):
    before, asked = HISTORIES[name]
    ledger = noted(*before)
    for again in (ledger, Ledger.of(ledger.document())):
        for origin, expected in asked:
            assert told(again, origin) == expected, origin


def test_an_error_says_who_has_sent_what_and_what_comes_next():
    ledger = noted(*THREE, sent(1, epoch=3))
    for origin, error, says in (
        (sent(1, "other", epoch=3), SequenceReused, "'p' has sent 1 before, with other data.*The next number is 2"),
        (sent(9, epoch=3), FailedPrecondition, "up to 1 of epoch 3: the next one is 2"),
        (sent(1, epoch=2), ProducerFenced, "epoch 3 has taken the name over"),
        (behind(0, 300, 3), FailedPrecondition, "send what is behind"),
    ):
        refused(ledger.applied, origin, error=error, match=says)


def test_numbers_go_up_to_the_greatest_int64():
    ledger, last = Ledger(), plain(2**63 - 1, 2**63 - 1)
    ledger.note(plain(2**63 - 2, 2**63 - 1), 0)
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


@pytest.mark.parametrize("further", [0, 1, 5, 300])
def test_the_last_digests_and_the_first_are_remembered(further):
    last = DIGESTS_MAX + further
    ledger = noted(*(sent(sequence) for sequence in range(1, last + 1)))
    assert all(ledger.applied(sent(sequence)) for sequence in range(1, last + 1))
    refused = {sequence for sequence in range(1, last + 1) if told(ledger, sent(sequence, "other")) is not True}
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
        return sum(told(ledger, sent(sequence, "other")) == other(20) for sequence in range(2, 20))

    assert [remembered(n) for n in (1, 3, 4, 5, 10, 15, 16, 29)] == [10, 10, 7, 6, 3, 2, 2, 2]


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
    refused(ledger.check_stage, "q", 7, error=FailedPrecondition, match="committed already")


def test_a_commit_names_parts_that_are_there_and_its_own():
    ledger = Ledger()
    ledger.stage("a", "q", 7, 10, 0, None)
    refused(ledger.named, "q", 7, ["a", "b"], error=FailedPrecondition, match="may have expired")
    refused(ledger.named, "q", 8, ["a"], error=FailedPrecondition, match="batch 7 of query 'q'")
    refused(ledger.named, "q", 7, ["a", "a"], match="twice")


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
    asked = Origin("c", 1), FORGET_AFTER_NS
    assert refusal(ledger.check_room, *asked, error=ResourceExhausted) == ("producer", "2")
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
    refused(ledger.check_commit, "new", FORGET_AFTER_NS, error=ResourceExhausted)
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
        assert told(again, sent(sequence, "other", producer="s")) == other(301)
    for name, epoch, number in (("e", 4, 2), ("once", 0, 3)):
        assert told(again, sent(1, "other", epoch, name)) == other(number)
    for name, epoch in (("e", 4), ("without", 2)):
        assert told(again, sent(1, epoch=1, producer=name)) == (ProducerFenced, "epoch", str(epoch))
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
    assert told(ledger, sent(42, "other")) == other(43)
    assert ledger.applied(sent(41, "other"))
    assert old.items() <= Ledger.of(old).document().items(), "and what it had stands where it stood"
