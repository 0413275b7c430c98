"""Totals of many groups as columns of partials, to which more is added in steps; of keys, kept; and of answers.

    question about all entries of many keys ──▶ totals of keys that have changed since are folded from rows, and kept
                                            ──▶ groups are folded from a total for each key, not from its rows

`KeyTotals` are of keys that share pages. A write notes which keys it changes. A total is kept only for aggregates whose
partials are numbers, as long as all take few enough bytes. Other questions read rows.

Space of `KeyTotals`: the bytes of the partials that are kept, and 17 more for the times and a flag, for each number of
a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_engine.forest import Layout
from sash_engine.forest.series import at_once, rows_of
from sash_engine.monoids import Count, Monoid, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import Pane, exported
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.keys.allocator import Numbers
from sash_engine.windows.keys.ragged import grown

_TIMES_BYTES = 17
_COUNT: Monoid = Count()


class Totals:
    """The partials of n groups.

    Args:
        layout: the aggregates.
        n: how many groups.

    Attributes:
        entries: int64 (n,), how many rows each group has.
        there: bool (n,), which groups have any.
        partials: per slot n partials; they mean nothing where a group has no rows.
    """

    def __init__(self, layout: Layout, n: int) -> None:
        self.layout = layout
        self.entries: Numbers = np.zeros(n, np.int64)
        self.there = np.zeros(n, np.bool_)
        self.partials: list[Partials] = [
            tuple([np.empty(n, dtype) for dtype in monoid.dtypes]) for monoid in layout.monoids
        ]

    def add(self, groups: Numbers, entries: Numbers, partials: Sequence[Partials]) -> Steps[None]:
        """Add to k distinct groups: how many rows, and per slot k partials."""
        at: Any = groups
        if len(groups) and groups[-1] - groups[0] == len(groups) - 1 and (groups[1:] > groups[:-1]).all():
            at = slice(int(groups[0]), int(groups[-1]) + 1)  # neighbours: nothing is gathered
        self.entries[at] += entries
        there = self.there[at]
        if not there.any():
            for mine, theirs in zip(self.partials, partials, strict=True):
                for part, column in zip(mine, theirs, strict=True):
                    part[at] = column
                yield
            self.there[at] = True
            return
        both, new = np.flatnonzero(there), np.flatnonzero(~there)
        for monoid, mine, theirs in zip(self.layout.monoids, self.partials, partials, strict=True):
            for a, b in spans_of(len(both), at_once(monoid, "combine_columns")):
                some, places = both[a:b], groups[both[a:b]]
                combined = monoid.combine_columns(rows_of(mine, places), rows_of(theirs, some))
                for part, column in zip(mine, combined, strict=True):
                    part[places] = column
                yield
            for part, column in zip(mine, theirs, strict=True):
                part[groups[new]] = column[new]
            yield
        self.there[at] = True

    def of(self, group: int) -> list[Partial]:
        """The partials of a group that has rows, one per slot."""
        rows = np.array([group])
        pairs = zip(self.layout.monoids, self.partials, strict=True)
        return [monoid.unpack(rows_of(each, rows))[0] for monoid, each in pairs]


class KeyTotals:
    """Totals by the number of a key.

    Args:
        layout: of the window; other aggregates need other totals.
        most_bytes: how many bytes of a key may be kept.

    Attributes:
        fresh: bool, by number: whether the total is of the rows that the key has.
        oldest, newest: int64, by number: the times of the first and the last of these.
    """

    def __init__(self, layout: Layout, most_bytes: int) -> None:
        self._layout, self._most_bytes = layout, most_bytes
        self.fresh: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self.oldest: Numbers = np.empty(0, np.int64)
        self.newest: Numbers = np.empty(0, np.int64)
        self._kept: dict[int, Partials] = {}

    def reach(self, numbers: int) -> None:
        """Make room for all numbers below this one."""
        if numbers > len(self.fresh):
            self.fresh = grown(self.fresh, numbers, False)
            room = len(self.fresh)
            self.oldest, self.newest = (grown(times, room, 0)[:room] for times in (self.oldest, self.newest))
            self._kept = {
                slot: tuple([grown(part, room, 0)[:room] for part in parts]) for slot, parts in self._kept.items()
            }

    def keeps(self, slots: Sequence[int]) -> bool:
        """Whether totals of these aggregates are kept; from now on they are, if they may be."""
        new = [slot for slot in slots if slot not in self._kept]
        if not new:
            return True
        dtypes = [dtype for slot in (*self._kept, *new) for dtype in self._layout.monoids[slot].dtypes]
        bytes_of_key = _TIMES_BYTES + sum(dtype.itemsize for dtype in dtypes)
        if any(dtype.hasobject for dtype in dtypes) or bytes_of_key > self._most_bytes:
            return False
        for slot in new:
            dtypes = list(self._layout.monoids[slot].dtypes)
            self._kept[slot] = tuple([np.zeros(len(self.fresh), dtype) for dtype in dtypes])
        self.fresh[:] = False
        return True

    @property
    def slots(self) -> list[int]:
        """The aggregates of which totals are kept."""
        return list(self._kept)

    def put(self, numbers: Numbers, oldest: Numbers, newest: Numbers, totals: Sequence[Partials]) -> None:
        """Keep the totals of some keys, for each of `slots` k partials, and the times of their rows."""
        self.oldest[numbers], self.newest[numbers] = oldest, newest
        for parts, columns in zip(self._kept.values(), totals, strict=True):
            for part, column in zip(parts, columns, strict=True):
                part[numbers] = column
        self.fresh[numbers] = True

    def take(self, times: Numbers, keys: Numbers, some: Numbers, into: Numbers) -> Numbers:
        """Write the times that are known of `some` places in `keys` into an array; return the other places."""
        fresh = self.fresh[keys[some]]
        if fresh.all():
            into[some] = times[keys[some]]
            return some[:0]
        known = some[fresh]
        into[known] = times[keys[known]]
        return some[~fresh]

    def columns(self, slots: Sequence[int], numbers: Numbers) -> list[npt.NDArray[np.generic]]:
        """The parts of the totals of some keys, for each slot after the other."""
        return [part[numbers] for slot in slots for part in self._kept[slot]]

    def layout(self, slots: Sequence[int]) -> Layout:
        """The aggregates that read what `columns` returns."""
        narrow, at, reads = self._layout.only(slots), 0, list[tuple[int, ...]]()
        for monoid in narrow.monoids:
            reads.append(tuple(range(at, at + len(monoid.dtypes))))
            at += len(monoid.dtypes)
        narrow.monoids = tuple([each if isinstance(each, Pane) else Pane(each) for each in narrow.monoids])
        narrow.reads = tuple(reads)
        return narrow


def partials_of(layout: Layout, entries: int, totals: Sequence[Partial]) -> dict[str, Partials]:
    """Return each aggregate's partial: columns of one row, or of none over no entries.

    Args:
        totals: a partial per slot.
    """
    out = {}
    for name, slot in _slots(layout):
        monoid, partial = (_COUNT, entries) if slot < 0 else (layout.monoids[slot], totals[slot])
        out[name] = exported(monoid, [partial] if entries else [])
    return out


def partials_of_buckets(layout: Layout, entries: Array, folds: Sequence[Partials]) -> dict[str, Partials]:
    """Return each aggregate's partials of the buckets that have entries: columns with a row for each.

    Args:
        entries: int64 (n,), how many entries each of n buckets has.
        folds: per slot a row for each bucket that has entries; nothing if none has.
    """
    out = {}
    for name, slot in _slots(layout):
        if slot < 0:
            out[name] = exported(_COUNT, entries[entries > 0].tolist())
        else:
            monoid = layout.monoids[slot]
            out[name] = exported(monoid, monoid.unpack(folds[slot]) if folds else [])
    return out


def _slots(layout: Layout) -> zip[tuple[str, int]]:
    # The slots of panes begin with one that has no name.
    return zip(layout.names, layout.answers[-len(layout.names) :], strict=True)
