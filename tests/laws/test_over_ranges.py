"""Folds and answers over ranges of rows are those of each range alone, to the last bit."""

from types import SimpleNamespace

import numpy as np
import pytest

from sash_engine.kernels import slide_registers
from sash_engine.monoids import DistinctCount, First, Last, Max, StdDev, Sum, sketches
from sash_engine.steps import finished
from tests.support.aggregates import column

RANDOM = np.random.default_rng(2)
VALUES = {
    "int64": lambda few: RANDOM.integers(0, 40 if few else 2**62, 3000),
    "float64": lambda few: np.concatenate(
        [
            RANDOM.integers(0, 40 if few else 2**50, 2990) / 8,
            [0.0, -0.0, np.nan, -np.nan, 1e-310, np.inf, -np.inf, 1, 1, 0],
        ]
    ),
    "string": lambda few: column(
        "string", [f"é{i}" if i else "" for i in RANDOM.integers(0, 40 if few else 2**40, 3000)]
    ),
    "bool": lambda few: RANDOM.integers(0, 2, 3000).astype(np.bool_),
}


def ranges(n):
    starts = RANDOM.integers(0, n, 300)
    stops = np.minimum(starts + 1 + RANDOM.integers(0, 900, 300), n)
    return np.append(starts, [n - 10, n - 9]), np.append(stops, [n - 8, n - 8])


def alone(monoid, values, starts, stops):
    """The answer of each range alone."""
    return [monoid.lower(monoid.reduce([values[a:b]])) for a, b in zip(starts, stops, strict=True)]


def slid(distinct, values, starts, stops):
    return finished(distinct.over_sliding([values], starts, stops)).tolist()


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("lg_k", [4, 7, 8, 9, 12])
@pytest.mark.parametrize("kind", list(VALUES))
def test_distinct_counts(kind, lg_k, few):
    distinct, values = DistinctCount(kind, lg_k=lg_k), VALUES[kind](few)
    starts, stops = ranges(len(values))
    expected = alone(distinct, values, starts, stops)
    assert distinct.over_ranges([values])(starts, stops).tolist() == expected
    assert slid(distinct, values, starts, stops) == expected


@pytest.mark.parametrize("lg_k", [7, 8, 12])
def test_around_the_size_from_which_on_a_sketch_has_registers(lg_k):
    distinct, values = DistinctCount("int64", lg_k=lg_k), np.arange(500) * 7919
    starts, stops = np.zeros(499, np.int64), np.arange(1, 500)
    expected = alone(distinct, values, starts, stops)
    assert distinct.over_ranges([values])(starts, stops).tolist() == expected
    assert slid(distinct, values, starts, stops) == expected


def test_a_sketch_of_very_many_registers_does_not_slide():
    assert DistinctCount("int64", lg_k=14).slides
    assert not DistinctCount("int64", lg_k=15).slides
    assert not Max().slides


@pytest.mark.parametrize("lg_k", [4, 9])
def test_sliding_up_to_very_many_values(lg_k):
    """More than there are registers, of which none is 0 then."""
    distinct, values = DistinctCount("int64", lg_k=lg_k), np.arange(8_000) * 7919
    starts, stops = np.array([0, 5, 2_000, 7, 7_000]), np.array([8_000, 7_999, 5_000, 100, 7_005])
    assert slid(distinct, values, starts, stops) == alone(distinct, values, starts, stops)


def test_registers_with_one_sum_that_differ_in_how_many_are_0():
    distinct, values = DistinctCount("int64", lg_k=4), np.random.default_rng(4).integers(0, 2**60, 3000)
    starts = np.arange(2900)
    stops = starts + 8 + starts % 4
    _, zeros, low, *_ = slide_registers(distinct._coupons(values, {}), starts, stops, 4, None, 1 << 30)
    order = np.lexsort((zeros, low))
    alike = np.flatnonzero((np.diff(low[order]) == 0) & (np.diff(zeros[order]) != 0))
    assert len(alike) > 20
    for some in (order[at : at + 2] for at in alike):
        assert slid(distinct, values, starts[some], stops[some]) == alone(distinct, values, starts[some], stops[some])


@pytest.mark.parametrize("monoid", [Sum(), Sum("int64"), Max(), StdDev(), DistinctCount(), First(), Last("string")])
def test_folds(monoid):
    values = VALUES[monoid.types[0]](False)[:2900]
    starts, stops = ranges(2900)
    found = monoid.lower_columns(monoid.reduce_ranges([values], starts, stops)).tolist()
    expected = alone(monoid, values, starts, stops)
    assert [(type(each), repr(each)) for each in found] == [(type(each), repr(each)) for each in expected]


def test_many_different_estimates_are_several_steps(monkeypatch):
    """65,536 of them held the processor for 94 ms."""
    made, own = [], sketches.ds.hll_sketch.deserialize
    counting = SimpleNamespace(deserialize=lambda image: made.append(image) or own(image))
    distinct, values, most, before = DistinctCount("int64", lg_k=4), np.arange(500) * 7919, 0, 0
    finished(distinct.over_sliding([values], np.zeros(40, np.int64), np.arange(40) + 1))  # few coupons are kept
    monkeypatch.setattr(sketches, "_CHANGES", 60)  # fewer rows than a range has: the next step goes on
    monkeypatch.setattr(sketches, "ds", SimpleNamespace(hll_sketch=counting))
    for _ in distinct.over_sliding([values], np.arange(400), np.arange(400) + np.arange(400) % 90 + 10):
        most, before = max(most, len(made) - before), len(made)
    assert len(made) > 200
    assert most == 2


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_few_values_are_counted_over_several_steps(kind, monkeypatch):
    monkeypatch.setattr(sketches, "_CHANGES", 60)
    sketches._answers_of_few.cache_clear()
    distinct, values, starts = DistinctCount(kind, lg_k=11), VALUES[kind](True), np.arange(0, 2900, 7)
    stops = starts + 1 + starts % 37
    assert slid(distinct, values, starts, stops) == alone(distinct, values, starts, stops)
