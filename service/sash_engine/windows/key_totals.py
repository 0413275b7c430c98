"""Totals of keys that share pages, kept between questions about many keys.

    question about all entries of many keys ──▶ totals of keys that have changed since are folded from rows, and kept
                                            ──▶ groups are folded from a total for each key, not from its rows

A write notes which keys it changes. A total is kept only for aggregates whose partials are numbers, as long as all take
few enough bytes. Other questions read rows.

Space: the bytes of the partials that are kept, and 17 more for the times and a flag, for each number of a key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sash_engine.forest import Layout
from sash_engine.monoids import Partials
from sash_engine.monoids.pane import Pane
from sash_engine.windows.page_allocator import Numbers
from sash_engine.windows.ragged import grown

__all__ = ["KeyTotals"]

_TIMES_BYTES = 17


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
