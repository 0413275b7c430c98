"""Writing what is whole of a damaged tier to a new one.

    check ─▶ each window, as far as it can be read ─▶ exported ─▶ imported into a storage on the new tier
                                                      staged parts ─▶ staged again, under the same tokens

So what is written depends on nothing of the old one: entries are sorted into new blocks, and aggregates are computed
anew. Producers and batches go on where the window stands. A producer whose later writes were left behind is told which
one comes next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from sash.durability.check import CheckedWindow
from sash.durability.export import export
from sash.durability.storage import Storage

__all__ = ["salvage"]

T = TypeVar("T")


async def salvage(window: CheckedWindow, storage: Storage) -> int:
    """Write a window that can be read into a storage; return how many entries it has.

    Raises:
        SashError: the storage does not take it.
    """
    stored = window.partial
    assert stored is not None, "it can be read"
    written = await storage.restore(_later(export(stored.window)), None)
    for token, part, batch in stored.staged():
        await storage.stage(window.name, batch, part.query, part.batch, token)
    return written.info().entries


async def _later(frames: Iterator[T]) -> AsyncIterator[T]:
    for frame in frames:
        yield frame
