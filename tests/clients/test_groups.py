"""The client gives keys by their parts, and asks questions that select and group them."""

import numpy as np
import pandas as pd
import pytest

from sash_client import ALL_KEYS, Client, InvalidArgument
from tests.support.refused import field_of

SPEC = {
    "name": "flights",
    "time_unit": "s",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}
TIMES = [10, 11, 12, 13]
PARTS = {"airport": ["JFK", "JFK", "LGA", "JFK"], "carrier": ["AA", "B6", "AA", "a|b"]}
DELAYS = [1.0, 2.0, 4.0, 8.0]


@pytest.fixture
def window(service):
    with Client(service.grpc_target) as sash:
        window = sash.create_window(SPEC)
        window.bulk_insert(TIMES, {"delay": DELAYS}, keys=PARTS)
        yield window
        sash.delete_window("flights")


def sums(answers):
    return [(answer.parts, answer.aggregates["sum"]) for answer in answers]


EVERY = [
    ({"airport": airport, "carrier": carrier}, delay)
    for airport, carrier, delay in zip(PARTS["airport"], PARTS["carrier"], DELAYS, strict=True)
]


def frame(times=TIMES):
    return pd.DataFrame({"time": times, "delay": DELAYS, **PARTS})


@pytest.mark.parametrize("way", ["frame", "columns", "producer"])
def test_each_way_to_give_parts(window, way):
    window.bulk_evict(99)
    later = [time + 100 for time in TIMES]
    if way == "frame":
        window.bulk_insert(frame(later))
    elif way == "columns":
        window.bulk_insert(later, {"delay": DELAYS, **PARTS})
    else:
        with window.producer("p") as producer:
            for time, (parts, delay) in zip(later, EVERY, strict=True):
                producer.insert(time, delay, key=parts)
    assert sums(window.query(keys=ALL_KEYS)) == EVERY
    assert sums(window.query(keys=[EVERY[1][0], "LGA|AA"])) == EVERY[1:3]
    assert sums(window.query(key=EVERY[3][0])) == EVERY[3:]


def test_questions_by_parts(window):
    assert sums(window.query(where={"carrier": ["AA", "B6"], "airport": {"matches": "J.*"}})) == EVERY[:2]
    assert sums(window.query(where="carrier = AA")) == [EVERY[0], EVERY[2]]
    assert window.keys(where={"airport": "LGA"}) == ["LGA|AA"]
    first = next(window.watch(by="airport"))
    assert sums(first) == [({"airport": "JFK"}, 11.0), ({"airport": "LGA"}, 4.0)]


def test_tables_have_a_column_for_each_part(window):
    found = window.entries(where="airport=JFK").to_pandas()
    assert list(found.columns) == ["time", "airport", "carrier", "delay"]
    assert found["carrier"].tolist() == ["AA", "B6", "a|b"]
    again = window.entries().to_pandas()
    again["time"] += np.timedelta64(100, "s")
    window.bulk_insert(again)
    table = window.query(by=["carrier"]).to_pandas()
    assert table[["carrier", "entries", "sum"]].values.tolist() == [["AA", 4, 10.0], ["B6", 2, 4.0], ["a|b", 2, 16.0]]
    jfk, _ = window.series_groups(10, 14, step=2, by="airport")
    assert jfk.to_pandas()["airport"].tolist() == ["JFK", "JFK"]
    every = window.query(keys=ALL_KEYS).to_pandas()
    assert list(every.columns[:2]) == ["airport", "carrier"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"key": {"airport": "a"}}, "parts.carrier"),
        ({"key": {"airport": "a", "carrier": 7}}, "parts.carrier"),
        ({"keys": [{"airport": "a", "carrier": "b", "x": "c"}]}, "parts.x"),
        ({"where": "carrier"}, "where"),
        ({"where": {"carrier": {"like": "x"}}}, "where"),
        ({"where": {"carrier": [7]}}, "where"),
        ({"by": [7]}, "by"),
        ({"having": "sum"}, "having"),
        ({"n": 3}, "top"),
        ({"top": 7}, "top"),
        ({"limit": "x"}, "limit"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(window, asked, field):
    assert field_of(window.query, **asked) == field


def test_an_unknown_argument_is_an_error(window):
    with pytest.raises(TypeError, match="wher"):
        window.query(wher="x")


def test_groups_have_to_be_named(window):
    with pytest.raises(InvalidArgument, match="by which parts"):
        window.range_groups(0, 1)
