"""Windows of every kind over shards of two processes: all is answered as by a single store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sash.calls import each
from sash.durability.records.commands import BulkInsert, Insert
from sash_engine.clock import ManualClock
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import (
    ALL_KEYS,
    EntriesQuery,
    Grouped,
    Having,
    Query,
    RangeQuery,
    SeriesQuery,
    Top,
    Where,
)
from sash_engine.windows.spec.window import WindowSpec
from tests.shards.test_sharded_plane import Pair
from tests.support.sharded import Turns, hosts

AGGREGATES = {
    "n": {"function": "count"},
    "nx": {"function": "count", "field": "x"},
    "sum": {"function": "sum", "field": "x"},
    "total": {"function": "sum", "field": "v"},
    "distinct": {"function": "distinct_count", "field": "s"},
    "most": {"function": "max", "field": "s"},
}
BASE: dict[str, Any] = {
    "name": "w",
    "time_unit": "s",
    "keys": ["part", "number"],
    "fields": {"x": "float64", "v": "int64", "s": "string"},
    "aggregates": AGGREGATES,
}
NULLS = {"nullable": ["x", "v", "s"]}
KINDS = {
    "entries": BASE,
    "entries with nulls": BASE | NULLS,
    "panes with nulls": BASE | NULLS | {"granularity": "4s"},
    "a history": BASE | {"slide": {"max_age": "30s"}, "history": "10d"},
    "a view": {
        "name": "w",
        "of": "source",
        "slide": {"max_age": "1m"},
        "aggregates": AGGREGATES | {"low": {"function": "min", "field": "v"}},
    },
}
SOME = ["k1|0", "k2|1", "k5|0"]
GROUPS = [
    Grouped(by=["part"]),
    Grouped(by=["part"], having=[Having("sum", ">=", 0)]),
    Grouped(by=["number"], top=Top("sum", 3)),
    Grouped(by=["part"], top=Top("total", 3, "asc")),
    Grouped(where=[Where("number", "=", ["1"])]),
]
QUESTIONS = [
    *[Query(key, lookbacks=back) for key in ("k3|1", "k4|0") for back in ((), ("10s", "50s"))],
    *[Query(keys=keys, combine=combine) for keys in (SOME, ALL_KEYS) for combine in (False, True)],
    Query(keys=ALL_KEYS, partials=True),
    *[
        question(selection=group)
        for group in GROUPS
        for question in (Query, lambda **of: Query(lookbacks=["70s"], **of))
    ],
    *[RangeQuery(50, 190, key) for key in ("k7|1", "k1|0")],
    RangeQuery(50, 190, keys=ALL_KEYS),
    SeriesQuery(0, 200, "20s", keys=ALL_KEYS),
]
PAST = [
    question
    for as_of in (100, 650, 1_150)
    for question in (
        Query("k3|1", as_of=as_of),
        Query("k4|0", lookbacks=["10s", "90s"], as_of=as_of),
        Query(keys=ALL_KEYS, as_of=as_of),
        Query(lookbacks=["70s"], as_of=as_of, selection=Grouped(by=["number"])),
    )
]


def bulk(spec: WindowSpec, first: int, n: int = 400) -> Batch:
    """Entries; a third of the values that may be null are, and all of one key."""
    random = np.random.default_rng(first)
    keys = [f"k{i}|{j}" for i, j in zip(random.integers(0, 20, n), random.integers(0, 2, n), strict=True)]
    columns: dict[str, list[Any]] = {
        "x": (random.integers(-90, 90, n) / 4).tolist(),
        "v": random.integers(-9, 9, n).tolist(),
        "s": [f"{i % 7}" for i in range(n)],
    }
    for name in spec.nullable or ():
        none = (random.random(n) < 1 / 3).tolist()
        columns[name] = [
            None if null or key.startswith("k1|") else value
            for null, key, value in zip(none, keys, columns[name], strict=True)
        ]
    return Batch.of(spec, first + random.integers(0, 200, n), columns, keys)


async def rows(plane: Any) -> list[tuple[Any, ...]]:
    """All entries, with their nulls."""
    found: list[tuple[Any, ...]] = []
    async for batch in each(await plane.ask("w", EntriesQuery(keys=ALL_KEYS))):
        keys = [batch.keys.dictionary[code] for code in batch.keys.codes]
        columns = [getattr(column, "decode", lambda column=column: column)() for column in batch.columns.values()]
        found += zip(keys, batch.times.tolist(), *[column.tolist() for column in columns], strict=True)
    return sorted(found)


@pytest.mark.parametrize("kind", KINDS)
async def test_all_is_answered_as_by_a_single_store(kind: str) -> None:
    clock, spec = ManualClock(), WindowSpec.parse(KINDS[kind])
    source = spec if spec.of is None else WindowSpec.parse(BASE | {"name": "source", "slide": {"max_age": "1h"}})
    async with hosts(5, 2, clock) as made:
        pair = Pair(clock, Turns([host.plane for host in made]), spec)
        for each_ in {source.name: source, "w": spec}.values():
            await pair.create(each_)
        for first in (1_000, 0, 500):
            batch = bulk(source, first)
            done = await pair.both(lambda plane, batch=batch: plane.write(source.name, BulkInsert(batch)))
            assert done.inserted == 400
        one = {"v": 3} if source.nullable else {"v": 3, "x": 1.5, "s": "one"}
        await pair.both(lambda plane: plane.write(source.name, Insert(1_150, one, "k1|1")))
        for question in [*QUESTIONS, *(PAST if kind == "a history" else ())]:
            ordered = not (isinstance(question, Query) and question.selection.by is None)
            found = await pair.both(lambda plane, question=question: plane.ask("w", question), ordered)
            assert not isinstance(found, tuple), ("it is refused", question)
        await pair.info()
        if spec.granularity is None:
            assert len(await pair.both(rows)) > 20
