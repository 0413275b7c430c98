"""Partials of values that lie in buckets, beside the values: quantiles of any accuracy, and histograms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Histogram, Quantile

COUNTS = st.lists(
    st.integers(1, 9) | st.integers(1, 10**4) | st.sampled_from([2**20 - 1, 2**20, 2**30 + 5]), min_size=1, max_size=40
)
RANKS = [0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0]


def buckets(counts, first=-3.0):
    edges = first + np.arange(len(counts) + 1) ** 1.5
    return edges[:-1], edges[1:], np.array(counts, np.int64)


def rank_of(value, lows, highs, counts):
    ends = np.concatenate(([0], np.cumsum(counts)))
    return float(np.interp(value, np.concatenate((lows, highs[-1:])), ends)) / ends[-1]


@given(COUNTS, st.sampled_from([8, 16, 200, 1000]))
def test_ranks_are_true_to_one_step(counts, k):
    monoid, made = Quantile(q=RANKS, k=k), buckets(counts)
    blob, total = monoid.of_buckets(*made), sum(counts)
    sketch = monoid.decode(blob)  # checks every number of it
    assert sketch.n == total
    assert not monoid.implausible((np.array([sketch], object),), np.array([total])).any()
    for rank, value in zip(RANKS, monoid.lower(sketch), strict=True):
        assert abs(rank_of(value, *made) - rank) <= 1 / min(k, total) + 1e-9
    assert (sketch.get_min_value(), sketch.get_max_value()) == (
        (made[0][0], made[1][-1]) if total > k else (sketch.get_quantile(0), sketch.get_quantile(1))
    )


@given(COUNTS, st.sampled_from([8, 200]), st.booleans())
def test_the_same_buckets_make_the_same_sketch_and_it_merges(counts, k, tail):
    monoid = Quantile(q=[0.5], k=max(k, 10), accuracy="tail" if tail else "rank")
    lows, highs, many = buckets(counts)
    blob = monoid.of_buckets(lows, highs, many)
    assert blob == monoid.of_buckets(lows, highs, many)
    both = monoid.combine(monoid.decode(blob), monoid.reduce([np.full(500, 99.0)]))
    both = monoid.decode(monoid.encode(monoid.combine(both, monoid.decode(blob))))
    assert (both.get_total_weight() if tail else both.n) == 2 * sum(counts) + 500


@given(COUNTS, st.lists(st.floats(-1.7e308, 1.7e308), min_size=41, max_size=41), st.booleans())
def test_items_are_in_order_and_between_the_ends_wherever_these_are(counts, ends, tail):
    """Buckets may be narrow, or wider than a float64."""
    edges = np.sort(np.array(ends[: len(counts) + 1]))
    monoid = Quantile(q=[0.0, 0.5, 1.0], k=10, accuracy="tail" if tail else "rank")
    found = monoid.lower(monoid.decode(monoid.of_buckets(edges[:-1], edges[1:], np.array(counts))))
    low, high = (np.clip(edge, -1e289, 1e289) if tail else edge for edge in (edges[0], edges[-1]))
    assert low <= found[0] <= found[1] <= found[2] <= high


def test_many_values_of_a_narrow_bucket_are_in_order():
    lows, highs = np.array([0.1, 0.1, 0.3]), np.array([0.1, 0.3, 0.3])
    for total in (150, 201, 10**6 + 1):
        Quantile().decode(Quantile().of_buckets(lows, highs, np.array([total] * 3)))


def test_few_values_are_spread_evenly_and_all_are_there():
    lows, highs, counts = np.array([0.0, 10.0]), np.array([10.0, 20.0]), np.array([4, 1])
    items = Quantile(q=[i / 5 + 0.1 for i in range(5)]).decode(Quantile().of_buckets(lows, highs, counts))
    assert items.get_quantiles([i / 5 + 0.1 for i in range(5)], True) == [1.25, 3.75, 6.25, 8.75, 15.0]


@pytest.mark.parametrize("total", [200, 201, 400, 401, 799, 100_003])
def test_items_are_as_many_as_k_at_most(total):
    monoid = Quantile(k=200)
    sketch = monoid.decode(monoid.of_buckets(np.array([0.0]), np.array([1.0]), np.array([total])))
    assert 100 < sketch.num_retained <= 200 + total.bit_length()
    assert sketch.n == total


@given(COUNTS, st.sampled_from([20, 200]))
def test_ranks_of_the_tail_are_true_to_small_steps(counts, k):
    monoid, made = Quantile(q=RANKS, k=k, accuracy="tail"), buckets(counts)
    total = sum(counts)
    sketch = monoid.decode(monoid.of_buckets(*made))
    assert sketch.get_total_weight() == total
    for rank, value in zip(RANKS, monoid.lower(sketch), strict=True):
        # a step of the scale, and what lies between the middles of two steps
        step = 4 * np.pi / k * max(np.sqrt(rank * (1 - rank)), 1 / k)
        assert abs(rank_of(value, *made) - rank) <= step + 1 / total


def test_the_tail_keeps_its_extremes():
    monoid = Quantile(q=[0.0, 0.999, 1.0], accuracy="tail")
    found = monoid.lower(monoid.decode(monoid.of_buckets(*buckets([10**6, 10**3, 10], 0.0))))
    assert found[0] == 0.0
    assert 0.99 <= found[1] <= 2**1.5
    assert found[2] == 3**1.5
    many = [1] * 500
    assert monoid.decode(monoid.of_buckets(*buckets(many))).get_total_weight() == 500
    far = monoid.of_buckets(np.array([-1.7e308]), np.array([1.7e308]), np.array([999]))
    assert monoid.lower(monoid.decode(far))[2] == 1e289


def test_a_histogram_counts_buckets_by_its_bounds():
    monoid = Histogram(bounds=[0, 10, 20])
    lows, highs = np.array([-np.inf, 0.0, 5.0, 10.0, 20.0]), np.array([0.0, 5.0, 10.0, 20.0, np.inf])
    assert monoid.of_buckets(lows, highs, np.array([1, 2, 3, 4, 5])) == (1, 5, 4, 5, 0)
    for low, high in ((-1.0, 1.0), (9.0, 11.0), (-5.0, 30.0), (15.0, np.inf)):
        with pytest.raises(InvalidArgument, match="is inside the bucket from"):
            monoid.of_buckets(np.array([low]), np.array([high]), np.array([1]))
    point = np.array([10.0])
    assert monoid.of_buckets(point, point, np.array([7])) == (0, 0, 7, 0, 0)
