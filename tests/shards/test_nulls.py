"""Fields that may be null, over several shards and processes: the answers are those of a single store."""

from random import Random
from typing import Any

import pytest

from sash.durability.records.commands import BulkInsert, Insert
from sash_engine.clock import ManualClock
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Grouped, Having, Query, RangeQuery, SeriesQuery, Top
from sash_engine.windows.spec.window import WindowSpec
from tests.shards.test_sharded_plane import Pair
from tests.support.sharded import Turns, hosts

AGGREGATES = {
    "n": {"function": "count"},
    "nx": {"function": "count", "field": "x"},
    "sum": {"function": "sum", "field": "x"},
    "total": {"function": "sum", "field": "i"},
    "distinct": {"function": "distinct_count", "field": "s"},
    "most": {"function": "max", "field": "s"},
}
SPEC = {
    "name": "w",
    "time_unit": "none",
    "keys": ["part", "number"],
    "fields": {"x": "float64", "i": "int64", "s": "string"},
    "nullable": ["x", "i", "s"],
    "aggregates": AGGREGATES,
}


@pytest.mark.parametrize("granularity", [None, 4])
async def test_answers_are_those_of_a_single_store(granularity: int | None) -> None:
    clock, random = ManualClock(), Random(granularity or 0)
    spec = WindowSpec.parse(SPEC | ({"granularity": granularity} if granularity else {}))
    n = 60
    keys = [f"{random.choice('abc')}|{random.randint(0, 5)}" for _ in range(n)]
    some = [key.startswith("a") for key in keys]  # no entry of "a" has a value

    def maybe(values: list[Any]) -> list[Any]:
        return [None if none or random.random() < 0.5 else value for value, none in zip(values, some, strict=True)]

    columns = {
        "x": maybe([i / 4 for i in range(n)]),
        "i": maybe(list(range(n))),
        "s": maybe([f"{i % 7}" for i in range(n)]),
    }
    batch = Batch.of(spec, list(range(n)), columns, keys)
    async with hosts(5, 2, clock) as made:
        pair = Pair(clock, Turns([host.plane for host in made]), spec)
        await pair.create(spec)
        await pair.both(lambda plane: plane.write("w", BulkInsert(batch)))
        await pair.both(lambda plane: plane.write("w", Insert(n, {"i": 3}, "b|1", False, [])))
        for question in (
            Query(keys=ALL_KEYS, combine=True),
            Query(keys=ALL_KEYS, partials=True),
            Query(selection=Grouped(by=["part"])),
            Query(selection=Grouped(by=["part"], having=[Having("sum", ">=", 0)])),
            Query(selection=Grouped(by=["number"], top=Top("sum", 3))),
            Query(selection=Grouped(by=["part"], top=Top("total", 3, "asc"))),
        ):
            await pair.both(lambda plane, question=question: plane.ask("w", question), ordered=False)
        await pair.both(lambda plane: plane.ask("w", RangeQuery(0, 40, keys=ALL_KEYS)))
        await pair.both(lambda plane: plane.ask("w", SeriesQuery(0, 64, 8, keys=ALL_KEYS)))
        found = await made[0].plane.ask("w", Query(selection=Grouped(by=["part"])))
        none = next(answer for answer in found if answer.parts == {"part": "a"}).aggregates
        assert none == {"n": sum(some), "nx": 0, "sum": None, "total": None, "distinct": 0, "most": None}
        found = await made[0].plane.ask("w", Query(selection=Grouped(by=["part"], having=[Having("sum", ">=", 0)])))
        assert {answer.parts["part"] for answer in found} == {"b", "c"}
        if granularity is None:
            bulks = [bulk async for bulk in await made[0].plane.ask("w", EntriesQuery(keys=ALL_KEYS))]
            assert sum(int(bulk.columns["x?"].sum()) for bulk in bulks) == sum(x is not None for x in columns["x"])
