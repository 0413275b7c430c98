"""Answers over many ranges of one forest that mostly overlap: one slides to the next, of the aggregates that can.

    pairs of a key, sorted     |------ 90d ------|
                                 |------ 90d ------|          a few rows come, and a few leave
                                   |------ 90d ------|

A union of two sketches takes as long as a thousand rows that come and leave. So where many ranges of about the same
width are near each other, they are answered from all rows that they have. Other ranges, and other aggregates, are
folded as `ranges.py` does.

Costs, for k ranges: O(k log k) + O(rows from the first range to the last).  Requires: an exact aggregate that `slides`,
because a question about one range folds the same rows in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from sash_engine.forest.ranges import Parts, RangeAnswers, forest_steps
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.version import compiled

_ROWS = 1 << 19
"""Rows that ranges slide over together: what is there for them takes some 30 MiB."""

_ROWS_A_RANGE = 1_000 if compiled() else 10
"""So many rows come and leave in the time of a union: 34 us."""

_RUN = 16
"""Blocks that one step reads."""


def slid_steps(out: RangeAnswers, which: Array, starts: Array, stops: Array, forest: Parts) -> Steps[None]:
    """Answer over ranges of one forest; arguments as of `forest_steps`."""
    layout = out.layout
    slides = [slot for slot, monoid in enumerate(layout.monoids) if monoid.slides and layout.rows_are_entries]
    runs = _runs(forest, starts, stops) if slides else []
    if not runs:
        yield from forest_steps(out, which, starts, stops, forest)
        return
    others, sliding = [slot for slot in range(len(layout.monoids)) if slot not in slides], out.part(slides)
    for_others, for_sliding = (forest._replace(whole=partial(_some, forest.whole, slots)) for slots in (others, slides))
    yield from forest_steps(out.part(others), which, starts, stops, for_others)
    left = np.delete(np.arange(len(which)), np.concatenate(runs))
    yield from forest_steps(sliding, which[left], starts[left], stops[left], for_sliding)
    for run in runs:
        columns = yield from _rows(sliding.layout.used, forest, int(starts[run].min()), int(stops[run].max()))
        begin, end = columns[0].searchsorted(starts[run]), columns[0].searchsorted(stops[run])
        some = np.flatnonzero(begin < end)
        for_slots = list[Array]()
        for monoid, reads in zip(sliding.layout.monoids, sliding.layout.reads, strict=True):
            for_slots.append((yield from monoid.over_sliding([columns[i] for i in reads], begin[some], end[some])))
        sliding.put(which[run[some]], for_slots)


def _some(totals: Callable[[], Sequence[Partial]], slots: Sequence[int]) -> list[Partial]:
    found = totals()  # of all slots: of some alone they would be folded in another order
    return [found[slot] for slot in slots]


def _runs(forest: Parts, starts: Array, stops: Array) -> list[Array]:
    """Ranges that slide: of each run their numbers, in order. Where they begin and end is known to a block."""
    directory, tail = forest.directory, forest.tail
    _, last = directory.spans(directory.head, directory.tail)
    counts, _ = directory.slices(directory.head, directory.tail)
    before = np.concatenate(([0], np.cumsum(np.append(counts, tail.rows))))
    order = np.lexsort((stops, stops - starts))
    begin, end = before[last.searchsorted(starts[order])], before[last.searchsorted(stops[order]) + 1]
    fits = end - begin <= _ROWS
    order, begin, end = order[fits], begin[fits], end[fits]
    runs, a = list[Array](), 0
    apart = (np.diff(begin) < 0) | (np.diff(end) < 0) | (begin[1:] >= end[:-1])
    for b in (*(np.flatnonzero(apart) + 1).tolist(), len(order)):
        while a < b:
            behind = a + int(end[a:b].searchsorted(begin[a] + _ROWS, "right"))
            if behind - a > 1 and end[behind - 1] - begin[a] <= (behind - a) * _ROWS_A_RANGE:
                runs.append(order[a:behind])
            a = behind
    return runs


def _rows(used: Sequence[int], forest: Parts, start: int, stop: int) -> Steps[list[Array]]:
    """The times, and the columns that are used, of the open block and of those that have start <= time < stop."""
    directory, tail, skip = forest.directory, forest.tail, forest.skip
    head, (_, last) = directory.head, directory.spans(directory.head, directory.tail)
    first, behind = int(last.searchsorted(start)), int(last.searchsorted(stop)) + 1
    parts: list[list[Array]] = [[] for _ in tail.columns]
    sealed = range(head + first, head + min(behind, len(last)))
    for a, b in spans_of(len(sealed), _RUN):
        directory.fetch(list(sealed[a:b]))
        for block in map(directory.block, sealed[a:b]):
            for i in {0, *used}:
                parts[i].append(block.columns[i][: block.rows])
        if forest.cold is not None:
            forest.cold.cache.trim()
        yield
    columns = list(tail.columns)
    for i in {0, *used}:
        columns[i] = np.concatenate([*parts[i], tail.columns[i][: tail.rows]])[0 if first else skip :]
        yield
    return columns
