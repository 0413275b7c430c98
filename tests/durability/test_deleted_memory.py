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
KINDS = {
    "keyed": {},
    "unkeyed": {"keyed": False},
    "panes": {"granularity": "1s"},
    "when": {"slide": {"when": "old.n > 9"}},
    "memory": {"durability": "memory"},
}


@pytest.mark.parametrize("stored", [False, True])
async def test_deleted_windows_are_freed(tmp_path, stored):
    clock = ManualClock()
    storage = Storage(Catalogue(clock=clock), clock, open_tier(str(tmp_path), "sash") if stored else None)
    await storage.start()
    parts = []
    for name, more in KINDS.items():
        spec = WindowSpec.parse({"name": name, "keyed": True, "aggregates": COUNT} | more)
        window, _ = await storage.create(spec)
        batch = Batch.of(spec, range(3000), {"value": [1.5] * 3000}, ["a", "b", "c"] * 1000 if spec.keyed else None)
        await storage.write(name, BulkInsert(batch))
        storage.find(name).reader.query(Query(keys=ALL_KEYS) if spec.keyed else Query())
        parts += [weakref.ref(each) for each in (window, window.reader, window.keys, window.keys._pages)]
        del window
    gc.collect()
    gc.disable()
    try:
        for name in KINDS:
            await storage.delete(name)
        await until(lambda: not any(part() for part in parts))
    finally:
        gc.enable()
        await storage.stop()
