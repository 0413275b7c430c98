"""A server on what was salvaged from a store.

async with Salvaged(values) as salvaged:     salvaged.found, salvaged.storage
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from sash.durability.check.check import check
from sash.durability.check.salvage import salvage
from sash.durability.storage import Storage
from sash_engine.clock import ManualClock
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery
from tests.support.stored import StorageServer


class View:
    """A view of values in this process."""

    name = "memory"

    def __init__(self, stored: Mapping[bytes, bytes]) -> None:
        self.stored = stored
        self.told: list[str] = []

    def keys(self) -> Iterator[bytes]:
        return iter(list(self.stored))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.stored.get(key) for key in keys]

    def problems(self) -> list[str]:
        return self.told

    def close(self) -> None:
        pass


class Salvaged:
    """What a check found in a store, and a server on what was salvaged from it."""

    def __init__(self, stored: Mapping[bytes, bytes]) -> None:
        self.stored = stored

    async def __aenter__(self) -> Self:
        before = dict(self.stored)
        self.found = check(View(self.stored), ManualClock())
        self.server = StorageServer()
        storage = await self.server.start()
        self.entries = {}
        for window in self.found.windows:
            if window.partial is not None:
                self.entries[window.name] = await salvage(window, storage)
        assert self.stored == before, "it was only read"
        await storage.stop()
        self.storage = await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert {info.problem for info in self.storage.all()} <= {None}
        assert check(View(self.server.store.values), ManualClock()).whole
        await self.storage.stop()


def listed(storage: Storage, name: str) -> list[tuple[Any, ...]]:
    """All entries of a window: key, time, value."""
    found: list[tuple[Any, ...]] = []
    for bulk in storage.find(name).reader.entries(EntriesQuery(keys=ALL_KEYS)):
        assert bulk.keys is not None
        keys = [bulk.keys.dictionary[code] for code in bulk.keys.codes.tolist()]
        found += zip(keys, bulk.times.tolist(), bulk.columns["value"].tolist(), strict=True)
    return sorted(found)
