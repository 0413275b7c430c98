"""Conditions on keys reach every shard, also where a question names no keys."""

import asyncio

import pytest

from sash.calls import each
from sash.durability.records.commands import BulkInsert
from sash_engine.clock import ManualClock
from sash_engine.errors import Unsupported
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import EntriesQuery, Grouped, Query, RangeQuery, SeriesQuery, Where
from sash_engine.windows.spec.window import WindowSpec
from tests.support.sharded import in_process

SPEC = {
    "name": "w",
    "time_unit": "none",
    "keys": ["a", "b"],
    "fields": {"v": "int64"},
    "aggregates": {"n": {"function": "count"}},
}
WHERE = (Where("b", "=", ["x"]),)


def test_conditions_reach_every_shard():
    async def ask():
        plane = in_process(3, ManualClock())
        await plane.create(WindowSpec.parse(SPEC))
        keys = [f"k{i}|{'x' if i % 2 else 'y'}" for i in range(30)]
        await plane.write("w", BulkInsert(Batch.of(WindowSpec.parse(SPEC), range(30), {"v": range(30)}, keys)))
        odd = sorted(keys[1::2])
        answers = await plane.ask("w", Query(selection=Grouped(where=WHERE)))
        assert sorted(answer.key for answer in answers) == odd
        (combined,) = await plane.ask("w", Query(combine=True, selection=Grouped(where=WHERE)))
        assert combined.entries == 15
        assert (await plane.ask("w", RangeQuery(0, 99, selection=Grouped(where=WHERE)))).entries == 15
        assert (await plane.ask("w", SeriesQuery(0, 30, "10", selection=Grouped(where=WHERE)))).entries.tolist() == [
            5,
            5,
            5,
        ]
        found = [key async for batch in each(await plane.ask("w", EntriesQuery(where=WHERE))) for key in names(batch)]
        assert sorted(found) == odd

    def names(batch):
        return [batch.keys.dictionary[code] for code in batch.keys.codes]

    asyncio.run(ask())


def test_one_shard_answers_for_groups():
    async def ask():
        plane = in_process(1, ManualClock())
        await plane.create(WindowSpec.parse(SPEC))
        await plane.write("w", BulkInsert(Batch.of(WindowSpec.parse(SPEC), [1, 2], {"v": [1, 2]}, ["k|x", "l|x"])))
        assert [answer.entries for answer in await plane.ask("w", Query(selection=Grouped(by=["b"])))] == [2]
        assert [answer.entries for answer in await plane.ask("w", RangeQuery(2, 2, selection=Grouped(by=["b"])))] == [1]
        (series,) = await plane.ask("w", SeriesQuery(1, 3, "1", selection=Grouped(by=["b"])))
        assert series.entries.tolist() == [1, 1]

    asyncio.run(ask())


def test_cascades_need_a_service_of_one_shard():
    """Their keys would be on other shards than those of the window that feeds them, and in other commits."""
    fed = {"name": "fed", "from": {"window": "w", "granularity": 2}, "slide": {}}
    spec = WindowSpec.parse({**WindowSpec.parse(SPEC).document(), **fed})

    async def ask():
        plane = in_process(3, ManualClock())
        await plane.create(WindowSpec.parse(SPEC))
        with pytest.raises(Unsupported, match="different shards") as refused:
            await plane.create(spec)
        assert (refused.value.field, [info.spec.name for info in await plane.windows()]) == ("from", ["w"])
        plane = in_process(1, ManualClock())
        await plane.create(WindowSpec.parse(SPEC))
        await plane.create(spec)
        await plane.write("w", BulkInsert(Batch.of(WindowSpec.parse(SPEC), [1, 2], {"v": [1, 2]}, ["k|x", "l|x"])))
        assert [answer.entries for answer in await plane.ask("fed", Query(selection=Grouped(by=["b"])))] == [2]

    asyncio.run(ask())
