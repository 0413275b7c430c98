"""A forest beside its model: a sorted list, every answer a fold from scratch, compared after each step.

A step is a tuple: its name and what it takes. Times are relative to the newest time so far ("now"), so that a
random history is mostly in order and never far from it.

    ("insert", -2)              one entry at now - 2
    ("bulk", [0, 1, -3, 1])     several at once; each is relative to the one before, the first to now
    ("evict", 3)                the three oldest
    ("bulk_evict", -5)          all up to now - 5
    ("evict_between", -9, 4)    those from now - 9 on, and the 4 ticks behind
    ("remove", [0, 7, -1])      the entries with these places in the list, by time and value; and one that is not there
    ("correct", [0, 7, -1])     those entries get values of their own; two of one entry: the second
    ("evict_while", 20)         the longest prefix of values with a sum of at most 20
    ("ask",)                    nothing changes; ask about all
    ("range", -9, 4)            nothing changes; ask about now - 9 and the 4 ticks behind
    ("series", -9, 4, 2, 5)     4 ranges from now - 9 on, one every 2 ticks, each 5 wide
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sash_engine.forest import Forest, Layout
from sash_engine.monoids import Collect, Count, First, Monoid, Read, Sum
from sash_engine.monoids.base import ANY

Step = tuple[Any, ...]


class Bag(Monoid):
    """All values, whatever their order: the free commutative monoid, so that nothing hides behind arithmetic."""

    function = "bag"
    reads = (Read("field", ANY),)
    commutative = True
    answer = list
    identity = ()

    def lift(self, value):
        return (value,)

    def combine(self, older, newer):
        return tuple(sorted(older + newer))

    def lower(self, partial):
        return list(partial)


def ordered_layout(block):
    """Aggregates of which one notices a wrong order."""
    return Layout(
        {"value": "int64"},
        {
            "all": (Collect("int64"), ["value"]),
            "entries": (Count(), ["time"]),
            "sum": (Sum("int64"), ["value"]),
            "first": (First("int64"), ["value"]),
        },
        block,
    )


def commuting_layout(block):
    """Aggregates that all commute, so that splices are deferred."""
    return Layout({"value": "int64"}, {"bag": (Bag("int64"), ["value"]), "sum": (Sum("int64"), ["value"])}, block)


LAYOUTS = {"ordered": ordered_layout, "commuting": commuting_layout}


class ForestLockstep:
    """Applies steps to a forest and to its model and compares all they answer.

    Args:
        layout: one of `LAYOUTS`.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.forest = Forest(layout)
        self.entries: list[tuple[int, int]] = []  # sorted by time, then arrival; values number the arrivals
        self.arrivals = 0
        self.now = 0

    def run(self, steps: list[Step], check_every: int = 1) -> None:
        for number, step in enumerate(steps, 1):
            getattr(self, step[0])(*step[1:])
            if number % check_every == 0:
                self.check()

    def check(self) -> None:
        forest, entries = self.forest, self.entries
        assert len(forest) == len(entries)
        assert forest.oldest == (entries[0][0] if entries else None)
        assert forest.newest == (entries[-1][0] if entries else None)
        assert forest.query() == self.answers(entries)
        forest.check_invariants()
        self.check_rows(forest.columns(), entries)

    def check_rows(self, columns: list[np.ndarray], entries: list[tuple[int, int]]) -> None:
        times, values = columns
        assert list(zip(times.tolist(), values.tolist(), strict=True)) == entries

    def by_row(self, entries: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """The entries of each row."""
        return [[entry] for entry in entries]

    def answers(self, entries: list[tuple[int, int]]) -> list[Any]:
        values = [value for _, value in entries]
        found = {
            "all": values,
            "bag": sorted(values),
            "sum": sum(values),
            "entries": len(values),
            "n": len(values),
            "first": values[0] if values else None,
        }
        return [found[name] for name in self.layout.names]

    # ---------------------------------------------------------------- steps

    def insert(self, after: int) -> None:
        time = self.now + after
        self.forest.insert(time, self.row(time, self.arrivals))
        self._arrive([time])

    def bulk(self, steps: list[int]) -> None:
        times = (self.now + np.cumsum(np.array(steps, np.int64))).astype(np.int64)
        values = np.arange(self.arrivals, self.arrivals + len(steps))
        before = times.copy(), values.copy()
        times.flags.writeable = values.flags.writeable = False
        self.forest.bulk_insert(*self.columns(times, values))
        self._arrive(times.tolist())
        assert np.array_equal(times, before[0])
        assert np.array_equal(values, before[1])

    def row(self, time: int, value: int) -> Sequence[Any]:
        """A row with one entry, as it is inserted."""
        return (value,)

    def columns(self, times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Rows with some entries, as they are inserted."""
        return times, [values]

    def evict(self, count: int) -> None:
        rows = self.by_row(self.entries)
        assert self.forest.evict(count) == min(count, len(rows))
        del self.entries[: sum(map(len, rows[:count]))]

    def bulk_evict(self, after: int) -> None:
        kept = [entry for entry in self.entries if entry[0] > self.now + after]
        assert self.forest.bulk_evict(self.now + after) == len(self.entries) - len(kept)
        self.entries = kept

    def evict_between(self, after: int, width: int) -> None:
        start, end = self.now + after, self.now + after + width
        kept = [entry for entry in self.entries if not start <= entry[0] <= end]
        assert self.forest.evict_between(start, end) == len(self.entries) - len(kept)
        self.entries = kept

    def named(self, places: list[int]) -> list[tuple[int, int]]:
        """The entries with these places in the list, and one that is not there."""
        size = len(self.entries)
        there = {self.entries[place % size] for place in places} if size else set()
        return sorted([*there, (self.now - 3, -1)])

    def remove(self, places: list[int]) -> None:
        asked = self.named(places)
        times, values = np.array([time for time, _ in asked]), [value for _, value in asked]
        found = self.forest.remove(times, 1, values)
        assert found.tolist() == [value >= 0 for value in values]
        self.entries = [entry for entry in self.entries if entry not in asked]

    def correct(self, places: list[int]) -> None:
        size = len(self.entries)
        mine = sorted(self.entries[place % size] for place in places) if size else []
        asked = sorted([*mine, (self.now - 3, -1)])
        times, names = np.array([time for time, _ in asked]), [value for _, value in asked]
        values = np.arange(self.arrivals, self.arrivals + len(asked))
        self.arrivals += len(asked)
        assert self.forest.correct(times, 1, names, [values]).tolist() == [name >= 0 for name in names]
        given = dict(zip(asked, values.tolist(), strict=True))
        self.entries = [(entry[0], given.get(entry, entry[1])) for entry in self.entries]

    def evict_while(self, most: int) -> None:
        slot = dict(zip(reversed(self.layout.names), reversed(self.layout.answers), strict=False))["sum"]
        asked = []

        def holds(entries, partials):
            assert partials[slot] == sum(value for _, value in self.entries[:entries])
            asked.append(entries)
            return partials[slot] <= most

        total = count = 0
        rows = self.by_row(self.entries)
        for row in rows:
            total += sum(value for _, value in row)
            if total > most:
                break
            count += len(row)
        size = len(self.entries)
        last = self.entries[count - 1][0] if count else None
        assert self.forest.evict_while(holds) == (count, last)
        assert len(asked) <= 6 * max(size, 2).bit_length()
        assert count or not size or asked == [len(rows[0])]
        del self.entries[:count]

    def ask(self) -> None:
        assert self.forest.query() == self.answers(self.entries)

    def range(self, after: int, width: int) -> None:
        start, end = self.now + after, self.now + after + width
        inside = [entry for entry in self.entries if start <= entry[0] <= end]
        assert self.forest.range_query(start, end) == (len(inside), self.answers(inside))

    def series(self, after: int, count: int, step: int, width: int) -> None:
        starts = self.now + after + step * np.arange(count)
        entries, answers = self.forest.series(starts, starts + width)
        assert entries.dtype == np.int64
        inside = [[e for e in self.entries if start <= e[0] < start + width] for start in starts.tolist()]
        assert entries.tolist() == [len(those) for those in inside]
        rows = list(zip(*(column.tolist() for column in answers), strict=True))
        assert rows == [tuple(self.answers(those)) for those in inside]

    def loading(self, name: str, *given: Any) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """What loads all that a step needs, and its arguments."""
        if name == "bulk_evict":
            return self.forest.load_evicted, (self.now + given[0],)
        if name == "evict_between":
            return self.forest.load_between, (self.now + given[0], self.now + sum(given))
        asked = self.named(given[0])
        return self.forest.load_named, (np.array([time for time, _ in asked]), 1, [value for _, value in asked])

    def relayout(self, layout: Layout) -> None:
        self.forest.relayout(layout)
        self.layout = layout

    def _arrive(self, times: list[int]) -> None:
        for time in times:
            self.entries.append((time, self.arrivals))
            self.arrivals += 1
        self.entries.sort(key=lambda entry: entry[0])
        self.now = max([self.now, *times])


def histories(
    span: int = 20,
    bulk: int = 30,
    length: int = 30,
    between: st.SearchStrategy[Step] | None = None,
    middle: bool = True,
) -> st.SearchStrategy[list[Step]]:
    """Histories of at most `length` steps: disorder up to `span` ticks, bulks of up to `bulk` entries.

    Args:
        between: other steps, every third one or so.
        middle: whether entries leave from the middle.
    """
    ahead = st.sampled_from([0, 0, 1, 1, 2])
    behind = st.integers(-span, 0)
    removals = [
        st.tuples(st.just("evict_between"), st.integers(-span, 1), st.integers(-1, span)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 4 * bulk), max_size=bulk)),
        st.tuples(st.just("correct"), st.lists(st.integers(0, 4 * bulk), max_size=bulk)),
    ]
    deltas = st.lists(st.one_of(ahead, ahead, ahead, st.integers(-3, 3), behind), max_size=bulk)
    step = st.one_of(
        st.tuples(st.just("insert"), st.one_of(ahead, ahead, behind)),
        st.tuples(st.just("bulk"), deltas),
        st.tuples(st.just("bulk"), st.lists(ahead, max_size=bulk)),
        st.tuples(st.just("evict"), st.sampled_from([0, 1, 1, 1, 2, 3, bulk // 2, bulk])),
        st.tuples(st.just("bulk_evict"), st.integers(-span, 1)),
        *(removals if middle else ()),
        st.tuples(st.just("evict_while"), st.integers(-1, 200)),
        st.tuples(st.just("range"), st.integers(-2 * span, 2), st.integers(-1, span)),
        st.tuples(
            st.just("series"), st.integers(-2 * span, 2), st.integers(0, 12), st.integers(0, 5), st.integers(0, span)
        ),
    )
    return st.lists(step if between is None else st.one_of(step, step, between), max_size=length)


def same(a: Any, b: Any, tolerance: float = 1e-12) -> bool:
    """Whether two answers agree: NaN with NaN, floats within a relative tolerance."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    return bool(a == b)
