"""Salvages a damaged tier: writes what is readable to a new one.

    check ─▶ each readable window ─▶ exported ─▶ imported into a storage on the new tier
                                     staged parts ─▶ staged again, under the same tokens

So the new tier depends on nothing in the old one: entries are sorted into new blocks, and aggregates are computed
again. Producers and batches go on from the state of the window. If later writes of a producer are lost, the refusal of
its next write says which number is expected. Cascades go with their source, which feeds them again. Views are made
again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import TypeVar

from sash.durability.check.check import CheckedWindow
from sash.durability.images.export import export
from sash.durability.records.commands import StageBatch
from sash.durability.storage import Storage

T = TypeVar("T")


async def salvage(window: CheckedWindow, storage: Storage) -> int:
    """Write a readable window into a storage; return how many entries it has.

    Raises:
        SashError: the storage refuses it.
    """
    stored = window.partial
    assert stored is not None, "the window cannot be read"
    there = {each.name for each in window.derived if each.entries is not None}
    cascades = [each for each in stored.window.derived.fed if each.spec.name in there]
    frames = chain.from_iterable(map(export, [stored.window, *cascades]))
    written = await storage.restore(_later(frames), None, derived=[each.spec.name for each in cascades])
    for view in stored.window.views:
        if view.spec.name in there:
            await storage.create(view.spec)
    for token, part, batch in stored.staged():
        await storage.write(window.name, StageBatch(batch, part.query, part.batch, token))
    return written.info().entries


async def _later(frames: Iterator[T]) -> AsyncIterator[T]:
    for frame in frames:
        yield frame
