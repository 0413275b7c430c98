"""An adaptive window that is stored evicts as one in memory does, through restarts, crashes and checkpoints."""

import numpy as np

from sash.durability.records.commands import BulkInsert, Insert
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.spec.window import WindowSpec
from tests.support.stored import running

SPEC = WindowSpec.parse(
    {
        "name": "w",
        "time_unit": "none",
        "aggregates": {"mean": {"function": "mean"}},
        "slide": {"adaptive": {"every": 4}},
    }
)


async def history(again, **options):
    """What every write evicted, and what was left; after some writes, the storage is started again."""
    random, time, out = np.random.default_rng(9), 0, []
    server, storage = await running(SPEC, **options)
    for step in range(60):
        mean = (step // 20) * 4.0
        values = random.normal(mean, 1, 12)
        result = await storage.write("w", BulkInsert(Batch(np.arange(time, time + 12), {"value": values})))
        single = await storage.write("w", Insert(time + 12, {"value": mean}))
        time += 13
        (answer,) = storage.find("w").query(None, [], None)
        out.append((result.evicted, single.evicted, answer.entries, round(answer.aggregates["mean"], 9)))
        if again and step % 3 == 2:
            storage = await (server.restart() if step % 2 else server.crash())
    return out


async def test_it_evicts_the_same_after_every_start(place):
    expected = await history(again=False)
    assert sum(bulk + single for bulk, single, *_ in expected) > 400, "it has found the changes"
    assert await history(again=True, place=place) == expected
