"""A store of each algorithm beside a list of its entries."""

from __future__ import annotations

import numpy as np
import pytest

from sash_engine.aggregators import ALGORITHMS, Capability
from sash_engine.errors import FailedPrecondition, Unsupported
from sash_engine.forest import Layout
from sash_engine.monoids import ArgMax, Collect, Count, Max, Sum
from sash_engine.windows.keys.by_algorithm import ByAlgorithm

__all__ = [
    "NAMES",
    "INVERTING",
    "ANY_ORDER",
    "WITH_RANGES",
    "FIELDS",
    "INVERTIBLE",
    "ALL",
    "layout_for",
    "fold",
    "AlgorithmLockstep",
]

NAMES = sorted(ALGORITHMS)
INVERTING = {name for name in NAMES if ALGORITHMS[name].inverts}
ANY_ORDER = {name for name in NAMES if Capability.INSERT_ANYWHERE in ALGORITHMS[name].capabilities}
WITH_RANGES = {name for name in NAMES if Capability.RANGE_QUERY in ALGORITHMS[name].capabilities}

FIELDS = {"value": "int64", "tag": "string"}
INVERTIBLE = {"sum": (Sum("int64"), ["value"]), "entries": (Count(), ["time"]), "again": (Sum("int64"), ["value"])}
ALL = INVERTIBLE | {
    "all": (Collect("int64"), ["value"]),
    "max": (Max("int64"), ["value"]),
    "max_tag": (ArgMax("int64", "string"), ["value", "tag"]),
}


def layout_for(name):
    return Layout(FIELDS, INVERTIBLE if name in INVERTING else ALL)


def fold(layout, values):
    """The answers over the values, by what the words mean."""
    found = {
        "sum": sum(values),
        "again": sum(values),
        "entries": len(values),
        "all": values,
        "max": max(values, default=None),
        "max_tag": f"t{max(values)}" if values else None,
    }
    return [found[name] for name in layout.names]


class AlgorithmLockstep:
    """A `ByAlgorithm` beside a sorted list; steps are those of `tests.support.forest_model`.

    Values differ, and neither rise nor fall with their arrival, so that a wrong order or a lost entry shows.
    """

    def __init__(self, name):
        self.name = name
        self.layout = layout_for(name)
        self.window = ByAlgorithm(self.layout, name)
        self.entries = []  # (time, value), sorted by time, then arrival
        self.arrivals = 0
        self.now = 0

    def run(self, steps):
        for step in steps:
            getattr(self, step[0])(*step[1:])
            self.check()

    def check(self):
        window, entries = self.window, self.entries
        assert len(window) == len(entries)
        assert window.oldest == (entries[0][0] if entries else None)
        assert window.newest == (entries[-1][0] if entries else None)
        assert window.query() == fold(self.layout, [value for _, value in entries])
        window.check_invariants()

    def insert(self, after):
        time, values = self.now + after, self._values(1)
        if self._refused([time], lambda: self.window.insert(time, (values[0], f"t{values[0]}"))):
            return
        self.window.insert(time, (values[0], f"t{values[0]}"))
        self._arrive([time], values)

    def bulk(self, steps):
        times = (self.now + np.cumsum(np.array(steps, np.int64))).astype(np.int64)
        values = self._values(len(times))
        columns = [np.array(values, np.int64), np.array([f"t{value}" for value in values], object)]
        for column in (times, *columns):
            column.flags.writeable = False
        if self._refused(times.tolist(), lambda: self.window.bulk_insert(times, columns)):
            with pytest.raises(FailedPrecondition, match="in order"):
                self.window.check_insert(times)
            return
        self.window.check_insert(times)
        self.window.bulk_insert(times, columns)
        self._arrive(times.tolist(), values)

    def evict(self, count):
        assert self.window.evict(count) == min(count, len(self.entries))
        del self.entries[:count]

    def bulk_evict(self, after):
        kept = [entry for entry in self.entries if entry[0] > self.now + after]
        assert self.window.bulk_evict(self.now + after) == len(self.entries) - len(kept)
        self.entries = kept

    def evict_while(self, most):
        slot = self.layout.answers[self.layout.names.index("sum")]
        before = list(self.entries)

        def holds(entries, partials):
            assert len(partials) == len(self.layout.monoids)
            assert partials[slot] == sum(value for _, value in before[:entries])
            return partials[slot] <= most

        if self.name not in WITH_RANGES:
            with pytest.raises(Unsupported, match="whole window only"):
                self.window.evict_while(holds)
            return
        total = count = 0
        for _, value in before:
            total += value
            if total > most:
                break
            count += 1
        evicted, last = self.window.evict_while(holds)
        assert evicted == count
        if count:
            stays = before[count][0] if count < len(before) else last
            assert before[count - 1][0] <= last <= stays
        else:
            assert last is None
        del self.entries[:count]

    def range(self, after, width):
        start, end = self.now + after, self.now + after + width
        if self.name not in WITH_RANGES:
            with pytest.raises(Unsupported, match=r"whole window only.*amta.*recalc") as refused:
                self.window.range_query(start, end)
            assert refused.value.field == "algorithm"
            return
        inside = [value for time, value in self.entries if start <= time <= end]
        assert self.window.range_query(start, end) == (len(inside), fold(self.layout, inside))

    def series(self, after, count, step, width):
        starts = self.now + after + step * np.arange(count)
        if self.name not in WITH_RANGES:
            with pytest.raises(Unsupported, match="whole window only"):
                self.window.series(starts, starts + width)
            return
        entries, answers = self.window.series(starts, starts + width)
        assert entries.dtype == np.int64
        inside = [[v for time, v in self.entries if start <= time < start + width] for start in starts.tolist()]
        assert entries.tolist() == [len(values) for values in inside]
        rows = list(zip(*(column.tolist() for column in answers), strict=True))
        assert rows == [tuple(fold(self.layout, values)) for values in inside]

    def _values(self, count):
        return [(self.arrivals + i) * 61 % 101 for i in range(count)]

    def _refused(self, times, write):
        """Whether the write comes too early for the algorithm; then it is seen to be refused."""
        if self.name in ANY_ORDER or not times or not self.entries or min(times) >= self.entries[-1][0]:
            return False
        with pytest.raises(
            FailedPrecondition, match=f"time {min(times)} .*{self.entries[-1][0]}.*{self.name}"
        ) as early:
            write()
        assert (early.value.field, early.value.limit) == ("time", str(self.entries[-1][0]))
        return True

    def _arrive(self, times, values):
        self.entries += zip(times, values, strict=True)
        self.entries.sort(key=lambda entry: entry[0])
        self.arrivals += len(times)
        self.now = max([self.now, *times])
