"""What one question may cost: what is refused before it holds everybody up, and what is answered still."""

import numpy as np
import pytest

from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.reading.costs import MAX_ANSWERS, MAX_LARGE_BUCKETS, MAX_VALUES, size_of
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.aggregates import LargeRootMeanSquare, RootMeanSquare
from tests.support.refused import refusal


def window(aggregates, entries=0, keys=None, **parts):
    """With entries of times 0, 1, 2, …, one by one of k0, k1, …, as many as there are keys."""
    spec = {"name": "w", "time_unit": "none", "keyed": keys is not None, "aggregates": aggregates}
    w = Window(WindowSpec.parse(spec | parts))
    codes = None if keys is None else Coded([f"k{i}" for i in range(keys)], np.arange(entries) % keys)
    if entries:
        w.bulk_insert(Batch(np.arange(entries), {"value": np.arange(float(entries))}, codes))
    return w


@pytest.mark.parametrize("function", ["distinct_count", "quantile", "collect", "bloom", "collect_distinct"])
def test_fewer_buckets_of_what_is_large(function):
    w = window({"n": {"function": "count"}, "large": {"function": function}}, 10)
    assert refusal(w.series, 0, MAX_LARGE_BUCKETS + 1, 1, None, None) == ("step", f"{MAX_LARGE_BUCKETS} buckets")
    assert len(w.series(0, 100, 1, None, None).times) == 100


@pytest.mark.parametrize("function", ["sum", "min", "variance", "last"])
def test_many_buckets_of_numbers(function):
    w = window({"a": {"function": function}}, 10)
    assert len(w.series(0, 10 * MAX_LARGE_BUCKETS, 1, None, None).times) == 10 * MAX_LARGE_BUCKETS


@pytest.mark.parametrize("cls", [RootMeanSquare, LargeRootMeanSquare])
def test_whether_partials_are_large_is_the_aggregates_own_to_say(cls, monkeypatch):
    monkeypatch.setattr("sash_engine.windows.spec.aggregates.catalogue", lambda: {"rms": cls})
    w = window({"rms": {"function": "rms"}}, 10)
    if cls.large:
        assert refusal(w.series, 0, MAX_LARGE_BUCKETS + 1, 1, None, None) == ("step", f"{MAX_LARGE_BUCKETS} buckets")
    else:
        assert len(w.series(0, 10 * MAX_LARGE_BUCKETS, 1, None, None).times) == 10 * MAX_LARGE_BUCKETS


@pytest.mark.parametrize(
    ("aggregate", "granularity"),
    [({"function": "collect"}, None), ({"function": "collect"}, 1), ({"function": "collect_distinct"}, None)],
)
@pytest.mark.parametrize("keys", [None, 1])
def test_a_series_that_collects_too_much(aggregate, granularity, keys):
    """5,000 values in each of 1,000 buckets that overlap; side by side, each value is there once."""
    w = window({"all": aggregate}, 5000, keys, granularity=granularity)
    key = None if keys is None else "k0"
    limit = ("step", f"{MAX_VALUES} values")
    assert refusal(w.series, 0, 1000, 1, 5000, key) == limit
    collected = w.series(0, 300, 1, 5000, key).aggregates["all"]
    assert [len(values) for values in collected] == [5000 - i for i in range(300)]
    assert len(w.series(0, 5000, 1, None, key).times) == 5000


@pytest.mark.parametrize(
    "aggregate",
    [
        {"function": "quantile", "q": [0.5] * 1000},
        {"function": "histogram", "bounds": list(range(1000))},
        {"function": "bloom", "capacity": 20_000},
    ],
)
def test_a_series_of_answers_that_are_large_each(aggregate):
    w = window({"a": aggregate}, 3000)
    assert refusal(w.series, 0, 3000, 1, None, None) == ("step", f"{MAX_VALUES} values")
    assert len(w.series(0, 3000, 10, None, None).times) == 300


def test_a_series_of_frequent_items():
    """1,000 items of four values in 1,000 buckets: too many if each is in 600 of them, but not if each is in one."""
    w = window({"top": {"function": "frequent_items", "limit": 1000, "lg_max_map_size": 11}}, fields={"value": "int64"})
    w.bulk_insert(Batch(np.arange(1000), {"value": np.arange(1000)}))
    assert refusal(w.series, 0, 1000, 1, 600, None) == ("step", f"{MAX_VALUES} values")
    assert len(w.series(0, 1000, 1, None, None).times) == 1000


def test_a_series_over_nothing_has_no_values():
    w = window({"all": {"function": "collect"}})
    assert w.series(0, 5000, 1, 5000, None).aggregates["all"].tolist() == [[]] * 5000


def test_too_many_answers_of_many_keys():
    keys = MAX_ANSWERS // 4
    w = window({"n": {"function": "count"}}, keys, keys)
    assert refusal(w.query, None, ["1", "2", "3", "4", "5"], None, ALL_KEYS) == ("keys", f"{MAX_ANSWERS} answers")
    assert refusal(w.query, None, [], None, [f"other{i}" for i in range(MAX_ANSWERS + 1)])[0] == "keys"
    (together,) = w.query(None, ["1"], keys, ALL_KEYS, combine=True)
    assert (together.entries, len(w.query(None, [], None, ALL_KEYS))) == (0, keys)


def test_too_many_values_of_many_keys():
    w = window({"all": {"function": "collect"}}, 60_000, 3)
    lookbacks = [str(60_000 + i) for i in range(40)]
    assert refusal(w.query, None, lookbacks, None, ALL_KEYS) == ("keys", f"{MAX_VALUES} values")
    assert len(w.query(None, lookbacks[:30], None, ALL_KEYS)) == 90
    assert len(w.query("k0", lookbacks, None)) == 40


def test_too_many_values_in_partials():
    """A sketch of 4 KiB is 500 values, though its answer is one."""
    w = window({"d": {"function": "distinct_count"}}, 100_000, 100)
    lookbacks = [str(100_000 + i) for i in range(64)]
    assert len(w.query(None, lookbacks, None, ALL_KEYS)) == 6400
    limit = ("keys", f"{MAX_VALUES} values")
    assert refusal(w.query, None, lookbacks, None, ALL_KEYS, False, True) == limit
    assert len(w.query(None, lookbacks[:30], None, ALL_KEYS, partials=True)) == 3000


@pytest.mark.parametrize(
    ("answer", "size"),
    [(None, 1), (1.5, 1), ("text", 1), ([], 0), ([1, 2], 2), ({"a": 1, "b": [1, 2]}, 3), (bytes(16), 2), ([{}], 0)],
)
def test_sizes(answer, size):
    assert size_of(answer) == size
