"""Every aggregate in a stored window, with and without nulls: after restarts and crashes as in memory."""

import numpy as np
import pytest

from sash.durability.records.commands import BulkInsert, Insert, Update
from sash_engine.monoids.laws import close
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.aggregates import FIELDS, HALVES
from tests.support.stored import running, write_both

DOCUMENT = {"name": "w", "time_unit": "none", "keyed": True, "fields": FIELDS}


def bulk(spec, random, first, n):
    """Entries; a third of the values of fields that may be null are."""
    columns = {
        "x": (random.integers(1, 99, n) / 4).tolist(),
        "n": random.integers(0, 50, n).tolist(),
        "s": [f"word {i}" for i in random.integers(0, 9, n)],
    }
    for name in spec.nullable or ():
        columns[name] = [None if random.random() < 1 / 3 else value for value in columns[name]]
    return BulkInsert(Batch.of(spec, np.arange(first, first + n), columns, ["a"] * n))


def answers(window):
    questions = [window.query("a", [], None)[0], window.query("a", [33], None)[0], window.range_query(70, 130, "a")]
    return [answer.aggregates for answer in questions]


@pytest.mark.parametrize("aggregates", HALVES, ids=["even", "odd"])
@pytest.mark.parametrize("granularity", [None, 4])
@pytest.mark.parametrize("nullable", [[], ["s", "n", "x"]], ids=["values", "nulls"])
async def test_answers_survive(aggregates, granularity, nullable):
    more = {"granularity": granularity, "nullable": nullable, "slide": {"max_age": 120}, "aggregates": aggregates}
    spec = WindowSpec.parse(DOCUMENT | {name: value for name, value in more.items() if value})
    monoids, random = spec.monoids(), np.random.default_rng(5)
    server, storage = await running(spec, checkpoint_bytes=100_000)
    twin = Window(spec, clock=server.clock, block=server.options["block"])
    for step in range(4):
        await write_both(storage, "w", [twin], bulk(spec, random, 60 * step, 55))
        for at, fields in ((56, {"x": 1.5}), (57, {"n": None, "s": "one"})) if nullable else ():
            await write_both(storage, "w", [twin], Insert(60 * step + at, fields, "a"))
        storage = await (server.crash() if step % 2 else server.restart())
        assert storage.find("w").spec == spec
        for before, after in zip(answers(twin), answers(storage.find("w")), strict=True):
            for name, expected in before.items():
                assert close(expected, after[name], 0.0 if monoids[name][0].exact else 1e-9), name


async def test_nulls_in_entries_and_corrections_survive(place):
    aggregates = {"sum": {"function": "sum", "field": "x"}, "n": {"function": "count", "field": "x"}}
    spec = WindowSpec.parse({**DOCUMENT, "aggregates": aggregates, "nullable": ["s", "x"], "identity": "n"})
    server, storage = await running(spec, place=place, cache_bytes=0, checkpoint_bytes=300, store_entries=1)
    n = 40
    columns = {
        "x": [float(i) if i % 2 else None for i in range(n)],
        "n": list(range(n)),
        "s": [None, "b"] * (n // 2),
    }
    await storage.write("w", BulkInsert(Batch.of(spec, np.arange(n), columns, ["a"] * n)))
    await server.spilled()
    named = {"x": [None, 100.0], "n": [1, 2], "s": ["c", None]}
    await storage.write("w", Update(Batch.of(spec, [1, 2], named, ["a", "a"])))
    total = sum(range(1, n, 2)) - 1 + 100.0
    for _ in range(2):
        window = storage.find("w")
        assert window.query("a")[0].aggregates == {"sum": total, "n": n // 2}
        (bulk_of,) = window.entries(key="a")
        assert bulk_of.columns["x?"].tolist()[:4] == [False, False, True, True]
        assert bulk_of.columns["s"].decode().tolist()[:4] == ["", "c", "", "b"]
        storage = await server.restart()
