"""Every aggregate in a stored window: after restarts and crashes it answers as a window in memory does."""

import numpy as np
import pytest

from sash.durability.records.commands import BulkInsert
from sash_engine.monoids.laws import close
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.aggregates import FIELDS, HALVES
from tests.support.stored import StorageServer
from tests.support.tiers import KINDS

RANDOM = np.random.default_rng(5)


def bulk(first, n):
    words = [f"word {i}" for i in RANDOM.integers(0, 9, n)]
    columns = {"x": RANDOM.integers(1, 99, n) / 4, "n": RANDOM.integers(0, 50, n), "s": Coded.of(words)}
    return BulkInsert(Batch(np.arange(first, first + n), columns, Coded.of(["a"] * n)))


def answers(window):
    questions = [window.query("a", [], None)[0], window.query("a", [33], None)[0], window.range_query(70, 130, "a")]
    return [answer.aggregates for answer in questions]


@pytest.mark.parametrize("aggregates", HALVES, ids=["even", "odd"])
@pytest.mark.parametrize("kind", ["lmdb", "redis"])
@pytest.mark.parametrize("granularity", [None, 4])
async def test_answers_survive(kind, aggregates, granularity, tmp_path):
    document = {"name": "w", "time_unit": "none", "keyed": True, "fields": FIELDS, "aggregates": aggregates}
    spec = WindowSpec.parse(
        document | {"slide": {"max_age": 120}} | ({"granularity": granularity} if granularity else {})
    )
    monoids = spec.monoids()
    with KINDS[kind](tmp_path) as stored:
        server = StorageServer(checkpoint_bytes=100_000)
        server.open = stored.open
        storage = await server.start()
        await storage.create(spec)
        twin = Window(spec, clock=server.clock, block=server.options["block"])
        for step in range(4):
            written = bulk(60 * step, 60)
            await storage.write("w", written)
            twin.bulk_insert(written.batch)
            storage = await (server.crash() if step % 2 else server.restart())
            for before, after in zip(answers(twin), answers(storage.find("w")), strict=True):
                for name, expected in before.items():
                    assert close(expected, after[name], 0.0 if monoids[name][0].exact else 1e-9), name
        await server.storage.stop(5)
