"""The entries of one key in any algorithm of the library.

    entry       (time 5, delay 20.0)  ─▶  at   5·2^64 + 0     partial (1, 20.0, …)    one per slot, the count first
                (time 5, delay  1.0)  ─▶  at   5·2^64 + 1     partial (1,  1.0, …)
                (time 3, delay  7.0)  ─▶  at   3·2^64 + 2     partial (1,  7.0, …)
                                               time    arrival

The papers' structures combine entries of equal time, and answer one aggregate. A window keeps such entries apart,
counts them, and has several aggregates. Both are bridged without touching the algorithms: they only compare times, so
the number of the arrival is made the low digits of the time, and no two entries are at the same one; and a tuple of
partials is itself a partial, of the *joint* monoid. So whatever an algorithm does, it does once for all aggregates, and
evicting by count is as exact as it is in a forest.

Example: the three entries above, of which the oldest two leave.

>>> from sash_engine.forest import Layout
>>> from sash_engine.monoids import Sum
>>> entries = ByAlgorithm(Layout({"delay": "float64"}, {"sum": (Sum(), ["delay"])}), "fiba")
>>> for time, delay in [(5, 20.0), (5, 1.0), (3, 7.0)]:
...     entries.insert(time, (delay,))
>>> entries.query(), entries.range_query(5, 5), entries.evict(2), entries.query()
([28.0], (2, [21.0]), 2, [1.0])

Time: as the algorithm's, times the number of aggregates; evicting many entries costs one eviction each where the
algorithm has no bulk eviction.  Space: as the algorithm's, a tuple of partials for each of its partials.
Requires: what the algorithm requires of a monoid, of every aggregate; `check_algorithm` says so beforehand.

An algorithm keeps no values, so there is no export and no new aggregate. It answers for ranges only where it keeps
partials of parts. Other calls raise `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sash_engine.aggregators import Capability, LogMTA, create
from sash_engine.errors import FailedPrecondition, Unsupported
from sash_engine.forest import Forest, Layout, RowSlice
from sash_engine.forest.series import answers_of
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished
from sash_engine.windows.keys.joint import Joint
from sash_engine.windows.keys.store import Same
from sash_engine.windows.spec.algorithms import check_ranges

__all__ = ["ByAlgorithm"]

_ARRIVAL_BITS = 64
"""The low digits of a time inside; there are never so many arrivals that they run over."""


class ByAlgorithm:
    """The entries of one key, sorted by (time, arrival), in an algorithm of the library; see `Forest`.

    Args:
        layout: columns and aggregates.
        algorithm: a name in `ALGORITHMS`.

    Raises:
        InvalidArgument: there is no such algorithm.
        Unsupported: it needs an inverse that one of the aggregates lacks.
    """

    __slots__ = ("_arrivals", "_can", "_in_order", "_joint", "_layout", "_timed", "algorithm")

    def __init__(self, layout: Layout, algorithm: str) -> None:
        self.algorithm = algorithm
        self._layout = layout
        self._joint = Joint(layout)
        self._timed = create(algorithm, self._joint)
        self._can = self._timed.capabilities
        self._in_order = Capability.INSERT_ANYWHERE not in self._can
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._timed)

    @property
    def oldest(self) -> int | None:
        """Time of the oldest entry, in ticks; None where empty."""
        oldest = self._timed.oldest
        return None if oldest is None else oldest >> _ARRIVAL_BITS

    @property
    def newest(self) -> int | None:
        """Time of the newest entry, in ticks; None where empty."""
        newest = self._timed.youngest
        return None if newest is None else newest >> _ARRIVAL_BITS

    # ---------------------------------------------------------------- inserting

    def check_insert(self, times: Array) -> None:
        """Check that entries with these times, int64 (m,) in any order, can be inserted as one bulk.

        Raises:
            FailedPrecondition: one is older than the newest entry, and the algorithm takes them in order only.
        """
        if self._in_order and len(times):
            self._check_order(int(times.min()))

    def _check_order(self, time: int) -> None:
        newest = self.newest
        if self._in_order and newest is not None and time < newest:
            raise FailedPrecondition(
                f"time {time} comes before the newest entry's {newest}, and {self.algorithm} takes entries in order "
                "of time only",
                field="time",
                limit=str(newest),
            )

    def insert(self, time: int, values: Sequence[Any]) -> None:
        """Insert one entry: `values` has one scalar per field. Entries of equal time keep arrival order.

        Raises:
            FailedPrecondition: as `check_insert`.
        """
        self._check_order(time)
        self._timed.insert((time << _ARRIVAL_BITS) + self._arrivals, self._joint.of_entry((time, *values)))
        self._arrivals += 1

    def bulk_insert(self, times: Array, columns: Sequence[Array]) -> None:
        """Insert m >= 0 entries: int64 (m,) times in any order, and per field an array (m,) of its dtype.

        Raises:
            FailedPrecondition: as `check_insert`.
        """
        self.check_insert(times)
        if not len(times):
            return
        order = np.argsort(times, kind="stable")
        rows = [column[order] for column in (times, *columns)]
        partials = self._joint.of_columns(rows)
        inside = [
            (time << _ARRIVAL_BITS) + arrival for arrival, time in enumerate(rows[0].tolist(), start=self._arrivals)
        ]
        pairs = zip(inside, partials, strict=True)
        if Capability.BULK_INSERT in self._can:
            self._timed.bulk_insert(pairs)
        else:
            for time, partial in pairs:
                self._timed.insert(time, partial)
        self._arrivals += len(inside)

    # ---------------------------------------------------------------- evicting

    def load_evicted(self, time: int) -> None:
        """Do nothing: everything is in memory."""

    def evict(self, count: int = 1) -> int:
        """Evict the `count` >= 0 oldest entries, or as many as there are; return how many."""
        timed, count = self._timed, min(count, len(self))
        if count > 1 and isinstance(timed, LogMTA):
            return timed.evict_while(lambda _, old: old[0] <= count)
        for _ in range(count):
            timed.evict()
        return count

    def bulk_evict(self, time: int) -> int:
        """Evict all entries with a time <= `time`; return how many."""
        timed, through, before = self._timed, _last(time), len(self)
        if Capability.BULK_EVICT in self._can:
            return timed.bulk_evict(through)
        while (oldest := timed.oldest) is not None and oldest <= through:
            timed.evict()
        return before - len(self)

    def load_between(self, start: int, end: int) -> None:
        """Do nothing: everything is in memory."""

    def evict_between(self, start: int, end: int) -> int:
        """Refuse: the algorithms evict at the old end only.

        Raises:
            Unsupported: always.
        """
        raise self._refused("entries out of the middle of a window")

    def load_named(self, times: Array, column: int, values: Sequence[Any]) -> None:
        """Do nothing: everything is in memory."""

    def newest_steps(self, column: int, values: Sequence[Any], once: bool) -> Steps[Array]:
        """Refuse, as `remove`.

        Raises:
            Unsupported: always.
        """
        raise self._refused("single entries")

    def remove(self, times: Array, column: int, values: Sequence[Any]) -> Array:
        """Refuse: the algorithms keep no values to tell entries apart.

        Raises:
            Unsupported: always.
        """
        raise self._refused("single entries")

    def correct(self, times: Array, column: int, values: Sequence[Any], columns: Sequence[Array]) -> Array:
        """Refuse, as `remove`.

        Raises:
            Unsupported: always.
        """
        raise self._refused("single entries")

    def _refused(self, what: str) -> Unsupported:
        return Unsupported(f"{self.algorithm} evicts the oldest entries only, and cannot remove {what}", field="start")

    def evict_while(self, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of oldest entries for which `holds`.

        Returns:
            how many left, and the time of the newest of them, or a later one before the oldest that stays where the
            algorithm evicts without looking at each (it takes no entries in between either); None where none did.

        Args:
            holds: asked as by `Forest.evict_while`, and monotone as there; it must not look at this window, from which
                entries may be leaving already. The monoid tree aggregators ask it O(log n) times, the others with
                ranges once for every entry that leaves and once more.

        Raises:
            Unsupported: the algorithm has no ranges.
        """
        timed = self._timed
        if isinstance(timed, LogMTA):
            newest = self.newest
            count = timed.evict_while(lambda _, old: holds(old[0], old[1:]))
            return count, (self.oldest if len(self) else newest) if count else None
        check_ranges(self.algorithm)
        gone, last = self._joint.identity, None
        while (oldest := timed.oldest) is not None:
            longer = self._joint.combine(gone, timed.range_query(oldest, oldest))
            if not holds(longer[0], longer[1:]):
                break
            last = self.oldest
            timed.evict()
            gone = longer
        return gone[0], last

    def sweep(self, blocks: int = 256) -> bool:
        """Do nothing, as evicted entries leave nothing behind; return False."""
        return False

    def drop(self) -> None:
        """Evict all entries."""
        self.evict(len(self))

    # ---------------------------------------------------------------- reading

    # One structure has the partials of all slots. Of some slots (`part`, see `ReadableStore`) it answers only these.

    def query(self, part: Layout | None = None) -> list[Any]:
        """The answers over all entries, in the order of the layout's names."""
        return (self._layout if part is None else part).lower(len(self), self.totals(part))

    def totals(self, part: Layout | None = None) -> list[Partial]:
        """The partials over all entries, one per slot."""
        return _some(self._timed.query()[1:], part)

    def range_query(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Any]]:
        """The number of entries with start <= time <= end, and the answers over them.

        Raises:
            Unsupported: the algorithm has no ranges.
        """
        entries, partials = self.range_totals(start, end, part)
        return entries, (self._layout if part is None else part).lower(entries, partials)

    def range_totals(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of entries with start <= time <= end, and their partials.

        Raises:
            Unsupported: the algorithm has no ranges.
        """
        check_ranges(self.algorithm)
        entries, *partials = self._timed.range_query(start << _ARRIVAL_BITS, _last(end))
        return entries, _some(partials, part)

    def series(self, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        """Answer over many time ranges, start <= time < stop, with one range query each; see `Forest.series`.

        Raises:
            Unsupported: the algorithm has no ranges.
        """
        return finished(self.series_steps(starts, stops))

    def series_steps(self, starts: Array, stops: Array, part: Layout | None = None) -> Steps[tuple[Array, list[Array]]]:
        """As `series`, in steps of one range; no entry may come or leave from the first to the last."""
        check_ranges(self.algorithm)
        found, layout = [], self._layout if part is None else part
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            found.append(self.range_totals(start, stop - 1, part))
            yield
        entries = np.array([count for count, _ in found], np.int64)
        filled = np.flatnonzero(entries)
        totals = [found[i][1] for i in filled.tolist()]
        partials = [monoid.pack([each[slot] for each in totals]) for slot, monoid in enumerate(layout.monoids)]
        return entries, (yield from answers_of(layout, partials if totals else [], filled, entries))

    # ---------------------------------------------------------------- what would need the values

    @property
    def forest(self) -> Forest:
        """Refuse.

        Raises:
            Unsupported: always.
        """
        raise self._without_values("nothing of it can be stored")

    def capture(self, start: int | None, end: int | None) -> list[RowSlice]:
        """Refuse.

        Raises:
            Unsupported: always.
        """
        raise self._without_values("its entries cannot be given back")

    def neighbours(self, time: int) -> tuple[int | None, int | None]:
        """Refuse: nothing leaves from the middle, which this is for.

        Raises:
            Unsupported: always.
        """
        raise self._refused("entries out of the middle of a window")

    def columns(self) -> list[Array]:
        """Refuse.

        Raises:
            Unsupported: always.
        """
        raise self._without_values("its entries cannot be given back")

    def replace(self, times: Array, columns: Sequence[Array]) -> None:
        """Refuse.

        Raises:
            Unsupported: always.
        """
        raise self._without_values("an entry of equal time cannot be found again")

    def relayout(self, layout: Layout) -> None:
        """Refuse.

        Raises:
            Unsupported: always.
        """
        raise self._without_values("an aggregate cannot be computed from its entries later")

    def _without_values(self, consequence: str) -> Unsupported:
        return Unsupported(f"{self.algorithm} keeps partials and no values: {consequence}", field="algorithm")

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Same | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold.

        Args:
            same: compares two partials, as in `Forest`; the algorithms compare them as they see fit.
        """
        self._timed.check_invariants()
        counted = self._timed.query()[0]
        assert counted == len(self), f"the partials are over {counted} entries, len says {len(self)}"
        assert len(self) <= self._arrivals, f"{len(self)} entries of {self._arrivals} arrivals"


def _some(partials: Sequence[Partial], part: Layout | None) -> list[Partial]:
    return list(partials) if part is None else [partials[slot] for slot in part.slots]


def _last(time: int) -> int:
    """The time inside of the last entry there could be at `time`."""
    return ((time + 1) << _ARRIVAL_BITS) - 1
