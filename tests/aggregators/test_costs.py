"""The papers' bounds, in combines and in partials: counted, so that no machine's noise can blur them."""

from __future__ import annotations

import weakref
from functools import cache

import pytest

from bench.combine_counts import BOUNDS, batch_costs, main, measure
from sash_engine.aggregators import ALGORITHMS, DABA, DABALite, SubtractOnEvict, TwoStacks, TwoStacksLite
from sash_engine.aggregators.counting import Counting
from sash_engine.monoids import Monoid, Sum


@cache
def recalculated(entries):
    return measure(ALGORITHMS["recalc_in_order"], entries=entries, rounds=10).answers


@pytest.mark.parametrize("entries", [2, 7, 64, 300])
@pytest.mark.parametrize("name", BOUNDS)
def test_combines_stay_within_the_bounds(name, entries):
    costs = measure(ALGORITHMS[name], entries=entries, rounds=10)
    assert costs.above(BOUNDS[name]) == []
    assert costs.answers == recalculated(entries)


def test_every_algorithm_has_its_bounds():
    assert set(BOUNDS) == set(ALGORITHMS) - {"recalc"}  # the timed oracle costs what the other one does


@pytest.mark.parametrize(("algorithm", "insert", "evict"), [(DABA, (2.5, 4), (1.5, 3)), (DABALite, (2.0, 3), (1.0, 2))])
def test_daba_costs_what_its_paper_says(algorithm, insert, evict):
    """The bounds are met, not only kept: averages and worst cases are those of the analysis."""
    costs = measure(algorithm, entries=300, rounds=20)
    assert (costs.worst["insert"], costs.worst["evict"]) == (insert[1], evict[1])
    assert costs.average["insert"] == pytest.approx(insert[0], rel=0.01)
    assert costs.average["evict"] == pytest.approx(evict[0], rel=0.01)


@pytest.mark.parametrize("algorithm", [DABA, DABALite])
def test_the_worst_case_is_constant_at_any_size(algorithm):
    worst = [measure(algorithm, entries=entries, rounds=1).worst for entries in (10, 100, 1000, 5000)]
    assert all(costs == worst[0] for costs in worst)


def test_two_stacks_pay_for_the_flip_at_once():
    for algorithm in (TwoStacks, TwoStacksLite):
        monoid = Counting(Sum("int64"))
        window = algorithm(monoid)
        for value in range(1000):
            window.insert(value)
        monoid.reset()
        window.evict()
        assert monoid.reset() == 999


@pytest.mark.parametrize("entries", [64, 300])
def test_batches_of_the_reactive_aggregator_stay_within_their_bound(entries):
    for _, combines, bound in batch_costs(entries=entries):
        assert combines <= bound


def test_the_command_prints_every_algorithm_and_fails_on_a_bound_that_does_not_hold(capsys, monkeypatch):
    assert main(["--entries", "20", "--rounds", "2"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in BOUNDS)
    assert "ABOVE" not in printed
    monkeypatch.setitem(BOUNDS, "daba", BOUNDS["daba_lite"])
    assert main(["--entries", "20", "--rounds", "2"]) == 1
    assert "ABOVE ITS BOUND: insert: 4 at worst, more than 3" in capsys.readouterr().out


def test_counting_counts_and_otherwise_does_what_the_monoid_does():
    inner = Sum("int64")
    counting = Counting(inner)
    assert counting.lower(counting.combine(counting.lift(1), counting.lift(2))) == 3
    assert counting.uncombine(3, 1) == 2
    assert (counting.combines, counting.reset(), counting.combines) == (2, 2, 0)
    assert (counting.identity, counting.commutative, counting.invertible, counting.exact) == (0, True, True, True)
    assert not Counting(Sum("float64")).invertible


# -------------------------------------------------------------------- space


class Boxed(Monoid):
    """A sum whose partials can be counted: each is an object, and `alive` has all that something still refers to."""

    function = "boxed"
    invertible = True

    class Box:
        def __init__(self, value):
            self.value = value

    def __init__(self):
        super().__init__()
        self.identity = self.Box(0)
        self.alive = weakref.WeakSet()

    def _box(self, value):
        box = self.Box(value)
        self.alive.add(box)
        return box

    def lift(self, value):
        return self._box(value)

    def combine(self, older, newer):
        return self._box(older.value + newer.value)

    def uncombine(self, total, older):
        return self._box(total.value - older.value)

    def lower(self, partial):
        return partial.value


PARTIALS = [
    (SubtractOnEvict, lambda n: n + 1),
    (TwoStacks, lambda n: 2 * n),
    (TwoStacksLite, lambda n: n + 1),
    (DABA, lambda n: 2 * n),
    (DABALite, lambda n: n + 2),
]


@pytest.mark.parametrize(("algorithm", "limit"), PARTIALS, ids=lambda part: getattr(part, "algorithm", "limit"))
def test_no_more_partials_are_kept_than_promised(algorithm, limit):
    """After every operation of slides, growth, shrinkage and a drain, by counting the objects that are alive."""
    monoid = Boxed()
    window = algorithm(monoid)
    most = 0

    def check():
        nonlocal most
        alive = len(monoid.alive)
        assert alive <= limit(len(window))
        most = max(most, alive - len(window))

    for size in (1, 2, 3, 10, 60, 20):
        while len(window) != size:
            if len(window) < size:
                window.insert(1)
            else:
                window.evict()
            check()
        for _ in range(3 * size):
            window.insert(1)
            check()
            window.evict()
            check()
            assert window.query() == size
    while len(window):
        window.evict()
        check()
    assert most > 0, "nothing but entries was ever counted: the count does not work"
