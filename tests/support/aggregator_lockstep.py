"""A timed window and the oracle, side by side: the same history for both, and no difference between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import strategies as st

from sash_engine.aggregators.base import Timed
from sash_engine.aggregators.counting import Counting
from sash_engine.aggregators.recalc import Recalc
from sash_engine.errors import SashError
from sash_engine.monoids import Collect, Max, Monoid, Sum

WITNESSES = {
    "collect": lambda: Collect("int64"),  # free and not commutative: it shows what was combined, in which order
    "sum": lambda: Sum("int64"),  # exact on integers
    "max": lambda: Max("int64"),  # idempotent, and without an inverse
}


class AggregatorLockstep:
    """Does every operation on both, compares results, errors and state, and checks the window's invariants.

    The first ten thousand values all differ, and neither rise nor fall. While `checked` is False the state is not
    looked at: for the beginning of a history that another test case has checked.
    """

    def __init__(self, make: Callable[[Monoid], Timed], monoid: Monoid | None = None) -> None:
        monoid = Collect("int64") if monoid is None else monoid
        self.window = make(monoid)
        self.oracle = Recalc(monoid)
        self.checked = True
        self._given = 0
        self.check()

    @property
    def times(self) -> list[int]:
        return self.oracle.times

    def insert(self, *times: int) -> None:
        for time in times:
            self._both("insert", time, self._value())

    def begin(self, times: Iterable[int]) -> None:
        """Insert entries, in a state that another test case has checked."""
        self.checked = False
        self.insert(*times)
        self.checked = True

    def evict(self, time: int | None = None) -> None:
        self._both("evict", time)

    def bulk_insert(self, times: Iterable[int]) -> None:
        self._both("bulk_insert", [(time, self._value()) for time in times])

    def bulk_evict(self, time: int) -> None:
        self._both("bulk_evict", time)

    def range_query(self, start: int, end: int) -> None:
        self._both("range_query", start, end)

    def _value(self) -> int:
        self._given += 1
        return self._given * 7_919 % 10_007

    def _both(self, operation: str, *arguments: Any) -> None:
        results = []
        for window in (self.window, self.oracle):
            try:
                results.append(getattr(window, operation)(*arguments))
            except SashError as error:
                results.append(type(error))
        assert results[0] == results[1], f"{operation}{arguments}"
        if self.checked:
            self.check()

    def check(self) -> None:
        window, oracle = self.window, self.oracle
        window.check_invariants()
        assert window.query() == oracle.query()
        assert (len(window), window.oldest, window.youngest) == (len(oracle), oracle.oldest, oracle.youngest)


class Counted:
    """A window over a Counting sum, and the combines that its operations take."""

    def __init__(self, make: Callable[[Monoid], Timed], times: Iterable[int] = ()) -> None:
        self.monoid = Counting(Sum("int64"))
        self.window = make(self.monoid)
        for time in times:
            self.window.insert(time, 1)

    def combines(self, operation: str, *arguments: Any) -> int:
        """Do an operation; return how many combines it took."""
        self.monoid.reset()
        getattr(self.window, operation)(*arguments)
        return self.monoid.reset()


TIMES = st.integers(-20, 60)

SINGLE = [
    st.tuples(st.just("insert"), TIMES),
    st.tuples(st.just("insert"), TIMES),
    st.tuples(st.just("append"), st.integers(1, 25)),
    st.tuples(st.just("evict_at"), st.integers(0, 100)),
    st.tuples(st.just("evict"), st.none() | TIMES),
    st.tuples(st.just("range_query"), TIMES, TIMES),
]

BULK = [
    st.tuples(st.just("bulk_insert"), st.lists(TIMES, max_size=30)),
    st.tuples(st.just("bulk_insert"), st.lists(TIMES, max_size=30).map(sorted)),
    st.tuples(st.just("bulk_evict_at"), st.integers(0, 100)),
    st.tuples(st.just("bulk_evict"), TIMES),
]


def histories(*operations: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Histories over any order of time."""
    return st.lists(st.one_of(*operations), max_size=25)


def follow(pair: AggregatorLockstep, history: list[tuple[Any, ...]]) -> None:
    """Do what a history says. `append` inserts so many entries after the youngest; `…_at` names the entry by its
    place, in percent."""
    for operation, *arguments in history:
        times = pair.times
        if operation == "append":
            youngest = times[-1] if times else 0
            pair.insert(*range(youngest + 1, youngest + 1 + arguments[0]))
        elif operation.endswith("_at"):
            if times:
                getattr(pair, operation.removesuffix("_at"))(times[(len(times) - 1) * arguments[0] // 100])
        else:
            getattr(pair, operation)(*arguments)
