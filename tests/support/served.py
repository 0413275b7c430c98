"""A plane over a storage that a test starts, stops and starts again."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from sash.durability.storage import Storage
from sash.plane import Plane
from sash.runtime.metrics import Metrics
from sash_engine.windows.questions import ALL_KEYS, Query
from tests.support.stored import StorageServer, spec

SMALL = {"n": {"function": "count"}, "sum": {"function": "sum"}}


class PlaneServer(StorageServer):
    """A server whose plane is always over the storage that runs; it stores nothing by itself.

    Args:
        kind: the durability of the windows that `create` makes.
        options: of the storage.
    """

    def __init__(self, kind: str = "sync", **options: Any) -> None:
        super().__init__(**{"checkpoint_bytes": 10**9, "store_entries": 10**9, "cache_bytes": 0} | options)
        self.kind = kind

    async def start(self) -> Storage:
        storage = await super().start()
        self.plane = Plane.of(storage, Metrics(CollectorRegistry()), self.clock)
        return storage

    async def create(self, *names: str, **parts: Any) -> None:
        for name in names or ("w",):
            await self.plane.create(spec(name=name, durability=self.kind, **{"aggregates": SMALL} | parts))

    async def entries(self, name: str = "w") -> int:
        """How many entries there are; a question about all keys."""
        return sum(answer.entries for answer in await self.plane.ask(name, Query(keys=ALL_KEYS)))
