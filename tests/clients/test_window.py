"""The client against a real service: arrays go in, answers come out, and they are the fold."""

import math
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import sash_client
from sash_client import Client, InvalidArgument, NotFound, Unsupported, WriteResult
from sash_client.local import local_service
from tests.support.refused import field_of

SPEC = """
name: departure_delay
keyed: true
fields: {delay: float64, carrier: string}
aggregates:
  flights: {function: count}
  mean:    {function: mean, field: delay}
  worst:   {function: arg_max, field: delay, returns: carrier}
  delays:  {function: collect, field: delay}
slide: {max_age: 6h}
"""
MINUTE = 60 * 10**6


def test_the_life_of_a_window(client):
    window = client.create_window(SPEC)
    assert client.create_window(window.spec).name == "departure_delay"  # the same again: nothing happens
    with pytest.raises(sash_client.AlreadyExists):
        client.create_window(SPEC.replace("6h", "7h"))

    times = np.array([0, 10, 20, 30]) * MINUTE
    written = window.bulk_insert(
        times.astype("datetime64[us]"),
        {"delay": [5, -2, 30, 30], "carrier": pd.Categorical(["UA", "AA", "B6", "DL"])},
        keys=["JFK", "JFK", "EWR", "JFK"],
    )
    assert written == WriteResult(inserted=4)
    assert window.insert(25 * MINUTE, fields={"delay": 30.0, "carrier": "HA"}, key="JFK") == WriteResult(inserted=1)

    hour, ten = window.query(key="JFK", lookbacks=["1h", timedelta(minutes=10)])
    assert (hour.key, hour.lookback, hour.entries) == ("JFK", "1h", 4)
    assert (hour.end, hour.aggregates["delays"]) == (30 * MINUTE, [5, -2, 30, 30])
    assert hour.aggregates["worst"] == "HA"  # the first in time of the two
    assert hour.aggregates["mean"] == 63 / 4
    assert ten.aggregates["delays"] == [30, 30]
    assert (ten.start, ten.end) == (20 * MINUTE + 1, 30 * MINUTE)
    (earlier,) = window.query(key="JFK", lookbacks=[MINUTE], as_of=datetime(1970, 1, 1, 0, 10, tzinfo=UTC))
    assert earlier.aggregates["delays"] == [-2]
    (everything,) = window.query(key="EWR")
    assert (everything.entries, everything.lookback) == (1, None)
    ranged = window.range_query(np.datetime64(10, "m"), 25 * MINUTE, key="JFK")
    assert ranged.aggregates["delays"] == [-2, 30]

    late = window.bulk_insert([8 * 60 * MINUTE, 0], {"delay": [1.0, 2.0], "carrier": ["UA", "UA"]}, keys="JFK")
    assert late.inserted + late.late == 2
    info = window.describe()
    assert (info.name, info.keys, info.newest) == ("departure_delay", 2, 8 * 60 * MINUTE)
    assert info.entries == info.counts.inserted - info.counts.evicted == 2
    assert info.counts.inserted + info.counts.late == 7
    assert [found.name for found in client.list_windows()] == ["departure_delay"]

    assert window.bulk_evict(20 * MINUTE, key="EWR").evicted == 1
    (nothing,) = window.query(key="EWR")
    assert (nothing.entries, nothing.start, nothing.end) == (0, None, None)
    assert nothing.aggregates == {"flights": 0, "mean": None, "worst": None, "delays": []}
    assert window.bulk_evict(start=0, end=1, key="nobody").evicted == 0
    assert window.bulk_evict(start=0, end=8 * 60 * MINUTE, end_exclusive=True).evicted == 0
    assert window.bulk_evict(start=8 * 60 * MINUTE, end=8 * 60 * MINUTE).evicted == 1
    assert window.describe().entries == 0
    assert client.delete_window("departure_delay") == 0
    with pytest.raises(NotFound):
        window.describe()


def test_a_window_with_one_field_takes_bare_values(client):
    window = client.create_window(
        {"name": "w", "time_unit": "none", "aggregates": {"sum": {"function": "sum"}, "all": {"function": "collect"}}}
    )
    assert window.insert(1, 2.5).inserted == 1
    assert window.insert(2, fields={"value": 1}).inserted == 1
    assert window.bulk_insert(pa.array([3, 4]), pa.array([math.inf, math.nan])).inserted == 2
    (answer,) = window.query(lookbacks=[2])
    assert math.isnan(answer.aggregates["sum"])
    assert answer.aggregates["all"][0] == math.inf
    assert math.isnan(answer.aggregates["all"][1])
    assert window.range_query(0, 2).aggregates == {"sum": 3.5, "all": [2.5, 1.0]}
    assert window.bulk_insert([], []) == WriteResult()
    with pytest.raises(InvalidArgument, match="logical ticks"):
        window.insert(np.datetime64(0, "s"), 1.0)


def test_a_bulk_in_parts_is_the_bulk(client, address):
    window = client.create_window(SPEC.replace("6h", "1000d"))
    n = 5000
    random = np.random.default_rng(7)
    times, delays = random.permutation(n), np.round(random.normal(10, 30, n), 1)
    keys = np.array([f"airport {i}" for i in range(40)])[random.integers(0, 40, n)]
    with Client(**address, bulk_entries_max=700, bulk_bytes_max=10_000) as small:
        written = small.window(window.name).bulk_insert(times, {"delay": delays, "carrier": keys}, keys=keys)
    assert written == WriteResult(inserted=n)
    for key in ("airport 0", "airport 39"):
        mine = np.flatnonzero(keys == key)
        expected = delays[mine[np.argsort(times[mine])]].tolist()
        assert window.query(key=key)[0].aggregates["delays"] == expected


def test_a_local_service_lives_as_long_as_its_block():
    with local_service(wait_s=600) as service, Client(service.target) as client:
        client.wait_until_ready()
        assert client.list_windows() == []
    with Client(service.target, timeout_s=2) as client, pytest.raises(sash_client.Unavailable):
        client.wait_until_ready(0.1)


def test_a_local_service_that_cannot_start_says_why(tmp_path, monkeypatch):
    (python := tmp_path / "python").write_text('#!/bin/sh\necho "cannot $*" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    asked = "-m sash.main serve --grpc-port 7 --rest-port 8 --data here"
    with (
        pytest.raises(RuntimeError, match=f"^sash serve did not start: cannot {asked}$"),
        local_service(grpc_port=7, rest_port=8, data="here"),
    ):
        pass


def test_a_change_that_fails_half_way_says_what_was_applied(client, address):
    spec = {"name": "orders", "time_unit": "us", "keyed": True, "identity": "id"}
    spec |= {"fields": {"id": "int64"}, "aggregates": {"n": {"function": "count"}}}
    client.create_window(spec).bulk_insert([1, 2], {"id": [10, 11]}, keys="a")
    with Client(**address, bulk_entries_max=1) as small:
        keys = ["a", "x" * 600]
        with pytest.raises(InvalidArgument) as caught:
            small.window("orders").retract([1, 2], [10, 11], keys=keys)
        assert caught.value.applied == WriteResult(retracted=1)
        with pytest.raises(InvalidArgument) as caught:
            small.window("orders").update([2, 2], {"id": [11, 11]}, keys=keys)
        assert caught.value.applied == WriteResult(corrected=1)
        with pytest.raises(InvalidArgument) as caught:
            small.window("orders").insert(1, fields={"id": 1}, key="x" * 600)
        assert caught.value.applied is None


def test_entries_are_retracted_and_corrected_without_their_times(client):
    spec = {"name": "orders", "time_unit": "us", "keyed": True, "identity": "id"}
    spec["fields"] = {"id": "string", "price": "float64"}
    spec["aggregates"] = {"prices": {"function": "collect", "field": "price"}}
    window = client.create_window(spec)
    rows = {"id": ["a", "b", "c", "b", "a"], "price": [1.0, 2.0, 3.0, 4.0, 5.0]}
    window.bulk_insert([1, 2, 3, 4, 5], rows, keys=["m1", "m1", "m1", "m1", "m2"])
    done = window.retract(ids=["b", "c", "nobody"], key="m1")
    assert (done.retracted, done.missing) == (2, 1)
    assert window.query(key="m1")[0].aggregates == {"prices": [1.0, 2.0]}
    done = window.update(columns={"id": ["a", "a", "x"], "price": [10.0, 50.0, 0.0]}, keys=["m1", "m2", "m2"])
    assert (done.corrected, done.missing) == (2, 1)
    done = window.update(pa.table({"key": ["m1"], "id": ["b"], "price": [20.0]}))
    assert (done.corrected, done.missing) == (1, 0)
    assert [window.query(key=key)[0].aggregates["prices"] for key in ("m1", "m2")] == [[10.0, 20.0], [50.0]]
    for wrong, field in [
        (lambda: window.retract(), "ids"),
        (lambda: window.retract([1], ["a"], ids=["a"], key="m1"), "ids"),
        (lambda: window.retract(ids=["a"], key="m1", keys=["m1"]), "key"),
        (lambda: window.retract(ids="a", key="m1"), "id"),
        (lambda: window.retract(ids=["a"]), "key"),
        (lambda: window.retract([-(2**63)], ["a"], keys="m1"), "time"),
        (lambda: window.update(columns={"price": [1.0]}, keys="m1"), "id"),
        (lambda: window.update(columns={"id": ["a"]}, keys="m1"), "price"),
    ]:
        assert field_of(wrong) == field
    assert window.describe().entries == 3


def test_a_window_without_an_identity_refuses_to_retract(client):
    window = client.create_window({"name": "plain", "aggregates": {"n": {"function": "count"}}})
    with pytest.raises(InvalidArgument, match="no identity"):
        window.retract([1], [1])
    with pytest.raises(Unsupported, match="no identity"):
        window.update([1], [1.0])


def test_a_series_over_sessions(client):
    spec = {"name": "visits", "time_unit": "s", "keyed": True, "aggregates": {"n": {"function": "count"}}}
    window = client.create_window(spec)
    window.bulk_insert([0, 600, 1500, 9000, 9300], [1.0] * 5, keys="ada")
    found = window.series(0, 10_000, gap="30m", key="ada")
    assert (found.times.tolist(), found.last.tolist(), found.width) == ([0, 9000], [1500, 9300], 1800)
    assert found.aggregates["n"].tolist() == [3, 2]
    columns = ["time", "key", "last", "entries", "n"]
    assert list(found.to_pandas().columns) == columns
    for none in (window.series(20_000, 30_000, gap="30m", key="ada"), window.series(0, 9, gap="30m", key="nobody")):
        assert (len(none), none.last.tolist(), list(none.to_pandas().columns)) == (0, [], columns)
    assert window.series(0, 10_000, step="30m", key="ada").last is None
    with pytest.raises(InvalidArgument, match="or a gap"):
        window.series(0, 10_000, key="ada")
