"""A window that is deleted leaves memory at once, and not when somebody looks for garbage."""

import gc
import weakref

import pytest

from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import BulkInsert
from sash.durability.storage import Storage
from sash.tiers import open_tier
from sash_engine.clock import ManualClock
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Query
from sash_engine.windows.spec.window import WindowSpec
from tests.support.waiting import until

COUNT = {"n": {"function": "count"}, "p": {"function": "quantile", "q": 0.5}}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    "more", [{}, {"keyed": False}, {"granularity": "1s"}, {"slide": {"when": "old.n > 9"}}, {"durability": "memory"}]
)
async def test_a_deleted_window_is_freed(tmp_path, stored, more):
    clock = ManualClock()
    catalogue = Catalogue(max_windows=9, clock=clock)
    storage = Storage(catalogue, clock, open_tier(str(tmp_path), "sash") if stored else None)
    await storage.start()
    spec = WindowSpec.parse({"name": "w", "keyed": True, "aggregates": COUNT} | more)
    window, _ = await storage.create(spec)
    batch = Batch.of(spec, range(3000), {"value": [1.5] * 3000}, ["a", "b", "c"] * 1000 if spec.keyed else None)
    await storage.write("w", BulkInsert(batch))
    storage.find("w").reader.query(Query(keys=ALL_KEYS) if spec.keyed else Query())
    parts = [weakref.ref(each) for each in (window, window.reader, window.keys, window.keys._pages)]
    del window
    gc.collect()
    gc.disable()
    try:
        await storage.delete("w")
        await until(lambda: not any(part() for part in parts))
    finally:
        gc.enable()
        await storage.stop()
