"""Storages on values that outlive them: restarted, killed, and on a tier that fails at a chosen commit.

server, storage = await running(spec(), …)      a server, and its storage with these windows
await server.restart()       stop the service, and start the next one
await server.crash()         kill it: what was not committed is lost, and calls in progress have no effect
server.tier                  a `Choosy` tier, which fails as it is told to
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sash.durability import formats as values
from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import Write
from sash.durability.storage import Storage
from sash.durability.tier import ColdTier
from sash.tiers.memory import MemoryStore, MemoryTier
from sash_engine.clock import ManualClock
from sash_engine.errors import OutOfRoom
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.tiers import Faulty
from tests.support.twins import alike

KEYS = ["a", "b", "c"]
AGGREGATES = {
    "n": {"function": "count"},
    "all": {"function": "collect"},
    "max": {"function": "max"},
    "distinct": {"function": "collect_distinct"},
}
ALWAYS = {values.meta_key(), values.journal_key(), values.last_group_key()}
"""What a tier has whatever windows there are."""


class Choosy(Faulty):
    """A faulty tier that can fail, or die, at a chosen commit, and holds chosen reads back.

    Attributes:
        attempts: number of commits that were asked for.
        at: which of them the fault is for; 0 for none.
        fault: "before" or "after" it took place it fails; or the tier is "dead before" or "dead after" it, for good.
        hold_reads: reads of keys that begin so wait for `read_gate`.
        reading: set while one waits there.
        full: there is no room for anything, as far as those are told who ask.
    """

    def __init__(self, tier: ColdTier) -> None:
        super().__init__(tier)
        self.attempts = 0
        self.at = 0
        self.fault = "before"
        self.hold_reads: bytes | None = None
        self.read_gate = threading.Event()
        self.reading = threading.Event()
        self.full = False

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        if self.full:
            raise OutOfRoom("as told", field="data", limit="the disk")
        super().check_room(size, reserve)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.hold_reads is not None and any(key.startswith(self.hold_reads) for key in keys):
            self.reading.set()
            assert self.read_gate.wait(120), "nobody opened the gate"
        return super().get_many(keys)

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        self.attempts += 1
        if self.attempts != self.at:
            super().commit(puts, deletes)
            return
        if self.fault.endswith("after"):
            super().commit(puts, deletes)
        if self.fault.startswith("dead"):
            self.unreachable = True
        raise self.error()


class StorageServer:
    """A storage that a test starts, stops and starts again over the same stored values.

    Args:
        options: of the storage; by default its limits are tiny.
    """

    def __init__(self, **options: Any) -> None:
        self.store = MemoryStore()
        self.open: Callable[[], ColdTier] = lambda: MemoryTier(self.store)
        """Opens a tier on the stored values."""
        self.clock = ManualClock()
        self.fault_at, self.fault = 0, "before"
        """Which commit is to fail, counted over all starts, and how: see `Choosy`."""
        self.tier: Choosy | None = None
        self.options = {"cache_bytes": 1000, "checkpoint_bytes": 2000, "store_entries": 8, "block": 4, **options}

    async def start(self) -> Storage:
        attempts = 0 if self.tier is None else self.tier.attempts
        self.tier = Choosy(self.open())
        self.tier.attempts, self.tier.at, self.tier.fault = attempts, self.fault_at, self.fault
        self.catalogue = Catalogue(clock=self.clock)
        self.storage = Storage(self.catalogue, self.clock, self.tier, sleep=self.sleep, **self.options)
        await self.storage.start()
        return self.storage

    def sleep(self, seconds: float) -> None:
        """What a storage does that waits for its tier at the start: time passes."""
        self.clock.advance(int(seconds * 1e9))

    async def restart(self) -> Storage:
        await self.storage.stop(5)
        return await self.start()

    async def crash(self) -> Storage:
        await self.die()
        return await self.start()

    async def die(self) -> None:
        """Let the storage end as its process would."""
        self.tier.unreachable = True
        for gate in (self.tier.open_gate, self.tier.read_gate):
            gate.set()
        await self.storage.store.recoverer.stop()
        await self.storage.store.session.journal.stop(0.001)
        self.tier.close()
        self.store.owner = None

    async def settled(self) -> None:
        """Wait until all background work is done."""
        await self.storage.store.session.journal.drained()

    async def spilled(self) -> None:
        """Wait until all background work is done, and let go of what the cache has no room for."""
        await self.settled()
        self.storage.trim()

    @property
    def left(self) -> set[bytes]:
        """Keys of the values of windows, and of the journal's groups."""
        return set(self.store.values) - ALWAYS


async def running(*specs: WindowSpec, place: Any = None, **options: Any) -> tuple[StorageServer, Storage]:
    """A server that was started, and its storage with some windows. It ends with the event loop of the test.

    Args:
        place: has the stored values; by default this process.
        options: of the storage.
    """
    server = StorageServer(**options)
    if place is not None:
        server.open = place.open
    storage = await server.start()
    for each in specs:
        await storage.create(each)
    return server, storage


def spec(**parts: Any) -> WindowSpec:
    document = {"name": "w", "keyed": True, "time_unit": "none", "fields": {"value": "int64"}, "aggregates": AGGREGATES}
    return WindowSpec.parse(document | parts)


def batch(pairs: Sequence[tuple[str, int]], first_value: int) -> Batch:
    """Entries of keys at times, with values that count on from the first."""
    return Batch(
        np.array([time for _, time in pairs], np.int64),
        {"value": np.arange(first_value, first_value + len(pairs))},
        Coded.of([key for key, _ in pairs]),
    )


async def write_both(storage: Storage, name: str, models: Iterable[Window], *commands: Any) -> Any:
    """Do commands to a stored window, and to models of it; return what became of the last one."""
    result = None
    for command in commands:
        result = await storage.write(name, command)
        for model in models:
            Write(command, 0).apply(model)
    return result


def same(window: Window, model: Window) -> None:
    """Both answer the same."""
    assert window.key_names("", 1000) == model.key_names("", 1000)
    assert window.counts == model.counts
    mine, theirs = window.info(), model.info()
    assert (mine.newest, mine.high_water_mark, mine.keys) == (theirs.newest, theirs.high_water_mark, theirs.keys)
    for key in KEYS:
        assert window.query(key, [5], None) == model.query(key, [5], None)
        assert window.query(key, [], None) == model.query(key, [], None)
        assert window.range_query(3, 17, key) == model.range_query(3, 17, key)
        mine, theirs = window.series(0, 40, 8, 9, key), model.series(0, 40, 8, 9, key)
        assert mine.entries.tolist() == theirs.entries.tolist()
        for name, column in theirs.aggregates.items():
            assert mine.aggregates[name].tolist() == column.tolist(), name
    window.check_invariants(alike)
