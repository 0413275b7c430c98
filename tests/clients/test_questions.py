"""The client's wider questions against a real service: several keys, series, keys, aggregates, answered inserts."""

import math
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from sash_client import ALL_KEYS, AlreadyExists, InvalidArgument, Unsupported, WriteResult
from sash_client.windows import handle

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


def test_several_keys(delays):
    found = delays.query(keys=["LGA", "JFK"], lookbacks=["6s", timedelta(minutes=1)])
    assert [(each.key, each.lookback, each.entries) for each in found] == [
        ("LGA", "6s", 1),
        ("LGA", "1m", 2),
        ("JFK", "6s", 1),
        ("JFK", "1m", 3),
    ]
    assert [each.key for each in delays.query(keys=ALL_KEYS)] == ["JFK", "LGA"]
    (together,) = delays.query(keys=ALL_KEYS, combine=True)
    assert (together.key, together.entries, together.aggregates) == (None, 5, {"n": 5, "mean": 7.8})
    assert delays.query(keys=("JFK", "LGA"), combine=True) == [together]
    ranged = delays.range_query(5, np.datetime64(10, "s"), keys=ALL_KEYS)
    assert (ranged.key, ranged.aggregates) == (None, {"n": 2, "mean": 6.5})


def test_what_depends_on_order_is_not_combined(client, delays):
    delays.add_aggregates({"all": {"function": "collect"}})
    for call in (
        lambda: delays.query(keys=ALL_KEYS, combine=True),
        lambda: delays.range_query(1, 2, keys=ALL_KEYS),
        lambda: delays.series(1, 2, step=1, keys=["JFK", "LGA"]),
    ):
        with pytest.raises(Unsupported) as caught:
            call()
        assert caught.value.field == "keys"


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
    with pytest.raises(InvalidArgument) as caught:
        delays.query(**which)
    assert caught.value.field == field


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
    assert found["f"][0] == math.inf
    assert math.isnan(found["f"][2])
    assert found["f"].mask.tolist() == found["i"].mask.tolist() == [False, True, False]
    assert found["i"].tolist() == [big, None, big]
    assert found["s"].tolist() == ["x", None, "ä"]
    assert found["b"].tolist() == [True, None, True]
    assert found["all"].tolist() == [[big], [], [big, big]]
    assert found["total"].tolist() == [big, 0, 2 * big]
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
    with pytest.raises(InvalidArgument) as caught:
        delays.series(asked.pop("start"), asked.pop("end"), **asked)
    assert caught.value.field == field


def test_keys_are_listed(delays):
    assert delays.keys() == ["JFK", "LGA"]
    assert delays.keys("L") == ["LGA"]
    assert delays.keys(limit=1) == ["JFK"]
    with pytest.raises(InvalidArgument) as caught:
        delays.keys(limit=0)
    assert caught.value.field == "limit"


def test_aggregates_are_added(delays):
    info = delays.add_aggregates({"longest": {"function": "max"}})
    assert info.spec["aggregates"]["longest"] == {"function": "max"}
    assert delays.spec == info.spec
    assert delays.add_aggregates("longest: {function: max}") == info  # the same again: nothing happens
    assert delays.query(key="JFK")[0].aggregates == {"n": 3, "mean": 3.0, "longest": 5.0}
    with pytest.raises(AlreadyExists):
        delays.add_aggregates({"longest": {"function": "min"}})
    for wrong, field in (
        ("longest: [", "aggregates"),
        ([1], "aggregates"),
        ({"p": "max"}, "aggregates.p"),
        ({"p": {"function": "nope"}}, "aggregates.p.function"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            delays.add_aggregates(wrong)
        assert caught.value.field == field


def test_an_insert_is_answered(delays):
    assert delays.insert(30, 7, key="JFK").answers == ()
    done = delays.insert(np.datetime64(30, "s"), 7, key="JFK", answer=True, lookbacks=["1s", 21])
    assert done == WriteResult(inserted=1, answers=tuple(delays.query(key="JFK", lookbacks=["1s", "21"])))
    assert [each.aggregates["mean"] for each in done.answers] == [7.0, 5.5]
    for lookbacks, field in ((["1s"], "lookbacks"), ("1s", "lookbacks"), ([1.5], "lookbacks")):
        with pytest.raises(InvalidArgument) as caught:
            delays.insert(31, 7, key="JFK", lookbacks=lookbacks)
        assert caught.value.field == field
    assert delays.describe().counts.inserted == 7


def test_policies_travel_and_duplicates_are_counted(client):
    spec = {
        "name": "latest",
        "time_unit": "s",
        "aggregates": {"n": {"function": "count"}, "all": {"function": "collect"}},
        "slide": {"max_age": "1d", "clock": "event", "when": "total.n - old.n > 3"},
        "order": {"out_of_order": "allow", "late": "reject", "equal_times": "last"},
        "idle_expiry": "30d",
    }
    window = client.create_window(spec)
    order = {**spec["order"], "ahead": "1d", "too_far_ahead": "reject"}
    assert window.spec == {**spec, "order": order, "keyed": False, "fields": {"value": "float64"}}
    assert window.bulk_insert([1, 2, 2], [1, 2, 3]) == WriteResult(inserted=2, duplicates=1)
    assert window.insert(1, 9.0) == WriteResult(duplicates=1)
    info = window.describe()
    assert (info.counts.inserted, info.counts.duplicates, info.entries) == (2, 2, 2)
    assert window.query()[0].aggregates["all"] == [9.0, 3.0]
    assert WriteResult(1, 2, 3, 4) + WriteResult(5, 6, 7, 8) == WriteResult(6, 8, 10, 12)


def test_what_is_too_far_ahead_is_counted_and_slides_nothing(client):
    window = client.create_window(
        {
            "name": "guarded",
            "time_unit": "s",
            "aggregates": {"n": {"function": "count"}},
            "slide": {"max_age": "1h"},
            "order": {"ahead": 300},
        }
    )
    now = datetime.now(UTC).replace(microsecond=0)
    tomorrow = now + timedelta(days=1)
    assert window.spec["order"]["ahead"] == "300"
    assert window.bulk_insert([now, tomorrow, now], [1, 2, 3]) == WriteResult(inserted=2, ahead=1)
    assert window.insert(tomorrow, 2.0) == WriteResult(ahead=1)
    with window.producer("p") as producer:
        producer.insert(tomorrow, 2.0)
    assert producer.result.ahead == 1
    info = window.describe()
    assert (info.counts.ahead, info.entries, info.newest) == (3, 2, int(now.timestamp()))
    assert (WriteResult(ahead=2) + WriteResult(ahead=3)).ahead == 5


def test_tiles_share_no_entry(delays):
    # time   0   5  10  15  20  25      tiles of ten seconds, the last of which begins with 20
    tiles = [delays.range_query(start, start + 10, keys=ALL_KEYS, end_exclusive=True) for start in (0, 10, 20)]
    assert [(tile.start, tile.end, tile.entries) for tile in tiles] == [(0, 9, 2), (10, 19, 1), (20, 29, 2)]
    assert delays.range_query(0, 10, keys=ALL_KEYS).entries == 3
    times = [bulk.times.tolist() for bulk in delays.entries(0, 20, key="JFK", end_exclusive=True)]
    assert times == [[0, 10]]
    assert sum(len(bulk) for bulk in delays.entries(5, key="JFK", end_exclusive=True)) == 2
    with pytest.raises(InvalidArgument) as caught:
        delays.range_query(5, 5, key="JFK", end_exclusive=True)
    assert (caught.value.field, caught.value.limit) == ("start", "4")


def test_a_key_without_entries_is_not_listed_and_the_mark_stays(delays):
    delays.bulk_evict(30, key="LGA")
    info = delays.describe()
    assert (delays.keys(), info.keys, info.newest, info.high_water_mark) == (["JFK"], 1, 20, 25)
    assert [each.key for each in delays.query(keys=ALL_KEYS)] == ["JFK"]
    delays.bulk_evict(30)
    info = delays.describe()
    assert (delays.keys(), info.keys, info.newest, info.high_water_mark) == ([], 0, None, 25)


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
    with pytest.raises(InvalidArgument) as caught:
        delays.keys(limit=0)
    assert caught.value.field == "limit"
