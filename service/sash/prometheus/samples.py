"""The entries of a field as samples of series, for what no aggregate has the answer of."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np

from sash.calls import each
from sash.plane import Plane
from sash.prometheus.errors import Refused
from sash.prometheus.selectors import Selected
from sash.prometheus.times import TIME_MAX_MS, Times, floor_ticks, ticks_of
from sash.shard import Parts
from sash_engine.monoids.base import Array
from sash_engine.windows.batch import AnyBatch, Batch
from sash_engine.windows.questions import EntriesQuery
from sash_engine.windows.spec import NANOSECONDS_PER_TICK, TICK_MAX, TimeUnit
from sash_wire.nulls import mark_of

__all__ = ["ENTRIES_MAX", "ByKey", "bounds", "finer", "milliseconds_of", "samples", "second_of"]

ENTRIES_MAX = 2_000_000
"""Entries that one selector may read: 32 MB."""

_KEYS_AT_ONCE = 1000
_NS_PER_MS = 1_000_000

ByKey = dict[str | None, tuple[Array, Array]]
"""Of each key the ticks, ascending, and the values of a field."""


async def samples(plane: Plane, selected: Selected, start_ms: int, end_ms: int) -> ByKey:
    """The entries of a field with start < time <= end.

    Raises:
        Refused: there are too many, or the window keeps none.
    """
    metric = selected.metric
    spec = metric.spec
    if spec.granularity is not None:
        raise Refused(
            f"window {spec.name!r} keeps panes of {spec.granularity}, and no entries; use one of its aggregates, or a "
            "function that one of them has the answer of",
            field="query",
        )
    assert metric.field is not None
    low = max(floor_ticks(start_ms, spec.time_unit) + 1, 1 - TICK_MAX)
    high = min(floor_ticks(end_ms, spec.time_unit), TICK_MAX - 1)
    if low > high:
        return {}
    keys = selected.keys
    question = EntriesQuery(low, high) if keys is None else EntriesQuery(low, high, None, keys)
    return await _by_key(await plane.ask(spec.name, question), metric.field)


def bounds(times: Times, width_ms: int, ticks: Array, unit: TimeUnit) -> tuple[Array, Array]:
    """The first sample of each trailing range, and the first one behind it."""
    low = ticks.searchsorted(ticks_of(times.ms - width_ms, unit), "right")
    return low, ticks.searchsorted(ticks_of(times.ms, unit), "right")


def milliseconds_of(ticks: Array, unit: TimeUnit) -> Array:
    """Ticks as whole milliseconds, int64.

    >>> milliseconds_of(np.array([-1, 1_700_000_000_009_000]), "us").tolist()
    [-1, 1700000000009]
    """
    tick_ns = NANOSECONDS_PER_TICK[unit]
    if tick_ns <= _NS_PER_MS:
        return np.asarray(ticks // (_NS_PER_MS // tick_ns))
    most = TIME_MAX_MS // (tick_ns // _NS_PER_MS)
    return np.clip(ticks, -most, most) * (tick_ns // _NS_PER_MS)


def second_of(unit: TimeUnit) -> int:
    """What a second is in the finer one of ticks and milliseconds.

    >>> second_of("us"), second_of("ms"), second_of("s")
    (1000000, 1000, 1000)
    """
    return 1_000_000_000 // min(NANOSECONDS_PER_TICK[unit], _NS_PER_MS)


def finer(ticks: Array, ms: Array, unit: TimeUnit) -> tuple[Array, Array]:
    """Ticks of samples, and milliseconds of an expression, both in the finer one of the two."""
    if NANOSECONDS_PER_TICK[unit] <= _NS_PER_MS:
        return ticks, ticks_of(ms, unit)
    return milliseconds_of(ticks, unit), ms


async def _by_key(bulks: Parts[AnyBatch], field: str) -> ByKey:
    rows = 0
    parts = dict[str | None, list[tuple[Array, Array]]]()
    async for bulk in each(bulks):
        assert isinstance(bulk, Batch)
        rows += len(bulk.times)
        if rows > ENTRIES_MAX:
            raise Refused(
                f"more than {ENTRIES_MAX:,} entries; narrow the selector or the range, or give the window an aggregate "
                "that has the answer",
                field="query",
                limit=f"{ENTRIES_MAX} entries",
            )
        values, times = np.asarray(bulk.columns[field], np.float64), bulk.times
        mark = bulk.columns.get(mark_of(field))
        there = slice(None) if mark is None else np.asarray(mark, np.bool_)
        values, times = values[there], times[there]
        if not len(times):
            continue
        if bulk.keys is None:
            parts.setdefault(None, []).append((times, values))
            continue
        codes = np.asarray(bulk.keys.codes)[there]
        for a, b in pairwise([0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]):
            if a < b:
                key = bulk.keys.dictionary[int(codes[a])]
                parts.setdefault(key, []).append((times[a:b], values[a:b]))
    found: ByKey = {}
    for of, pieces in parts.items():
        found[of] = (np.concatenate([p[0] for p in pieces]), np.concatenate([p[1] for p in pieces]))
        if not len(found) % _KEYS_AT_ONCE:
            await asyncio.sleep(0)
    return found
