"""The algorithms for windows without times against the oracle: every short history, and random long ones."""

from __future__ import annotations

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
from sash_engine.errors import FailedPrecondition, Unsupported
from sash_engine.monoids import Collect, Max, Mean, Sum
from tests.support.aggregator_lockstep import WITNESSES
from tests.support.histories import InOrderPair, follow, in_order_histories, short_histories

ANY_MONOID = [TwoStacks, TwoStacksLite, DABA, DABALite, Reactive, FlatFIT]
ALL = [*ANY_MONOID, SubtractOnEvict]


def by_name(algorithm):
    return algorithm.algorithm


def witness(name, algorithm):
    """The witness of that name, or a sum where the algorithm must subtract."""
    return WITNESSES["sum" if algorithm.inverts else name]()


@pytest.mark.parametrize("algorithm", ALL, ids=by_name)
def test_every_history_of_eight(algorithm):
    for history in short_histories("ieq", 8):
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
