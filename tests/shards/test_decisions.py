"""Decisions of numbered writes go with an export, whatever number of shards it comes from and goes to."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sash.calls import each
from sash.durability.records.commands import Admit, BulkInsert
from sash.plane import Plane
from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition, ProducerFenced, SashError, SequenceReused
from sash_engine.windows.answers import Admission
from sash_engine.windows.batches import ledger
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.questions import Limit
from tests.shards.test_sharded_plane import KEYS, bulk, entries, spec
from tests.support.sharded import hosts, in_process, single

LIMITS = (Limit("n", 20, "<=", 2),)


def made(count: int) -> Plane:
    return single(ManualClock()) if count == 1 else in_process(count)


async def admit(plane: Plane, rows: Any, number: int) -> Admission:
    return await plane.write("w", Admit(bulk(rows), LIMITS), Origin("p", number))


async def moved(plane: Plane, count: int) -> Plane:
    other = made(count)
    await other.restore(each(await plane.export("w")))
    return other


writes = st.lists(st.tuples(st.booleans(), entries), min_size=1, max_size=8)


@settings(deadline=None)
@given(writes, st.lists(st.integers(1, 5), min_size=2, max_size=4))
async def test_every_number_has_the_same_decision_after_exports(history: Any, counts: list[int]) -> None:
    plane = made(counts[0])
    await plane.create(spec())
    decided = {}
    for number, (decides, rows) in enumerate(history, 1):
        if decides:
            decided[number] = rows, (await admit(plane, rows, number)).admitted
        else:
            await plane.write("w", BulkInsert(bulk(rows)), Origin("p", number))
    for count in counts[1:]:
        plane = await moved(plane, count)
        entries = (await plane.window("w")).entries
        for number, (rows, admitted) in decided.items():
            again = await admit(plane, rows, number)
            assert (again.already_applied, again.admitted) == (True, admitted)
            if rows:
                with pytest.raises(SequenceReused):
                    await admit(plane, rows[1:], number)
        assert (await plane.window("w")).entries == entries
        # What is decided after an export goes with the next one, too.
        number = len(history) + 1 + len([n for n in decided if n > len(history)])
        rows = [(key, time, 1) for time, key in enumerate(KEYS * 3)]
        decided[number] = rows, (await admit(plane, rows, number)).admitted


async def test_over_processes_as_in_one() -> None:
    rows = [(key, time, 1) for time, key in enumerate(KEYS * 3)]
    async with hosts(4) as of:
        await of[0].plane.create(spec())
        first = await admit(of[0].plane, rows, 1)
        assert 0 < first.inserted < len(rows)
        assert (await of[1].plane.window("w")).refused == first.refused
        assert (await admit(of[1].plane, rows, 1)).admitted == first.admitted
        assert (await admit(of[1].plane, rows[:1], 2)).admitted == [False]
        for count in (1, 3):
            other = await moved(of[0].plane, count)
            assert (await admit(other, rows, 1)).admitted == first.admitted
            assert (await admit(other, rows[:1], 2)).admitted == [False]


@given(st.lists(entries.filter(len), min_size=2, max_size=12), st.integers(2, 4), st.integers(1, 4))
async def test_what_some_shards_have_forgotten_is_refused_and_not_made_up(
    history: Any, source: int, target: int
) -> None:
    """Rows of each write are on few shards, so each shard has its own numbers to remember."""
    with pytest.MonkeyPatch.context() as small:
        small.setattr(ledger, "DECIDED_BYTES", 4)
        plane = made(source)
        await plane.create(spec())
        decided = [(await admit(plane, rows, number)).admitted for number, rows in enumerate(history, 1)]
        plane = await moved(plane, target)
        for number, (rows, admitted) in enumerate(zip(history, decided, strict=True), 1):
            with contextlib.suppress(FailedPrecondition):
                assert (await admit(plane, rows, number)).admitted == admitted
                continue
            assert number < len(history), "the last decision is remembered"


async def test_what_one_shard_has_forgotten_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "DIGESTS_ALL", 4)
    monkeypatch.setattr(ledger, "DIGESTS_MIN", 1)
    plane, rows = in_process(4), [(key, time, 1) for time, key in enumerate(KEYS * 3)]
    await plane.create(spec())
    for other in "qrst":  # so it remembers less of each producer
        await plane.shards.hosted[1].local.write("w", BulkInsert(bulk([])), Origin(other, 1))
    decided = [(await admit(plane, rows, number)).admitted for number in (1, 2, 3)]
    copy = await moved(plane, 3)
    for number in (1, 2):
        with pytest.raises(FailedPrecondition, match="not remembered"):
            await admit(copy, rows, number)
    assert (await admit(copy, rows, 3)).admitted == decided[2]


async def test_a_number_with_other_data_on_each_shard_has_no_decision_of_the_whole() -> None:
    plane = in_process(3)
    await plane.create(spec())
    rows = [(key, 1, 1) for key in KEYS]
    for shard, part in Admit(bulk(rows), LIMITS).split("w", spec(), 3).items():
        part.mine = None
        await plane.shards.hosted[shard].local.write("w", part, Origin("p", 1))
    copy = await moved(plane, 2)
    with pytest.raises(FailedPrecondition, match="not remembered"):
        await admit(copy, rows, 1)


async def test_a_write_that_some_shards_have_is_no_decision_of_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = in_process(4)
    await plane.create(spec())
    rows = [(key, time, 1) for time, key in enumerate(KEYS)]
    shard, failed = plane.shards.hosted[2].local, []

    async def away(*_: Any) -> None:
        failed.append(True)
        raise SashError("away")

    with monkeypatch.context() as broken:
        broken.setattr(type(shard), "write", _but(type(shard).write, shard, away))
        with pytest.raises(SashError):
            await admit(plane, rows, 1)
    assert failed
    copy = await moved(plane, 3)
    with pytest.raises(ProducerFenced):
        await admit(copy, rows, 1)
    # Sent again, the rest is decided, and the parts that were applied are as they were.
    assert (await admit(plane, rows, 1)).admitted == [True] * len(rows)
    assert (await admit(await moved(plane, 3), rows, 1)).admitted == [True] * len(rows)


def _but(usual: Any, shard: Any, other: Any) -> Any:
    def write(self: Any, *args: Any) -> Any:
        return other() if self is shard else usual(self, *args)

    return write
