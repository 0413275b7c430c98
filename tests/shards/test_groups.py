"""Conditions on keys reach every shard, also where a question names no keys."""

import pytest

from sash.calls import each
from sash.durability.records.commands import BulkInsert
from sash_engine.clock import ManualClock
from sash_engine.errors import Unsupported
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import EntriesQuery, Grouped, Query, RangeQuery, SeriesQuery, Where
from sash_engine.windows.spec.window import WindowSpec
from tests.support.sharded import in_process

SPEC = WindowSpec.parse(
    {
        "name": "w",
        "time_unit": "none",
        "keys": ["a", "b"],
        "fields": {"v": "int64"},
        "aggregates": {"n": {"function": "count"}},
    }
)
WHERE = (Where("b", "=", ["x"]),)


async def made(shards, keys):
    """A plane with an entry of each key, at the times 0, 1, 2 and so on."""
    plane = in_process(shards, ManualClock())
    await plane.create(SPEC)
    if keys:
        await plane.write("w", BulkInsert(Batch.of(SPEC, range(len(keys)), {"v": range(len(keys))}, keys)))
    return plane


async def test_conditions_reach_every_shard():
    keys = [f"k{i}|{'x' if i % 2 else 'y'}" for i in range(30)]
    plane, odd, where = await made(3, keys), sorted(keys[1::2]), Grouped(where=WHERE)
    assert sorted(answer.key for answer in await plane.ask("w", Query(selection=where))) == odd
    (combined,) = await plane.ask("w", Query(combine=True, selection=where))
    assert combined.entries == 15
    assert (await plane.ask("w", RangeQuery(0, 99, selection=where))).entries == 15
    assert (await plane.ask("w", SeriesQuery(0, 30, "10", selection=where))).entries.tolist() == [5, 5, 5]
    found = [batch.keys async for batch in each(await plane.ask("w", EntriesQuery(where=WHERE)))]
    assert sorted(some.dictionary[code] for some in found for code in some.codes) == odd


async def test_one_shard_answers_for_groups():
    plane, grouped = await made(1, ["k|x", "l|x"]), Grouped(by=["b"])
    assert [answer.entries for answer in await plane.ask("w", Query(selection=grouped))] == [2]
    assert [answer.entries for answer in await plane.ask("w", RangeQuery(1, 1, selection=grouped))] == [1]
    (series,) = await plane.ask("w", SeriesQuery(0, 2, "1", selection=grouped))
    assert series.entries.tolist() == [1, 1]


async def test_cascades_need_a_service_of_one_shard():
    """Their keys would be on other shards than those of the window that feeds them, and in other commits."""
    fed = {"name": "fed", "from": {"window": "w", "granularity": 2}, "slide": {}}
    spec = WindowSpec.parse({**SPEC.document(), **fed})
    plane = await made(3, [])
    with pytest.raises(Unsupported, match="different shards") as refused:
        await plane.create(spec)
    assert (refused.value.field, [info.spec.name for info in await plane.windows()]) == ("from", ["w"])
    plane = await made(1, [])
    await plane.create(spec)
    await plane.write("w", BulkInsert(Batch.of(SPEC, [1, 2], {"v": [1, 2]}, ["k|x", "l|x"])))
    assert [answer.entries for answer in await plane.ask("fed", Query(selection=Grouped(by=["b"])))] == [2]
