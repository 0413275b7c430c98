"""Answers over many ranges of time of many keys, each folded as a question about that range alone folds it.

keys in pages           ──┬──▶ rows of thousands of keys found, gathered and folded in vectorised passes
keys of an open block   ──┘
larger keys             forest by forest: `Forest.answer_steps`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from sash_engine.forest import Forest, Layout, RangeAnswers
from sash_engine.kernels import gather, rows_at
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.keys.pages import Numbers, Pages
from sash_engine.windows.keys.ragged import spans_of_lengths

_ROWS = 32_768
"""Rows that are gathered together: 0.05 ms a column. A key more or less does not matter."""

_KEYS, _RANGES = 2_048, 8_192
"""Keys whose rows one step looks up, and ranges whose rows it finds: 1 ms."""

_ELSEWHERE = -1
"""The columns of a key that is answered about by its store."""


def range_answers_steps(
    pages: Pages,
    own: Callable[[int], Forest | None],
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
    at, exact = 0, all(monoid.exact for monoid in layout.monoids)
    while at < len(numbers):
        begun = int(behind[at] - lengths[at])
        end = max(min(int(behind.searchsorted(begun + _RANGES, "right")), at + _KEYS), at + 1)
        places = Places(pages, own, numbers[at:end], not exact)
        for i, store in places.others.items():
            which = np.arange(behind[at + i] - lengths[at + i], behind[at + i])
            yield from store.answer_steps(out, which, starts[which], stops[which])
        yield
        keys = np.repeat(np.arange(end - at), lengths[at:end])
        for a, b in spans_of(len(keys), _RANGES):
            some = np.flatnonzero(places.of[keys[a:b]] != _ELSEWHERE) + a
            which = some + begun
            if len(some):
                yield from _answer(out, places, which, keys[some], starts[which], stops[which])
        at = end
    return (yield from out.answers_steps())


def keys_of(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """The keys that rising numbers name, and how often each of them is there; -1 names none, and is left out."""
    unknown = int(numbers.searchsorted(0))
    keys, firsts = np.unique(numbers[unknown:], return_index=True)
    return keys, np.diff(firsts, append=len(numbers) - unknown)


class Places:
    """Where the rows of some keys are: in the pages, or in the open blocks of forests.

    Args:
        pages, own: as of `range_answers_steps`.
        numbers: int64 (g,), the keys.
        folded: whether forests are kept that know the fold of all their rows.

    Attributes:
        sources: columns of some keys: those of the pages.
        of, first, stop: int64 (g,), where the rows of each key are: in one of `sources`, first <= row < stop.
        forests: by key, those that know the fold of all their rows; of others it depends on nothing but the rows.
        others: by key, the forests that have rows elsewhere.
    """

    def __init__(
        self, pages: Pages, own: Callable[[int], Forest | None], numbers: Numbers, folded: bool = False
    ) -> None:
        self.sources, self.of = [pages.all_columns], np.zeros(len(numbers), np.int64)
        self.first, self.stop = pages.places_each(numbers)
        self.forests, self.others = dict[int, Forest](), dict[int, Forest]()
        opened, bounds = list[int](), list[tuple[int, int]]()
        for i, store in enumerate(map(own, numbers.tolist())):
            if store is None:
                continue
            if (rows := store.open_rows()) is not None:
                self.sources.append(rows[0])
                opened.append(i)
                bounds.append(rows[1:])
                if folded:
                    self.forests[i] = store
            else:
                self.of[i], self.others[i] = _ELSEWHERE, store
        if opened:
            self.of[opened] = np.arange(1, len(self.sources))
            self.first[opened], self.stop[opened] = np.array(bounds).T

    def rows(self, some: Array, starts: Array, stops: Array) -> tuple[Array, Array]:
        """The rows of some keys, int64 (k,), that are not elsewhere, with start <= time < stop: first, and behind."""
        times, of = [columns[0] for columns in self.sources], self.of[some]
        begin = rows_at(times, of, self.first[some], self.stop[some], starts)
        return begin, rows_at(times, of, begin, self.stop[some], np.maximum(starts, stops))

    def gathered(self, some: Array, starts: Array, stops: Array, used: Iterable[int]) -> list[Array]:
        """Rows of some keys, int64 (k,), one behind the other: the columns that are used; the others have none."""
        columns = [column[:0] for column in self.sources[0]]
        for i in used:
            columns[i] = gather([source[i] for source in self.sources], self.of[some], starts, stops)
        return columns


def _answer(out: RangeAnswers, places: Places, which: Array, keys: Array, starts: Array, stops: Array) -> Steps[None]:
    """Answer over ranges: their numbers, and of each its key, sorted by these, and start <= time < stop.

    pages     [ . . a a a b b . . ]      block    [ c c c c c . . ]
    ranges            |-|                             |---|
    gathered  [ a a c c c ]                       of each key the rows from its first range to its last
    """
    of, first, stop = places.of[keys], places.first[keys], places.stop[keys]
    times = [columns[0] for columns in places.sources]
    begin = rows_at(times, of, first, stop, starts)
    end = np.maximum(rows_at(times, of, first, stop, stops), begin)
    out.rows[which] = end - begin
    yield
    folded = begin < end
    if places.forests:
        whole = np.flatnonzero(folded & (of > 0) & (begin == first) & (end == stop))
        folded[whole] = False
        for its in np.split(whole, np.flatnonzero(np.diff(keys[whole])) + 1) if len(whole) else ():
            total = places.forests[int(keys[its[0]])].totals(out.layout)
            packed = [monoid.pack([t] * len(its)) for monoid, t in zip(out.layout.monoids, total, strict=True)]
            yield from out.put_partials(which[its], packed)
    which, keys, begin, end = which[folded], keys[folded], begin[folded], end[folded]
    if not len(which):
        return
    runs = np.flatnonzero(np.diff(keys, prepend=-1))  # one of each key
    low, high = np.minimum.reduceat(begin, runs), np.maximum.reduceat(end, runs)
    load, ends = np.cumsum(high - low), np.append(runs[1:], len(keys))
    read = {i: [columns[i] for columns in places.sources] for i in out.layout.used}
    for at, behind in spans_of_lengths(high - low, _ROWS):
        before = int(load[at - 1]) if at else 0
        a, b = int(runs[at]), int(ends[behind - 1])
        columns = [column[:0] for column in places.sources[0]]
        for i, each in read.items():
            columns[i] = gather(each, places.of[keys[runs[at:behind]]], low[at:behind], high[at:behind])
        moved = load[at:behind] - high[at:behind] - before  # by how much rows move: behind those of the keys before
        moved = np.repeat(moved, ends[at:behind] - runs[at:behind])
        yield from out.put_rows(which[a:b], columns, begin[a:b] + moved, end[a:b] + moved)
