"""The fold of each of many groups of keys, in steps.

    keys      k0 k1 k2 k3 …     some rows' worth a step
    group      2  0  2  0       sorted by group: k1 k3 | k0 k2
    rows      [k1 k1 k3 | k0 k2 k2]   one vectorised fold for each aggregate, a segment for each group
    totals    group 0 ◀── k1 k3,   group 2 ◀── k0 k2

A key with a store of its own is folded by its store. Of keys all of whose entries count, totals are kept from question
to question (totals.py); then those that have changed are folded anew, and a group from the totals of its keys.

Costs: O(rows of small keys + stores · log n), in a fixed number of vectorised calls a step.
Requires: commutativity where a group has several keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_engine.forest import Layout
from sash_engine.forest.segments import starts_of_runs
from sash_engine.forest.series import reduce_steps
from sash_engine.monoids import Partial
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.ragged import spans_of_lengths
from sash_engine.windows.keys.totals import KeyTotals, Totals
from sash_engine.windows.sliding.view_keys import ReadableKeys

_KEYS, _ROWS = 65_536, 32_768
"""Keys that one step looks at, and rows of small keys that it folds."""
_MANY = 4_096
"""Totals are kept for questions about so many keys."""

Bounds = tuple[Numbers, Numbers]
"""For each group, int64 (n,): the first and the last time of its entries that count."""


def nothing_of(n: int) -> Bounds:
    """The bounds of n groups none of whose entries count."""
    return np.full(n, 1), np.full(n, 0)


def fold_groups(
    keys: ReadableKeys,
    layout: Layout,
    numbers: Numbers,
    of: Numbers,
    n: int,
    bounds: Bounds | None = None,
    slots: Sequence[int] | None = None,
    among: Numbers | None = None,
) -> Steps[Totals]:
    """Fold the entries of k distinct keys by group.

    Args:
        keys, layout: of the window.
        numbers: int64 (k,), which keys.
        of: int64 (k,), the group of each, below `n`.
        bounds: only entries of these times; None: all.
        slots: which aggregates; None: all of the layout.
        among: int64, rising, with `numbers`, which rise, too. The work is cut into steps as if these were asked about,
            so that a group has the same answer as among all groups, to the last bit; None: `numbers`.
    """
    among = numbers if among is None else among
    picked = layout.slots if slots is None else slots
    some_layout = layout if slots is None else layout.only(slots)
    totals = Totals(some_layout, n)
    wanted = sorted({i for reads in some_layout.reads for i in reads})
    stores = _Stores(some_layout)
    kept = keys.kept_totals(picked) if len(picked) and len(among) >= _MANY else None
    for a, b in spans_of(len(among), _KEYS):
        cuts = _cuts(keys.shared_rows(among[a:b]))
        if among is not numbers:
            cuts = numbers.searchsorted(np.append(among[a:b], among[b - 1] + 1)[cuts])
            a, b = cuts[[0, -1]].tolist()
            cuts -= a
        counts = keys.shared_rows(numbers[a:b])
        yield from stores.take(keys, numbers[a:b], of[a:b], bounds)
        if kept is not None:
            whole = _whole(keys, numbers[a:b], of[a:b], counts, bounds)
            some = slice(a, b) if whole.all() else a + np.flatnonzero(whole)
            yield from _fold_kept(keys, totals, kept, picked, numbers[some], of[some], counts[whole])
            counts[whole] = 0
        for at, stop in pairwise(cuts.tolist()):
            here = slice(a + at, a + stop)
            if counts[at:stop].any():
                yield from _fold_some(keys, totals, wanted, numbers[here], of[here], counts[at:stop], bounds)
        yield
    yield from stores.into(totals)
    return totals


def _cuts(counts: Numbers) -> Numbers:
    """Where to cut keys of so many rows into runs of at most `_ROWS`, or of one key: from 0 to their number."""
    return np.array([0, *(stop for _, stop in spans_of_lengths(counts, _ROWS))])


def _whole(
    keys: ReadableKeys, numbers: Numbers, of: Numbers, counts: Numbers, bounds: Bounds | None
) -> npt.NDArray[np.bool_]:
    """Which of some keys have rows in shared pages, all of which count."""
    whole: npt.NDArray[np.bool_] = (counts > 0) & keys.whole_each(numbers)
    if bounds is not None:
        whole &= (keys.now[numbers] <= bounds[1][of]) & (keys.oldest_each(numbers) >= bounds[0][of])
    return whole


def _fold_kept(
    keys: ReadableKeys,
    totals: Totals,
    kept: KeyTotals,
    picked: Sequence[int],
    numbers: Numbers,
    of: Numbers,
    counts: Numbers,
) -> Steps[None]:
    """Fold the totals of keys, all of whose rows count."""
    if not len(numbers):
        return
    stale = np.flatnonzero(~kept.fresh[numbers])
    layout = totals.layout if kept.slots == list(picked) else keys.layout_of(kept.slots)
    wanted = sorted({i for reads in layout.reads for i in reads})
    for a, b in spans_of_lengths(counts[stale], _ROWS):
        some = stale[a:b]
        _, columns = keys.rows_each(numbers[some], counts[some], wanted, None, None)
        rows = np.cumsum(counts[some]) - counts[some]
        found = yield from reduce_steps(layout, columns, rows)
        changed = numbers[some]
        kept.put(changed, keys.oldest_each(changed), keys.newest_each(changed), found)
        yield
    numbers, of, counts = _by_group(numbers, of, counts)
    firsts, panes = starts_of_runs(of), kept.layout(picked)
    columns = kept.columns(picked, numbers)
    if len(firsts) == len(of):
        folds = [tuple([columns[i] for i in reads]) for reads in panes.reads]
    else:
        folds = yield from reduce_steps(panes, columns, firsts)
        counts = np.add.reduceat(counts, firsts)
    yield from totals.add(of[firsts], counts, folds)


def _fold_some(
    keys: ReadableKeys,
    totals: Totals,
    wanted: Sequence[int],
    numbers: Numbers,
    of: Numbers,
    counts: Numbers,
    bounds: Bounds | None,
) -> Steps[None]:
    """Fold the rows of keys that share pages."""
    numbers, of, counts = _by_group(numbers, of, counts)
    start, end = (None, None) if bounds is None else (bounds[0][of], bounds[1][of])
    counts, columns = keys.rows_each(numbers, counts, wanted, start, end)
    filled = counts > 0
    if not filled.all():
        of, counts = of[filled], counts[filled]
    if not len(of):
        yield
        return
    firsts = starts_of_runs(of)
    ends = np.cumsum(counts)
    rows = (ends - counts)[firsts]
    length: npt.NDArray[Any] = np.diff(np.append(rows, ends[-1]))
    yield from totals.add(of[firsts], length, (yield from reduce_steps(totals.layout, columns, rows)))
    yield


def _by_group(numbers: Numbers, of: Numbers, counts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Keys, their groups and how many rows they have, sorted by group."""
    if not (of[1:] < of[:-1]).any():
        return numbers, of, counts
    first = int(of.min())
    order = np.argsort((of - first).astype(np.min_scalar_type(int(of.max()) - first)), kind="stable")
    return numbers[order], of[order], counts[order]


class _Stores:
    """Folds of the keys with a store of their own, by group."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._found: dict[int, tuple[int, list[Partial]]] = {}

    def take(self, keys: ReadableKeys, numbers: Numbers, of: Numbers, bounds: Bounds | None) -> Steps[None]:
        """Fold the entries of those of some keys that have a store of their own."""
        groups = dict(zip(numbers.tolist(), of.tolist(), strict=True)) if keys.any_own(numbers) else {}
        for number, store in keys.with_own_stores(numbers) if groups else ():
            group = groups[number]
            if bounds is None:
                entries, found = len(store), store.totals(self._layout)
            else:
                entries, found = store.range_totals(bounds[0].item(group), bounds[1].item(group), self._layout)
            if entries:
                if group in self._found:
                    before, totals = self._found[group]
                    entries += before
                    pairs = zip(self._layout.monoids, totals, found, strict=True)
                    found = [monoid.combine(older, newer) for monoid, older, newer in pairs]
                self._found[group] = entries, found
            yield

    def into(self, totals: Totals) -> Steps[None]:
        """Add what was found."""
        items = list(self._found.items())
        for a, b in spans_of(len(items), 1_024):
            groups = np.array([group for group, _ in items[a:b]], np.int64)
            entries = np.array([each for _, (each, _) in items[a:b]], np.int64)
            columns = zip(*[partials for _, (_, partials) in items[a:b]], strict=True)
            packed = [monoid.pack(list(column)) for monoid, column in zip(self._layout.monoids, columns, strict=False)]
            yield from totals.add(groups, entries, packed)
