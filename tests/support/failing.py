"""Windows of which something fails, and what tests need to write to them.

server, storage = await failing()          a window that is being recovered
parts = await exported()                   a window as a file
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar

import pytest

from sash.durability.records.commands import BulkEvict, BulkInsert, Insert
from sash.durability.storage import Storage
from sash_engine.errors import DataLoss, FailedPrecondition, OutOfRoom, SashError, Unavailable
from sash_engine.windows.batches.batch import Origin
from tests.support.stored import StorageServer, batch, spec

BUSY = {"checkpoint_bytes": 1500, "store_entries": 4}
QUIET = {"checkpoint_bytes": 10**6, "store_entries": 4, "cache_bytes": 0}

FAILURES: dict[str, Callable[[], SashError]] = {
    "away": lambda: Unavailable("as told", retry_after_s=7.0),
    "full": lambda: OutOfRoom("as told", field="data", limit="the disk"),
    "lost": lambda: DataLoss("as told", field="data"),
    "taken": lambda: FailedPrecondition("as told", limit="one"),
}
"""How a tier fails."""

T = TypeVar("T")


async def parts_of(parts: Iterable[T]) -> AsyncIterator[T]:
    """The parts, one by one."""
    for part in parts:
        yield part


def insert(time: int, value: int | None = None, key: str = "a") -> Insert:
    """One entry; its value is its time if none is given."""
    return Insert(time, {"value": time if value is None else value}, key)


def rows(start: int, stop: int, key: str = "a") -> BulkInsert:
    """Entries at times start, start + 1, …, whose values are their times."""
    return BulkInsert(batch([(key, time) for time in range(start, stop)], start))


def entries(storage: Storage, name: str = "w", key: str = "a") -> Any:
    """The values of a key, oldest first."""
    return storage.find(name).query(key, [], None)[0].aggregates["all"]


async def failing() -> tuple[StorageServer, Storage]:
    """A server and its storage, whose window of 100 entries met a tier that failed in the middle of a write."""
    server = StorageServer(**QUIET)
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", rows(0, 100))
    await server.settled()
    storage.trim()
    server.tier.fail_reads = 1
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(17))  # cuts a block that is not in memory
    return server, storage


def failing_read(tier: Any, at: int) -> Callable[[], None]:
    """Let one read of blocks fail, the one of that number; return what makes the tier whole again."""
    read, reads = tier.get_many, list[bytes]()

    def get_many(keys: list[bytes]) -> Any:
        reads.extend(key for key in keys[:1] if key.startswith(b"block/"))
        if len(reads) == at and keys[0] is reads[-1]:
            raise Unavailable("it did not answer in time")
        return read(keys)

    tier.get_many = get_many
    return lambda: setattr(tier, "get_many", read)


async def exported() -> list[bytes]:
    server = StorageServer()
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", rows(0, 200), Origin("p", 1))
    parts = list(storage.export("w"))
    await storage.stop()
    return parts
