"""Answers over many ranges of time of many keys, each folded as a question about that range alone folds it.

keys in pages           rows of many keys, gathered ──┐
keys of an open block   as they are ──────────────────┴──▶ one vectorised pass for thousands of keys (RangeAnswers)
larger keys             forest by forest: `Forest.answer_steps`
keys in an algorithm    range by range
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sash_engine.forest import Forest, Layout, RangeAnswers, rows_at
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.keys.pages import Numbers, Pages
from sash_engine.windows.keys.ragged import ragged
from sash_engine.windows.keys.store import KeyStore

__all__ = ["range_answers_steps"]

_ROWS = 16_384
"""Rows that are gathered together: 0.1 ms a column. A few keys more or less do not matter."""

_RANGES = 8_192
"""Ranges whose rows one step finds: 2 ms."""

_SINGLE = 16
"""Ranges that one step asks an algorithm about."""


def range_answers_steps(
    pages: Pages,
    own: Callable[[int], KeyStore | None],
    layout: Layout,
    numbers: Numbers,
    lengths: Numbers,
    starts: Array,
    stops: Array,
) -> Steps[tuple[Array, list[Array]]]:
    """Answer over many ranges of many keys, in steps.

    Args:
        pages: the rows of small keys.
        own: the own store of a key; None where its rows are in the pages.
        layout: what is folded and answered.
        numbers: int64 (g,), distinct keys.
        lengths: int64 (g,), how many ranges each key has: the last ranges are theirs, one key's after the other's. The
            others before them have no entries.
        starts, stops: int64 (k,): start <= time < stop; of a key best sorted by time.

    Returns:
        the number of entries of each range, int64 (k,), and per name of the layout the answers, an array (k,).
    """
    out, behind = RangeAnswers(layout, len(starts)), np.cumsum(lengths) + (len(starts) - int(lengths.sum()))
    ranges = _Ranges(out, starts, stops)
    stores = [own(number) for number in numbers.tolist()]
    small = np.flatnonzero([store is None for store in stores])
    yield
    counts = pages.rows_of_each(numbers[small])
    load = np.cumsum(counts + lengths[small])
    at = 0
    while at < len(small):
        stop = max(int(load.searchsorted((load[at - 1] if at else 0) + _ROWS, "right")), at + 1)
        some = small[at:stop]
        _, columns = pages.rows_each(numbers[some], counts[at:stop], (0, *layout.used), None, None)
        which = ragged(behind[some] - lengths[some], lengths[some])
        yield from ranges.answer(columns, counts[at:stop], which, lengths[some], ())
        at = stop
    batch = _Batch()
    for i in range(len(numbers)):
        store = stores[i]
        if store is None:
            continue
        which = np.arange(behind[i] - lengths[i], behind[i])
        if not isinstance(store, Forest):
            yield from _by_algorithm(out, store, which, starts, stops)
            continue
        rows = store.open_rows()
        if rows is None:
            yield from store.answer_steps(out, which, starts[which], stops[which])
            continue
        batch.add(store, rows, which)
        if batch.size > _ROWS:
            yield from batch.answer(ranges, layout)
            batch = _Batch()
    yield from batch.answer(ranges, layout)
    return (yield from out.answers_steps())


class _Ranges:
    """Ranges of time, as they are asked about, and their answers."""

    def __init__(self, out: RangeAnswers, starts: Array, stops: Array) -> None:
        self._out, self._starts, self._stops = out, starts, stops
        self._exact = all(monoid.exact for monoid in out.layout.monoids)

    def answer(
        self, columns: Sequence[Array], counts: Array, which: Array, lengths: Array, forests: Sequence[Forest]
    ) -> Steps[None]:
        """Answer over ranges of keys whose rows are here, one key's after the other's.

        Args:
            columns: those that are read, the times first.
            counts: int64 (g,), how many rows each key has.
            which: the ranges of each key, one key's after the other's.
            lengths: int64 (g,), how many ranges each key has.
            forests: of each key the forest that has its rows: it knows the fold of all of them. Empty: they have none.
        """
        out, behind = self._out, np.cumsum(counts)
        keys = np.repeat(np.arange(len(counts)), lengths)
        for a, b in spans_of(len(which), _RANGES):
            some, of = which[a:b], keys[a:b]
            begin, end = behind[of] - counts[of], behind[of]
            first = rows_at(columns[0], begin, end, self._starts[some])
            stop = np.maximum(rows_at(columns[0], begin, end, self._stops[some]), first)
            out.rows[some] = stop - first
            yield
            folded = stop > first
            if len(forests) and not self._exact:
                whole = folded & (first == begin) & (stop == end)
                folded &= ~whole
                for key in np.unique(of[whole]).tolist():
                    total = zip(out.layout.monoids, forests[key].totals(out.layout), strict=True)
                    its = some[whole & (of == key)]
                    packed = [monoid.pack([partial] * len(its)) for monoid, partial in total]
                    yield from out.put_partials(its, packed)
            yield from out.put_rows(some[folded], columns, first[folded], stop[folded])


class _Batch:
    """Keys whose rows are all in the open blocks of their forests."""

    def __init__(self) -> None:
        self.size = 0
        self._forests: list[Forest] = []
        self._rows: list[tuple[list[Array], int, int]] = []
        self._which: list[Array] = []

    def add(self, forest: Forest, rows: tuple[list[Array], int, int], which: Array) -> None:
        """Take a key in: its columns and which rows of them; the numbers of its ranges."""
        self._forests.append(forest)
        self._rows.append(rows)
        self._which.append(which)
        self.size += rows[2] - rows[1] + len(which)

    def answer(self, ranges: _Ranges, layout: Layout) -> Steps[None]:
        """Answer over the ranges of all keys."""
        if not self._forests:
            return
        columns, read = [each[:0] for each in self._rows[0][0]], {0, *layout.used}
        for i in read:
            columns[i] = np.concatenate([each[i][start:stop] for each, start, stop in self._rows])
        counts = np.array([stop - start for _, start, stop in self._rows])
        lengths = np.array([len(which) for which in self._which])
        yield from ranges.answer(columns, counts, np.concatenate(self._which), lengths, self._forests)


def _by_algorithm(out: RangeAnswers, store: KeyStore, which: Array, starts: Array, stops: Array) -> Steps[None]:
    for a, b in spans_of(len(which), _SINGLE):
        for i in which[a:b].tolist():
            entries, partials = store.range_totals(int(starts[i]), int(stops[i]) - 1, out.layout)
            out.rows[i] = entries
            if entries:
                packed = [monoid.pack([part]) for monoid, part in zip(out.layout.monoids, partials, strict=True)]
                yield from out.put_partials(np.array([i]), packed)
        yield
