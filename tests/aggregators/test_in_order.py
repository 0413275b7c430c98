"""The algorithms for windows without times against the oracle: every short history, and random long ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators import (
    DABA,
    DABALite,
    FlatFIT,
    Reactive,
    RecalcInOrder,
    SubtractOnEvict,
    TwoStacks,
    TwoStacksLite,
)
from sash_engine.aggregators.base import InOrder
from sash_engine.aggregators.counting import Counting
from sash_engine.errors import FailedPrecondition, InvalidArgument, Unsupported
from sash_engine.monoids import Collect, Max, Mean, Monoid, Sum
from tests.support.aggregator_lockstep import WITNESSES
from tests.support.profile import THOROUGH

INSERT, EVICT, QUERY = "i", "e", "q"


class InOrderPair:
    """A window and the oracle: does every operation on both, and checks length and invariants after it.

    Values are scattered over -50 to 50, the same in every run. Answers are compared only by `query`, because for some
    algorithms a query is itself a step that changes what is kept.
    """

    def __init__(self, make: Callable[[Monoid], InOrder], monoid: Monoid | None = None) -> None:
        monoid = Collect("int64") if monoid is None else monoid
        self.window = make(monoid)
        self.oracle = RecalcInOrder(monoid)
        self._value = 0
        self.check()

    def insert(self, count: int = 1) -> None:
        for _ in range(count):
            self._value = (self._value * 61 + 17) % 101
            self.window.insert(self._value - 50)
            self.oracle.insert(self._value - 50)
            self.check()

    def evict(self, count: int = 1) -> None:
        for _ in range(count):
            if len(self.oracle):
                self.window.evict()
                self.oracle.evict()
            else:
                with pytest.raises(FailedPrecondition, match="empty"):
                    self.window.evict()
            self.check()

    def query(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.window.query() == self.oracle.query()
            self.check()

    def check(self) -> None:
        self.window.check_invariants()
        assert len(self.window) == len(self.oracle)


def short_histories(alphabet: str, length: int) -> Iterator[str]:
    """Every word of that length; shorter histories are the beginnings of these."""
    return map("".join, product(alphabet, repeat=length))


STEPS = {INSERT: InOrderPair.insert, EVICT: InOrderPair.evict, QUERY: InOrderPair.query}

in_order_histories = st.lists(
    st.tuples(st.sampled_from([INSERT, INSERT, EVICT, EVICT, QUERY]), st.integers(1, 12)), max_size=40
)
"""Runs of operations: which one, and how often in a row."""


def follow(pair: InOrderPair, history: Iterable[str | tuple[str, int]]) -> None:
    """Do what a history says, and compare the answers at its end."""
    for operation, *count in history:
        STEPS[operation](pair, *count)
    pair.query()


ANY_MONOID = [TwoStacks, TwoStacksLite, DABA, DABALite, Reactive, FlatFIT]
ALL = [*ANY_MONOID, SubtractOnEvict]


def by_name(algorithm):
    return algorithm.algorithm


def witness(name, algorithm):
    """The witness of that name, or a sum where the algorithm must subtract."""
    return WITNESSES["sum" if algorithm.inverts else name]()


@pytest.mark.parametrize("algorithm", ALL, ids=by_name)
def test_every_short_history(algorithm):
    for history in short_histories("ieq", 8 if THOROUGH else 7):
        follow(InOrderPair(algorithm, witness("collect", algorithm)), history)


@pytest.mark.parametrize("algorithm", ALL, ids=by_name)
def test_every_short_history_from_every_state(algorithm):
    """Five steps from windows that have grown to 1 to 12 entries, and slid 0 to 5 since, so that every state of the
    balance and every place of the head in its buffer is started from."""
    for size in range(1, 13):
        for history in short_histories("ie", 5):
            pair = InOrderPair(algorithm, witness("collect", algorithm))
            pair.insert(size)
            follow(pair, "ei" * (size % 6) + history)


@pytest.mark.parametrize("algorithm", ALL, ids=by_name)
@given(history=in_order_histories, name=st.sampled_from(sorted(WITNESSES)))
def test_random_histories(algorithm, history, name):
    follow(InOrderPair(algorithm, witness(name, algorithm)), history)


@pytest.mark.parametrize("algorithm", ALL, ids=by_name)
def test_large_windows(algorithm):
    """Up to 700 entries and down, three times, so that buffers grow and shrink; then a long slide."""
    pair = InOrderPair(algorithm, WITNESSES["sum"]())
    pair.check = lambda: None  # the invariants take O(n) and more: they are checked where the direction changes
    for _ in range(3):
        for step in (pair.insert, pair.evict):
            step(700 if step == pair.insert else 690)
            pair.query()
            pair.window.check_invariants()
    for _ in range(500):
        pair.insert()
        pair.query()
        pair.evict()
        pair.query()
    pair.window.check_invariants()


@pytest.mark.parametrize("algorithm", [*ALL, RecalcInOrder], ids=by_name)
def test_an_empty_window_answers_and_refuses(algorithm):
    window = algorithm(Sum("int64"))
    for _ in range(2):
        assert (window.query(), len(window)) == (0, 0)
        with pytest.raises(FailedPrecondition, match="empty"):
            window.evict()
        window.insert(4)
        window.evict()


@pytest.mark.parametrize("algorithm", ALL, ids=by_name)
def test_a_value_that_cannot_be_lifted_changes_nothing(algorithm):
    class Picky(Sum):
        def lift(self, value):
            if value < 0:
                raise ValueError("negative")
            return value

    window = algorithm(Picky("int64"))
    for _ in range(5):
        with pytest.raises(ValueError, match="negative"):
            window.insert(-1)
        window.check_invariants()
        before = len(window)
        window.insert(1)
        assert window.query() == len(window) == before + 1


@pytest.mark.parametrize("algorithm", ANY_MONOID, ids=by_name)
def test_what_has_left_stops_mattering(algorithm):
    """No drift: after 2^54 the mean of 1 and 1 is 1.0, after NaN and inf sums are numbers again."""
    for first in (2.0**54, float("inf"), float("nan")):
        window = algorithm(Mean("float64"))
        for value in (first, 1.0, 1.0):
            window.insert(value)
            window.query()
            window.check_invariants()
        window.evict()
        assert window.query() == 1.0


@pytest.mark.parametrize("monoid", [Max("int64"), Collect("int64"), Sum("float64")], ids=repr)
def test_subtracting_needs_an_inverse(monoid):
    with pytest.raises(Unsupported, match="no exact inverse") as error:
        SubtractOnEvict(monoid)
    assert error.value.field == "algorithm"


# ---------------------------------------------------------------- what only FlatFIT has: answers of its newest entries


PARTS = st.lists(st.tuples(st.sampled_from("iev"), st.integers(0, 40)), max_size=60)


def ask_parts(history):
    """Insert so many, evict so many, or ask for the newest ones, beside a list."""
    window, values, inserted = FlatFIT(Collect("int64")), [], 0
    for operation, count in history:
        if operation == "i":
            for _ in range(count):
                inserted += 1
                window.insert(inserted)
                values.append(inserted)
        elif operation == "e":
            for _ in range(min(count, len(values))):
                window.evict()
                values.pop(0)
        else:
            assert window.query_newest(count) == (values[-count:] if count else [])
        window.check_invariants()
        assert len(window) == len(values)
    assert window.query() == values


@given(history=PARTS)
def test_queries_of_parts_in_random_histories(history):
    ask_parts(history)


def test_every_short_history_of_parts():
    """Inserts, evictions, and queries of the newest one, two and three: all words of six, from four entries on."""
    for history in short_histories("ie123", 6):
        ask_parts([("i", 4), *((step, 1) if step in "ie" else ("v", int(step)) for step in history)])


def test_a_negative_number_of_entries_is_refused():
    with pytest.raises(InvalidArgument, match="count is -1") as error:
        FlatFIT(Sum("int64")).query_newest(-1)
    assert error.value.field == "count"


@pytest.mark.parametrize("size", [2, 10, 500])
def test_ranges_share_their_folds(size):
    """Every length from 1 to n after one insert, longest first: one combine each, where folding anew takes n²/2."""
    monoid = Counting(Sum("int64"))
    window = FlatFIT(monoid)
    for value in range(size):
        window.insert(value)
    window.query()
    assert monoid.reset() == size - 1
    for count in range(size, 0, -1):
        window.query_newest(count)
    assert monoid.reset() == 0
    window.insert(size)
    for count in range(size + 1, 0, -1):
        assert window.query_newest(count) == sum(range(size + 1 - count, size + 1))
    assert monoid.reset() == size


def test_the_buffer_follows_the_size():
    window = FlatFIT(Sum("int64"))
    for size in range(1, 1000):
        window.insert(1)
        assert size <= window.capacity <= max(4, 2 * size)
    for size in range(998, -1, -1):
        window.evict()
        assert window.capacity <= max(4, 4 * size)
        assert window.query() == size
