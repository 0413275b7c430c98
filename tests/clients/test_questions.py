"""The client's wider questions against a real service: several keys, series, keys, aggregates, answered inserts."""

import math
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from sash_client import ALL_KEYS, WriteResult
from sash_client.windows import handle
from tests.support.refused import field_of

SPEC = """
name: delays
time_unit: s
keyed: true
aggregates:
  n:    {function: count}
  mean: {function: mean}
"""


@pytest.fixture
def delays(client):
    """JFK and LGA.

    time   0   5  10  15  20  25
    JFK    1       3       5
    LGA       10              20
    """
    window = client.create_window(SPEC)
    window.bulk_insert([0, 10, 20, 5, 25], [1, 3, 5, 10, 20], keys=["JFK", "JFK", "JFK", "LGA", "LGA"])
    return window


def test_keys_and_times_of_many_kinds(delays):
    found = delays.query(keys=("LGA", "JFK"), lookbacks=["6s", timedelta(minutes=1)])
    assert [(each.key, each.lookback, each.entries) for each in found] == [
        *(("LGA", "6s", 1), ("LGA", "1m", 2), ("JFK", "6s", 1), ("JFK", "1m", 3))
    ]
    ranged = delays.range_query(5, np.datetime64(10, "s"), keys=ALL_KEYS)
    assert (ranged.key, ranged.aggregates) == (None, {"n": 2, "mean": 6.5})


@pytest.mark.parametrize(
    ("which", "field"),
    [
        ({"key": "JFK", "keys": ["LGA"]}, "keys"),
        ({"key": "JFK", "keys": ALL_KEYS}, "keys"),
        ({"keys": []}, "keys"),
        ({"keys": "JFK"}, "keys"),
        ({"keys": ["JFK", 7]}, "keys"),
        ({"key": 7}, "key"),
        ({"key": "JFK", "combine": True}, "combine"),
        ({"keys": ["JFK", "k" * 513]}, "key"),
        ({}, "key"),
    ],
)
def test_a_wrong_choice_of_keys(delays, which, field):
    assert field_of(delays.query, **which) == field


def test_a_series(delays):
    found = delays.series(np.datetime64(0, "s"), 35, step="10s", width=timedelta(seconds=15), key="JFK")
    # bucket 0 .. 15: 1, 3    10 .. 25: 3, 5    20 .. 35: 5    30 .. 45: nothing
    assert (found.key, found.width, found.time_unit, len(found)) == ("JFK", 15, "s", 4)
    assert found.times.dtype == found.entries.dtype == np.int64
    assert (found.times.tolist(), found.entries.tolist()) == ([0, 10, 20, 30], [2, 2, 1, 0])
    assert list(found.aggregates) == ["mean", "n"]
    assert not np.ma.isMaskedArray(found.aggregates["n"])
    assert found.aggregates["n"].tolist() == [2, 2, 1, 0]
    mean = found.aggregates["mean"]
    assert (mean.dtype, mean.tolist()) == (np.float64, [2.0, 4.0, 5.0, None])
    assert math.isnan(mean.data[3])
    assert mean.mean() == 11 / 3
    assert found.datetimes().tolist() == [datetime(1970, 1, 1, 0, 0, second) for second in (0, 10, 20, 30)]
    with pytest.raises(FrozenInstanceError):
        found.width = 7


def test_a_series_over_all_keys_is_the_fold(delays):
    random = np.random.default_rng(5)
    times, values = random.integers(100, 5000, 3000), random.integers(-9, 9, 3000)
    delays.bulk_insert(times, values, keys=[f"airport {i}" for i in random.integers(0, 20, 3000)])
    found = delays.series(100, 5000, step=7, width="1m", keys=ALL_KEYS)
    assert found.key is None
    for start, entries, mean in zip(found.times, found.entries, found.aggregates["mean"].tolist(), strict=True):
        expected = values[(times >= start) & (times < start + 60)]
        assert entries == len(expected)
        assert mean == (pytest.approx(expected.mean()) if entries else None)


def test_columns_of_a_series_keep_their_types(client):
    fields = {"f": "float64", "i": "int64", "s": "string", "b": "bool"}
    aggregates = {name: {"function": "last", "field": name} for name in fields}
    aggregates |= {"all": {"function": "collect", "field": "i"}, "total": {"function": "sum", "field": "i"}}
    window = client.create_window({"name": "w", "time_unit": "none", "fields": fields, "aggregates": aggregates})
    big = 2**63 - 1
    columns = {"f": [math.inf, math.nan], "i": [big, big], "s": ["x", ""], "b": [True, False]}
    window.bulk_insert([1, 3], columns)
    window.insert(3, fields={"f": math.nan, "i": big, "s": "ä", "b": True})
    found = window.series(1, 4, step=1).aggregates
    assert {name: column.dtype.kind for name, column in found.items()} == {
        "f": "f",
        "i": "i",
        "s": "O",
        "b": "O",
        "all": "O",
        "total": "O",
    }
    assert math.isnan(found["f"][2])
    assert found["f"].mask.tolist() == found["i"].mask.tolist() == [False, True, False]
    with pytest.raises(ValueError, match="logical ticks"):
        window.series(1, 4, step=1).datetimes()


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ({"step": 0}, "step"),
        ({"step": 1.5}, "step"),
        ({"step": None}, "step"),
        ({"step": "soon"}, "step"),
        ({"step": 1, "width": True}, "width"),
        ({"step": 1, "width": "0"}, "width"),
        ({"start": 9, "end": 9, "step": 1}, "start"),
        ({"end": "soon", "step": 1}, "end"),
        ({"step": 1, "key": "JFK", "keys": ["LGA"]}, "keys"),
    ],
)
def test_a_wrong_series(delays, question, field):
    asked = {"start": 0, "end": 9, "key": "JFK", **question}
    assert field_of(delays.series, asked.pop("start"), asked.pop("end"), **asked) == field


def test_aggregates_are_added(delays):
    info = delays.add_aggregates({"longest": {"function": "max"}})
    assert info.spec["aggregates"]["longest"] == {"function": "max"}
    assert delays.spec == info.spec
    assert delays.add_aggregates("longest: {function: max}") == info  # the same again: nothing happens
    for wrong, field in (
        ("longest: [", "aggregates"),
        ([1], "aggregates"),
        ({"p": "max"}, "aggregates.p"),
        ({"p": {"function": "nope"}}, "aggregates.p.function"),
    ):
        assert field_of(delays.add_aggregates, wrong) == field


def test_an_insert_is_answered(delays):
    done = delays.insert(np.datetime64(30, "s"), 7, key="JFK", answer=True, lookbacks=["1s", 21])
    assert done == WriteResult(inserted=1, answers=tuple(delays.query(key="JFK", lookbacks=["1s", "21"])))
    for lookbacks in ("1s", [1.5]):
        assert field_of(delays.insert, 31, 7, key="JFK", lookbacks=lookbacks) == "lookbacks"
    assert delays.describe().counts.inserted == 6
    assert WriteResult(1, 2, 3, 4, ahead=2) + WriteResult(5, 6, 7, 8, ahead=3) == WriteResult(6, 8, 10, 12, ahead=5)


def test_a_series_takes_aware_datetimes(delays):
    aware = datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
    assert delays.series(aware, aware + timedelta(seconds=1), step=1, key="JFK").entries.tolist() == [1]


def test_keys_are_fetched_page_by_page(delays, monkeypatch):
    monkeypatch.setattr(handle, "_PAGE_KEYS", 3)
    names = [f"k{i}" for i in range(10)]
    delays.bulk_insert(range(30, 40), range(10), keys=names)
    assert delays.keys() == delays.keys(limit=None) == ["JFK", "LGA", *names]
    assert delays.keys("k", limit=7) == names[:7]
    assert delays.keys("k", limit=None) == names
    assert delays.keys("nobody", limit=None) == []
    assert field_of(delays.keys, limit=0) == "limit"
