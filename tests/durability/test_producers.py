"""Producers against a slow model: numbers, epochs, retries, other data, restarts."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability import formats as values
from sash.durability.records import commands as records
from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash_engine.errors import (
    FailedPrecondition,
    ProducerFenced,
    ResourceExhausted,
    SashError,
    SequenceReused,
)
from sash_engine.windows.batches import ledger
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.batches.ledger import FORGET_AFTER_NS
from sash_engine.windows.spec.window import WindowSpec
from tests.support.failing import parts_of
from tests.support.stored import running

DAY_NS = 86_400 * 10**9
WEEK_NS = FORGET_AFTER_NS
MOST, FEWEST, ALL, WRITERS = 4, 2, 5, 3
"""Digests of a producer, at most and at least, and of all together; producers that a window remembers."""

SPEC = WindowSpec.parse({"name": "w", "time_unit": "none", "aggregates": {"all": {"function": "collect"}}})


def bulk(*pairs):
    times, numbers = zip(*pairs, strict=True) if pairs else ((), ())
    return BulkInsert(Batch(np.array(times, np.int64), {"value": np.array(numbers, np.float64)}))


def operation(kind, pairs):
    if kind == "evict":
        return BulkEvict(pairs[0][0])
    return bulk(*pairs) if kind == "bulk" else Insert(pairs[0][0], {"value": pairs[0][1]})


# ---------------------------------------------------------------- the model


@dataclass
class Applied:
    """All that was applied of a producer's epoch, and how many of its last writes are remembered."""

    epoch: int
    writes: list = field(default_factory=list)
    remembered: int = 0
    at_ns: int = 0


class Model:
    """Producers and entries of a window, in the plainest way: every write is kept, and compared as a whole."""

    def __init__(self):
        self.producers = {}
        self.entries = []

    def write(self, name, epoch, sequence, write, now_ns):
        """Apply a write, or not; return a word for what becomes of it."""
        known = self.producers.get(name, Applied(0))
        if epoch < known.epoch:
            return "fenced"
        if epoch > known.epoch:
            known = Applied(epoch)
        last = len(known.writes)
        if sequence > last + 1:
            return "gap"
        if sequence <= last:
            remembered = sequence == 1 or sequence > last - known.remembered
            return "reused" if remembered and known.writes[sequence - 1] != write else "again"
        if name not in self.producers and len(self.producers) == WRITERS:
            silent = [each for each, other in self.producers.items() if now_ns - other.at_ns > WEEK_NS]
            if not silent:
                return "full"
            for each in silent:
                del self.producers[each]
        share = min(MOST, max(FEWEST, ALL // max(len(self.producers), 1)))
        known.writes.append(write)
        known.remembered, known.at_ns = min(known.remembered + 1, share), now_ns
        self.producers[name] = known
        self._apply(*write)
        return "applied"

    def _apply(self, kind, pairs):
        if kind == "evict":
            self.entries = [(time, value) for time, value in self.entries if time > pairs[0][0]]
        else:
            self.entries += pairs
            self.entries.sort(key=lambda pair: pair[0])


WORDS = {
    SequenceReused: "reused",
    ProducerFenced: "fenced",
    FailedPrecondition: "gap",
    ResourceExhausted: "full",
}


async def outcome(storage, name, epoch, sequence, write):
    try:
        result = await storage.write("w", operation(*write), Origin(name, sequence, epoch))
    except SashError as error:
        return WORDS[type(error)]
    return "again" if result.already_applied else "applied"


async def follow(history, checkpoint_bytes):
    server, storage = await running(SPEC, checkpoint_bytes=checkpoint_bytes)
    model = Model()
    before = []  # writes, as they were sent
    for step, *what in history:
        window = storage.find("w")
        remembered = window.ledger.document()
        now_ns = server.clock.now_ns()
        if step == "writes":
            sent, expected = [], []
            for name, epoch, ahead, write in what[0]:
                known = model.producers.get(name, Applied(0))
                epoch = max(known.epoch + epoch, 0)
                next_ = len(known.writes) + 1 if known.epoch == epoch else 1
                sent.append((name, epoch, max(next_ + ahead, 1), write))
                expected.append(model.write(*sent[-1], now_ns))
            # They are begun in this order, and none waits for the answer to another.
            assert await asyncio.gather(*(outcome(storage, *each) for each in sent)) == expected
            before += sent
        elif step == "again":
            for each in before[-what[0] :]:
                assert await outcome(storage, *each) == model.write(*each, now_ns)
        elif step == "wait":
            server.clock.advance(what[0] * DAY_NS)
        elif step == "import":
            exported = list(storage.export("w"))
            await storage.delete("w")
            await storage.restore(parts_of(exported), "w")
            assert storage.find("w").ledger.document() == remembered
        else:
            storage = await (server.restart() if step == "restart" else server.crash())
            assert storage.find("w").ledger.document() == remembered, "a replay remembers the same"
        check(storage.find("w").ledger, model)
        answer = storage.find("w").query(None, [], None)[0]
        assert answer.aggregates["all"] == [value for _, value in model.entries] or not model.entries
        assert answer.entries == len(model.entries)
    await storage.stop(5)


def check(found, model):
    """Every number that was used is answered as the model says, of the same data and of other data."""
    for name, known in model.producers.items():
        last = len(known.writes)
        for sequence in range(1, last + 1):
            remembered = sequence == 1 or sequence > last - known.remembered
            try:
                again = found.applied(Origin(name, sequence, known.epoch, b"none"))
            except SequenceReused:
                again = False
            assert again != remembered, (name, sequence)
        assert not found.applied(Origin(name, last + 1, known.epoch))


# Few names, numbers and values, so that all that may become of a write is frequent.
pairs = st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0]))
writes = st.tuples(
    st.sampled_from(["p", "p", "q", "r", "s"]),
    st.sampled_from([0, 0, 0, 0, 0, 0, 0, -1, 1, 2]),  # epochs from the last one on
    st.sampled_from([0, 0, 0, 0, 0, 0, -1, -2, -3, -4, -5, 1]),  # numbers from the next one on
    st.one_of(
        st.tuples(st.just("insert"), st.tuples(pairs)),
        st.tuples(st.just("bulk"), st.lists(pairs, max_size=2).map(tuple)),
        st.tuples(st.just("evict"), st.tuples(st.tuples(st.integers(0, 3)))),
    ),
)
steps = st.one_of(
    st.tuples(st.just("writes"), st.lists(writes, min_size=1, max_size=6)),
    st.tuples(st.just("writes"), st.lists(writes, min_size=1, max_size=6)),
    st.tuples(st.just("again"), st.integers(1, 8)),
    st.tuples(st.just("wait"), st.integers(1, 5)),
    st.sampled_from([("restart",), ("crash",), ("import",)]),
)


@given(st.lists(steps, max_size=25), st.sampled_from([300, 10**6]))
def test_any_history_of_producers_equals_the_model(history, checkpoint_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "DIGESTS_MAX", MOST)
        patch.setattr(ledger, "DIGESTS_MIN", FEWEST)
        patch.setattr(ledger, "DIGESTS_ALL", ALL)
        patch.setattr(ledger, "MAX_WRITERS", WRITERS)
        asyncio.run(follow(history, checkpoint_bytes))


# ---------------------------------------------------------------- by hand


async def test_a_second_client_of_the_same_name_is_refused_at_its_first_write():
    """However many the first one has sent: a window remembers the first digest, and the last ones."""
    server, storage = await running(SPEC)
    for sequence in range(1, 701):
        await storage.write("w", bulk((sequence, 1.0)), Origin("p", sequence))
    for sequence in (1, 700):
        with pytest.raises(SequenceReused, match="Two clients may use the same name"):
            await storage.write("w", bulk((sequence, 2.0)), Origin("p", sequence))
        assert (await storage.write("w", bulk((sequence, 1.0)), Origin("p", sequence))).already_applied
    storage = await server.crash()
    with pytest.raises(SequenceReused):
        await storage.write("w", bulk((1, 2.0)), Origin("p", 1))
    assert storage.find("w").query(None, [], None)[0].entries == 700


async def test_a_used_number_of_another_kind_of_write_is_refused():
    _, storage = await running(SPEC)
    await storage.write("w", Insert(1, {"value": 1.0}), Origin("p", 1))
    for other in (bulk((1, 1.0)), BulkEvict(1), Insert(1, {"value": 1.0}, "k")):
        with pytest.raises(SequenceReused):
            await storage.write("w", other, Origin("p", 1))
    again = Insert(1, {"value": 1}, answer=True)  # what it asks for beside is not what it writes
    assert (await storage.write("w", again, Origin("p", 1))).already_applied


async def test_what_is_refused_leaves_the_producer_as_it_was():
    server, storage = await running(SPEC)
    await storage.write("w", bulk((1, 1.0)), Origin("p", 1))
    records_before, before = storage.status().records, storage.find("w").ledger.document()
    for origin, wrong in [
        (Origin("p", 1), bulk((1, 2.0))),
        (Origin("p", 1, 1), Insert(1, {"value": "no number"})),
        (Origin("p", 2), Insert(1, {})),
        (Origin("p", 2, 1), bulk((1, 2.0))),
    ]:
        with pytest.raises(SashError):
            await storage.write("w", wrong, origin)
    await server.settled()
    assert storage.find("w").ledger.document() == before
    assert storage.status().records == records_before
    assert not (await storage.write("w", bulk((2, 2.0)), Origin("p", 2))).already_applied


def test_a_record_says_who_wrote_what():
    origin = records.signed(Origin("p", 3, 2), bulk((1, 2.0)))
    written = records.Write(bulk((1, 2.0)), 17, origin).record()
    assert written[:7] == ["numbered", 17, "p", 3, 2, origin.digest, "bulk_insert"]
    again = records.read(values.unpack(values.pack(written)), "a record")
    assert (again.now_ns, again.origin) == (17, origin)
    assert again.record() == written
    assert records.Write(BulkEvict(5), 17).record() == ["bulk_evict", 17, None, None, 5, None]


def test_a_record_of_an_earlier_version_has_no_epoch_and_no_digest():
    old = ["insert", 17, "p", 3, 5, {"value": 1.0}, None]
    write = records.read(old, "a record")
    assert write.origin == Origin("p", 3, 0, None)
    assert write.operation == Insert(5, {"value": 1.0})


async def test_a_journal_of_an_earlier_version_is_applied_as_it_was(monkeypatch):
    """Numbers without digests: what is sent again is taken for a retry, and later numbers are compared."""
    server, storage = await running(SPEC)

    def old(self):
        origin = (None, None) if self.origin is None else (self.origin.producer, self.origin.sequence)
        return [self.operation.kind, self.now_ns, *origin, *self.operation.fields()]

    with monkeypatch.context() as patch:
        patch.setattr(records.Write, "record", old)
        for sequence in (1, 2):
            await storage.write("w", bulk((sequence, 1.0)), Origin("p", sequence))
        storage = await server.crash()
    for sequence in (1, 2):
        assert (await storage.write("w", bulk((9, 9.0)), Origin("p", sequence))).already_applied
    await storage.write("w", bulk((3, 1.0)), Origin("p", 3))
    storage = await server.crash()
    with pytest.raises(SequenceReused):
        await storage.write("w", bulk((9, 9.0)), Origin("p", 3))
    assert (await storage.write("w", bulk((9, 9.0)), Origin("p", 2))).already_applied


async def test_a_commit_that_names_other_parts_of_a_committed_batch_is_answered_as_applied():
    """It is not told from a retry: a query that starts again stages its batch again, and its parts have other names."""
    _, storage = await running(SPEC)
    mine = await storage.write("w", StageBatch(bulk((1, 1.0)).batch, "q", 0))
    theirs = await storage.write("w", StageBatch(bulk((2, 2.0)).batch, "q", 0))
    assert (await storage.write("w", Commit("q", 0, [mine.stage]))).inserted == 1
    assert (await storage.write("w", Commit("q", 0, [theirs.stage]))).already_applied
    assert storage.find("w").query(None, [], None)[0].aggregates["all"] == [1.0]
    with pytest.raises(FailedPrecondition, match="committed already"):
        await storage.write("w", StageBatch(bulk((2, 2.0)).batch, "q", 0))
