"""A series over sessions: runs of entries of one key with no gap between them, found in the times of the entries.

    gap 5      1  3  7        15  18  19  24
               ~~~~~~~        ~~~~~~~~~~~~~~      two sessions: 1 to 7, and 15 to 24

O(n) for the n entries of the range, whose times are read block by block; then as a series of as many buckets.
"""

from __future__ import annotations

import numpy as np

from sash_engine.forest import Cold, Layout
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.answers import Series, parts_of
from sash_engine.windows.keys.allocator import Numbers
from sash_engine.windows.keys.store import rows_of_slices
from sash_engine.windows.questions import SeriesQuery
from sash_engine.windows.reading.bounds import bounds_of
from sash_engine.windows.reading.costs import Costs
from sash_engine.windows.sliding.sessions import wider
from sash_engine.windows.sliding.view_keys import ReadableStore
from sash_engine.windows.spec.window import WindowSpec, parse_duration

_SLICES = 64
"""Row slices, of 1,024 entries mostly, that one step reads."""


def sessions_steps(
    question: SeriesQuery, spec: WindowSpec, layout: Layout, store: ReadableStore, cold: Cold | None, costs: Costs
) -> Steps[Series]:
    """The series over the sessions of one key, in steps.

    Args:
        question: has a gap, and was checked: see `check_sessions`.
        layout: what is answered.
        store: has the entries of its key.

    Raises:
        InvalidArgument: start >= end, or there are more sessions than buckets are allowed.
    """
    assert question.gap is not None, "the question is about sessions"
    start, end = bounds_of(question)
    gap = parse_duration(question.gap, spec.time_unit, "gap")
    first, last = yield from _sessions_of(store, cold, start, end, gap, costs)
    costs.need_buckets(len(first))
    if costs.sized and len(first) > 1:
        count, answers = store.range_query(start, end - 1, layout)
        costs.check_series(count, dict(zip(layout.names, answers, strict=True)), len(first), 1)
    entries, columns = yield from store.series_steps(first, last + 1, layout)
    named = dict(zip(layout.names, columns, strict=True))
    return Series(question.key, first, gap, entries, named, parts=parts_of(spec, question.key), last=last)


def _sessions_of(
    store: ReadableStore, cold: Cold | None, start: int, end: int, gap: int, costs: Costs
) -> Steps[tuple[Numbers, Numbers]]:
    """The times of the first and of the last entry of each session with start <= time < end, in steps."""
    firsts, lasts = list[Array](), list[Array]()
    last, count = None, 0
    slices = store.capture(start, end - 1)
    for a, b in spans_of(len(slices), _SLICES):
        times = np.concatenate([columns[0] for columns in rows_of_slices(slices[a:b], cold)])
        before = times[:1] if last is None else np.array([last])
        breaks = wider(np.concatenate((before, times[:-1])), times, gap)
        if last is None:
            breaks[0] = True
        begin = np.flatnonzero(breaks)
        firsts.append(times[begin])
        lasts.append(times[begin[begin > 0] - 1])
        if last is not None and breaks[0]:
            lasts.insert(len(lasts) - 1, np.array([last]))
        last, count = times.item(len(times) - 1), count + len(begin)
        costs.check_buckets(count)
        yield
    if last is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(firsts), np.concatenate([*lasts, np.array([last])])
