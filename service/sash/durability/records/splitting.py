"""Bulks by shard: the rows of each shard in their order, in one vectorised pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sash_engine.monoids.base import Array
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded, PartialBatch
from sash_wire.placement import shards_of


def owners(window: str, batch: AnyBatch, shards: int) -> Array:
    """Return the shard of each row of a bulk with keys, which was checked."""
    keys = batch.keys
    assert keys is not None, "a bulk without keys belongs to one shard"
    of: Array = shards_of(window, keys.dictionary, shards)[keys.codes]
    return of


def split(batch: AnyBatch, of: Array) -> dict[int, AnyBatch]:
    """Return the parts of a bulk by shard, in ascending order; only of shards that get rows.

    Args:
        of: as `owners` returns them.
    """
    if not len(of):
        return {}
    first = int(of[0])
    if (of == first).all():
        return {first: batch}
    order = np.argsort(of, kind="stable")
    bounds = np.cumsum(np.bincount(of)).tolist()
    return {
        shard: rows_of(batch, order[start:stop])
        for shard, (start, stop) in enumerate(zip([0, *bounds], bounds, strict=False))
        if start < stop
    }


def none_of(batch: AnyBatch) -> AnyBatch:
    """Return a bulk of the same columns without rows."""
    return rows_of(batch, np.empty(0, np.int64))


def split_keys(window: str, keys: Sequence[str], shards: int) -> dict[int, list[str]]:
    """Return different keys by shard, each in the order given."""
    names = list(dict.fromkeys(keys))
    found: dict[int, list[str]] = {}
    for name, shard in zip(names, shards_of(window, names, shards).tolist(), strict=True):
        found.setdefault(shard, []).append(name)
    return found


def rows_of(batch: AnyBatch, rows: Array | slice) -> AnyBatch:
    """Return some rows of a bulk, with no more of its dictionaries than they use."""
    keys = None if batch.keys is None else batch.keys.rows(rows)
    if isinstance(batch, PartialBatch):
        partials = {name: tuple(part[rows] for part in parts) for name, parts in batch.partials.items()}
        return PartialBatch(batch.times[rows], partials, batch.entries[rows], keys)
    columns = {
        name: column.rows(rows) if isinstance(column, Coded) else column[rows] for name, column in batch.columns.items()
    }
    return Batch(batch.times[rows], columns, keys)
