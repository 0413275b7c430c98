"""Fields that may be null in a stored window: after restarts and crashes it answers as a window in memory does."""

import numpy as np
import pytest

from sash.durability.records.commands import BulkInsert, Insert, Update
from sash_engine.monoids.laws import close
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.aggregates import FIELDS, HALVES
from tests.support.stored import StorageServer
from tests.support.tiers import KINDS

RANDOM = np.random.default_rng(5)


def maybe(values):
    """Two thirds of the values."""
    return [value if there else None for value, there in zip(values, RANDOM.random(len(values)) < 0.66, strict=True)]


def bulk(spec, first, n):
    columns = {
        "x": maybe((RANDOM.integers(1, 99, n) / 4).tolist()),
        "n": maybe(RANDOM.integers(0, 50, n).tolist()),
        "s": maybe([f"word {i}" for i in RANDOM.integers(0, 9, n)]),
    }
    return BulkInsert(Batch.of(spec, np.arange(first, first + n), columns, ["a"] * n))


def answers(window):
    questions = [window.query("a", [], None)[0], window.query("a", [33], None)[0], window.range_query(70, 130, "a")]
    return [answer.aggregates for answer in questions]


@pytest.mark.parametrize(
    ("kind", "half", "granularity"),
    [("memory", 0, None), ("lmdb", 0, None), ("lmdb", 1, 4), ("redis", 1, None), ("redis", 0, 4)],
)
async def test_answers_survive(kind, half, granularity, tmp_path):
    document = {"name": "w", "time_unit": "none", "keyed": True, "fields": FIELDS, "aggregates": HALVES[half]}
    document |= {"nullable": ["s", "n", "x"], "slide": {"max_age": 120}}
    spec = WindowSpec.parse(document | ({"granularity": granularity} if granularity else {}))
    monoids = spec.monoids()
    with KINDS[kind](tmp_path) as stored:
        server = StorageServer(checkpoint_bytes=100_000)
        server.open = stored.open
        storage = await server.start()
        await storage.create(spec)
        twin = Window(spec, clock=server.clock, block=server.options["block"])
        for step in range(4):
            written = bulk(spec, 60 * step, 55)
            await storage.write("w", written)
            twin.bulk_insert(written.batch)
            for at, fields in ((60 * step + 56, {"x": 1.5}), (60 * step + 57, {"n": None, "s": "one"})):
                await storage.write("w", Insert(at, fields, "a"))
                twin.insert(at, fields, "a")
            storage = await (server.crash() if step % 2 else server.restart())
            assert storage.find("w").spec == spec
            for before, after in zip(answers(twin), answers(storage.find("w")), strict=True):
                for name, expected in before.items():
                    assert close(expected, after[name], 0.0 if monoids[name][0].exact else 1e-9), name
        await server.storage.stop(5)


@pytest.mark.parametrize("kind", KINDS)
async def test_entries_and_corrections_survive(kind, tmp_path):
    aggregates = {"sum": {"function": "sum", "field": "x"}, "n": {"function": "count", "field": "x"}}
    document = {"name": "w", "time_unit": "none", "keyed": True, "fields": FIELDS, "aggregates": aggregates}
    spec = WindowSpec.parse(document | {"nullable": ["s", "x"], "identity": "n"})
    with KINDS[kind](tmp_path) as stored:
        server = StorageServer(cache_bytes=0, checkpoint_bytes=300, store_entries=1)
        server.open = stored.open
        storage = await server.start()
        await storage.create(spec)
        n = 40
        columns = {
            "x": [float(i) if i % 2 else None for i in range(n)],
            "n": list(range(n)),
            "s": [None, "b"] * (n // 2),
        }
        await storage.write("w", BulkInsert(Batch.of(spec, np.arange(n), columns, ["a"] * n)))
        await server.settled()
        storage.trim()
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
        await storage.stop()
