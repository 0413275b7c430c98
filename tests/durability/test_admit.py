"""Writes that decide, stored: the same number has the same decision for ever, and a replay decides nothing."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability.records.commands import Admit, BulkEvict, BulkInsert, Insert, takes_long
from sash.runtime import slices
from sash_engine.errors import FailedPrecondition, SequenceReused
from sash_engine.windows.batches import ledger
from sash_engine.windows.batches.batch import Batch, Coded, Origin
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Limit, Query
from tests.support.failing import parts_of
from tests.support.stored import running, spec

SPEC = spec(aggregates={"n": {"function": "count"}, "sum": {"function": "sum"}}, slide={"max_age": 1000})
THREE = (Limit("n", 10, "<=", 3),)


def bulk(*rows):
    times = np.array([time for _, time, _ in rows], np.int64)
    values = np.array([value for _, _, value in rows], np.int64)
    return Batch(times, {"value": values}, Coded.of([key for key, _, _ in rows]))


def entries(storage):
    found = []
    for batch in storage.find("w").reader.entries(EntriesQuery(keys=ALL_KEYS)):
        found += zip(batch.keys.decode().tolist(), batch.times.tolist(), batch.columns["value"].tolist(), strict=True)
    return found


row = st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 3))
writes = st.lists(
    st.tuples(st.sampled_from(["admit", "admit", "insert", "evict"]), st.lists(row, min_size=1, max_size=9))
)


@given(writes, st.sampled_from(["crash", "restart"]))
def test_every_number_has_the_same_decision_after_a_start(history, how):
    async def run():
        server, storage = await running(SPEC)
        decided, epoch = {}, 0
        for number, (step, rows) in enumerate(history, 1):
            command = {"admit": Admit(bulk(*rows), THREE), "insert": BulkInsert(bulk(*rows))}.get(step)
            command = command or BulkEvict(rows[0][1] // 2)
            result = await storage.write("w", command, Origin("p", number, epoch))
            if step == "admit":
                decided[number] = rows, result.admitted
        was = entries(storage)
        storage = await (server.crash() if how == "crash" else server.restart())
        assert entries(storage) == was
        for number, (rows, admitted) in decided.items():
            again = await storage.write("w", Admit(bulk(*rows), THREE), Origin("p", number, epoch))
            assert again.already_applied
            assert again.admitted == admitted
            with pytest.raises(SequenceReused):
                await storage.write("w", Admit(bulk(*rows), (Limit("n", 10, "<=", 4),)), Origin("p", number, epoch))
        assert entries(storage) == was
        storage.find("w").check_invariants()
        await storage.stop(5)

    asyncio.run(run())


async def test_a_refused_write_without_a_number_leaves_no_record():
    server, storage = await running(SPEC)
    await storage.write("w", Admit(bulk(*[("a", 1, 0)] * 3), THREE))
    journal = storage.store.session.journal
    last, commits = journal.last, server.tier.attempts
    refused = await storage.write("w", Admit(bulk(("a", 2, 0), ("a", 3, 0)), THREE))
    assert (refused.refused, refused.retry_after) == (2, [9, 8])
    assert (journal.last, server.tier.attempts) == (last, commits)
    await storage.write("w", Admit(bulk(("a", 2, 0)), THREE), Origin("p", 1))
    assert journal.last == last + 1, "a number is remembered"
    late = Admit(bulk(("a", -5000, 0)), THREE)
    await storage.write("w", Insert(5000, {"value": 0}, "a"))
    assert (await storage.write("w", late)).late == 1
    assert journal.last == last + 3, "what is late is counted, and so it is logged"
    assert storage.find("w").refused == 3
    storage = await server.crash()
    assert storage.find("w").counts.late == 1
    assert storage.find("w").refused == 0, "what a limit refused is in no record"


async def test_decisions_that_are_not_remembered_are_refused_and_not_made_up(monkeypatch):
    monkeypatch.setattr(ledger, "DECIDED_BYTES", 3)
    _server, storage = await running(SPEC)
    rows = [("a", i, 0) for i in range(17)]
    for number in (1, 2, 3):
        await storage.write("w", Admit(bulk(rows[number]), THREE), Origin("p", number))
    await storage.write("w", Admit(bulk(*rows), THREE), Origin("p", 4))  # three bytes: no other has room
    whole = await storage.write("w", Admit(bulk(*rows), THREE), Origin("p", 4))
    assert whole.already_applied
    assert sum(whole.admitted) > 0
    for number in (1, 2, 3):
        with pytest.raises(FailedPrecondition, match="not remembered") as told:
            await storage.write("w", Admit(bulk(rows[number]), THREE), Origin("p", number))
        assert told.value.field == "sequence"
    await storage.write("w", Admit(bulk(rows[5]), THREE), Origin("p", 1, epoch=1))
    with pytest.raises(FailedPrecondition):
        await storage.write("w", Admit(bulk(*rows), THREE), Origin("p", 4))  # an epoch that is over


async def test_a_decision_is_not_of_more_rows_than_were_decided(monkeypatch):
    """Behind other writes a decision is known longer than its digest, so other data may come with its number."""
    monkeypatch.setattr(ledger, "DIGESTS_MAX", 2)
    _server, storage = await running(SPEC)
    await storage.write("w", Insert(1, {"value": 0}, "a"), Origin("p", 1))
    await storage.write("w", Admit(bulk(("a", 2, 0)), THREE), Origin("p", 2))
    for number in (3, 4, 5):
        await storage.write("w", Insert(number, {"value": 0}, "a"), Origin("p", number))
    assert (await storage.write("w", Admit(bulk(("a", 2, 0)), THREE), Origin("p", 2))).admitted == [True]
    with pytest.raises(FailedPrecondition, match="not remembered"):
        await storage.write("w", Admit(bulk(*[("a", 2, 0)] * 9), THREE), Origin("p", 2))


async def test_a_decision_goes_with_an_export():
    _server, storage = await running(SPEC)
    command = Admit(bulk(*[("a", i, 0) for i in range(5)]), THREE)
    first = await storage.write("w", command, Origin("p", 1))
    frames = list(storage.export("w"))
    await storage.restore(parts_of(frames), "again")
    again = await storage.write("again", Admit(bulk(*[("a", i, 0) for i in range(5)]), THREE), Origin("p", 1))
    assert again.already_applied
    assert again.admitted == first.admitted == [True] * 3 + [False] * 2


@pytest.mark.parametrize("cold", [False, True])
async def test_a_large_write_is_decided_in_slices_with_the_window_alone(cold):
    server, storage = await running(SPEC)
    rows = [("a", i // 7, 1) for i in range(700)]
    if cold:
        await storage.write("w", BulkInsert(bulk(*[("a", i // 2, 1) for i in range(200)])))
        await server.settled()
    whole = asyncio.create_task(storage.write("w", Admit(bulk(*rows), (Limit("n", 10, "<=", 30),))))
    await asyncio.sleep(0)
    others = [storage.write("w", Admit(bulk(("a", i, 1)), (Limit("n", 10, "<=", 30),))) for i in range(100)]
    answers = await asyncio.gather(whole, *others)
    assert sum(each.inserted for each in answers) > 0
    for end in range(110):
        (answer,) = await storage.ask("w", Query("a", [10], as_of=end))
        assert answer.aggregates["n"] <= 30
    was = entries(storage)
    assert entries(await server.crash()) == was


@pytest.mark.parametrize(
    ("row", "by", "old"),
    [
        (("a", 0, 1), None, True),
        (("a", 499, 1), None, False),
        (("b", 0, 1), None, False),
        (("b", 0, 1), (), True),
        (("b", 499, 1), (), False),
    ],
)
async def test_one_old_row_is_decided_in_slices(row, by, old, monkeypatch):
    """It is compared in a lookback for each newer entry: ten of them held everybody for 0.3 s."""
    monkeypatch.setattr(slices, "_SLICE_S", 0.0)
    _server, storage = await running(SPEC)
    await storage.write("w", BulkInsert(bulk(*[("a", i % 500, 1) for i in range(1500)])))
    command, window = Admit(bulk(row), (Limit("n", 999, "<=", 9, by),)), storage.find("w")
    assert takes_long(command, window, False) is old
    write, turns = asyncio.create_task(storage.write("w", command)), 0
    while not write.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await write).admitted == [row[0] == "b" and by is None]
    assert turns > 10 or not old


async def test_rows_are_old_by_the_newest_entry_that_they_are_compared_with():
    _server, storage = await running(SPEC)
    await storage.write("w", BulkInsert(bulk(("a", 500, 1), ("b", 100, 1))))
    window = storage.find("w")
    for rows, old in (
        ([("b", 100, 1)], False),
        ([("b", 99, 1)], True),
        ([("a", 100, 1)], True),
        ([("a", 500, 1), ("a", 499, 1)], True),
        ([("b", 499, 1), ("a", 499, 1)], True),
        ([("b", 500, 1), ("c", 500, 1)], False),
        ([("c", 1, 1)], False),
    ):
        assert takes_long(Admit(bulk(*rows), THREE), window, False) is old, rows


def test_a_caller_who_is_cancelled_leaves_the_whole_write_or_nothing_and_no_work(monkeypatch):
    """While it is decided, it has changed nothing: the rest is not decided at once, with all others waiting."""
    taken, steps = [0], Admit.steps

    def counted(self, window, now_ns):
        made = steps(self, window, now_ns)
        while True:
            try:
                next(made)
            except StopIteration as end:
                return end.value
            taken[0] += 1
            yield

    monkeypatch.setattr(Admit, "steps", counted)
    monkeypatch.setattr(slices, "_SLICE_S", 0.0)
    rows, limits, outcomes = [("a", i // 7, 1) for i in range(700)], (Limit("n", 10, "<=", 30),), set()

    async def run(at):
        server, storage = await running(SPEC)
        taken[0] = 0
        write = asyncio.create_task(storage.write("w", Admit(bulk(*rows), limits), Origin("p", 1)))
        while taken[0] < at and not write.done():
            await asyncio.sleep(0)
        before = taken[0]
        write.cancel()
        await asyncio.gather(write, return_exceptions=True)
        held = len(entries(storage))
        assert held or taken[0] == before
        again = await storage.write("w", Admit(bulk(*rows), limits), Origin("p", 1))
        assert again.already_applied is (held > 0)
        assert len(entries(storage)) == sum(again.admitted)
        outcomes.add(held > 0)
        was = entries(storage)
        assert entries(await server.crash()) == was
        await server.storage.stop(5)

    for at in (1, 2, 7, 20, 10**9):
        asyncio.run(run(at))
    assert outcomes == {False, True}


def test_the_last_decisions_of_an_epoch_are_kept():
    write = ledger.LastWrite(0, 0)
    for sequence in range(1, 5):
        write = write.after(Origin("p", sequence), 0, 2, bytes([sequence]))
    assert write.decided == ((3, b"\3"), (4, b"\4"))
    write = write.after(Origin("p", 5), 0, 2, None)
    assert write.decided == ((3, b"\3"), (4, b"\4")), "a write that decides nothing takes no place"
    assert write.after(Origin("p", 1, 1), 0, 2, b"x").decided == ((1, b"x"),)
