"""Bulks as Arrow IPC streams."""

import math
import threading

import numpy as np
import pyarrow as pa
import pytest

from sash.rest import arrow
from sash_engine.windows.answers import Page, Series
from tests.support.arrow import ARROW, batch, stream
from tests.support.servers import problem


def send(http, window, body):
    return http.post(f"/v1/windows/{window}/bulk-insert", content=body, headers=ARROW)


def collected(http, window, **parameters):
    response = http.get(f"/v1/windows/{window}/query", params=parameters)
    return response.json()["answers"][0]["aggregates"]


def test_a_stream_of_batches(http, window):
    body = stream(
        batch(time=[3, 1], value=[0.5, math.nan]),
        batch(time=[2, 4], value=[-math.inf, 1e-300]),
    )
    written = {"inserted": 4, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 0, "durability": "memory"}
    assert send(http, window, body).json() == written
    assert collected(http, window)["all"] == ["NaN", "-Infinity", 0.5, 1e-300]


def test_every_type_and_key(http, typed):
    body = stream(
        batch(time=[1, 2, 3], f=[0.5, -0.0, 2.0], i=[-(2**63), 2**63 - 1, 0], s=["ä", "", "x"],
              b=[True, False, True], key=["a", "b", "a"])
    )  # fmt: skip
    assert send(http, typed, body).json()["inserted"] == 3
    assert collected(http, typed, key="a") == {
        "n": 2,
        "f": [0.5, 2.0],
        "i": [-(2**63), 0],
        "s": ["ä", "x"],
        "b": [True, True],
    }
    assert collected(http, typed, key="b") == {"n": 1, "f": [-0.0], "i": [2**63 - 1], "s": [""], "b": [False]}


def test_dictionaries(http, typed):
    """One per batch, of different codes; one with a string twice and one that nobody uses."""

    def coded(dictionary, codes):
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(dictionary))

    def part(first, keys):
        n = len(keys)
        return pa.record_batch({
            "time": pa.array(range(first, first + n)), "f": pa.array([1.0] * n), "i": pa.array([1] * n),
            "s": pa.array(["x"] * n), "b": pa.array([True] * n), "key": keys,
        })  # fmt: skip

    assert send(http, typed, stream(part(0, coded(["a", "b", "unused"], [0, 1, 1])))).json()["inserted"] == 3
    assert send(http, typed, stream(part(3, coded(["b", "a", "b"], [0, 1, 2])))).json()["inserted"] == 3
    two = stream(part(6, coded(["a", "b"], [0, 1])), part(8, coded(["b", "a"], [0, 1])))
    assert send(http, typed, two).json()["inserted"] == 4
    assert [collected(http, typed, key=key)["n"] for key in "ab"] == [4, 6]
    assert http.get(f"/v1/windows/{typed}").json()["keys"] == 2


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint8(), pa.uint64(), pa.int64()])
def test_integers_of_any_width_fit(http, typed, window, kind):
    values = pa.array([1, 2, 3], kind)
    assert send(http, window, stream(batch(time=values, value=values))).json()["inserted"] == 3
    body = stream(batch(time=values, f=values, i=values, s=["x"] * 3, b=[True] * 3, key=["k"] * 3))
    assert send(http, typed, body).json()["inserted"] == 3
    assert collected(http, typed, key="k")["i"] == [1, 2, 3]


def test_floats_of_half_the_width_fit(http, window):
    values = pa.array(np.array([0.5, 1.25], np.float32))
    assert send(http, window, stream(batch(time=[1, 2], value=values))).json()["inserted"] == 2
    assert collected(http, window)["all"] == [0.5, 1.25]


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", tz="Europe/Berlin")])
def test_timestamps_become_ticks_of_the_window(http, window, kind):
    times = pa.array([0, 60], pa.timestamp("s")).cast(kind)
    assert send(http, window, stream(batch(time=times, value=[1.0, 2.0]))).json()["inserted"] == 2
    assert http.get(f"/v1/windows/{window}").json()["newest"] == 60


def test_an_empty_stream(http, window):
    empty = pa.record_batch({"time": pa.array([], pa.int64()), "value": pa.array([], pa.float64())})
    assert send(http, window, stream(empty)).json()["inserted"] == 0


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"value": [1.0]}, "time"),
        ({"time": [1]}, "value"),
        ({"time": [1.0], "value": [1.0]}, "time"),
        ({"time": ["1"], "value": [1.0]}, "time"),
        ({"time": [True], "value": [1.0]}, "time"),
        ({"time": [None], "value": [1.0]}, "time"),
        ({"time": [1, None], "value": [1.0, 2.0]}, "time"),
        ({"time": [1, 2], "value": [1.0, None]}, "value"),
        ({"time": [1], "value": ["x"]}, "value"),
        ({"time": [1], "value": [True]}, "value"),
        ({"time": [1], "value": [2**60 + 1]}, "value"),
        ({"time": [1], "value": [[1.0]]}, "value"),
        ({"time": [1], "value": [1.0], "other": [1]}, "other"),
        ({"time": [1], "value": [1.0], "key": ["k"]}, "key"),
        ({"time": pa.array([2**63], pa.uint64()), "value": [1.0]}, "time"),
        ({"time": pa.array([1500], pa.timestamp("ms")), "value": [1.0]}, "time"),
        ({"time": [2**63 - 1], "value": [1.0]}, "time"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_columns(http, unchanged, columns, field):
    found = problem(send(http, unchanged, stream(batch(**columns))))
    assert (found["status"], found["field"]) == (400, field), found


def test_wrong_keys(http, unchanged, typed):
    for keys in ([1], [None], [""], ["k" * 600], pa.array([None], pa.dictionary(pa.int8(), pa.string()))):
        body = stream(batch(time=[1], f=[1.0], i=[1], s=["x"], b=[True], key=keys))
        found = problem(send(http, typed, body))
        assert (found["status"], found["field"]) == (400, "key"), found
    nulls = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    body = stream(batch(time=[1, 2], f=[1.0, 1.0], i=[1, 2], s=["x"] * 2, b=[True] * 2, key=nulls))
    assert problem(send(http, typed, body))["field"] == "key"


def test_logical_time_takes_no_timestamps(http):
    spec = {"name": "logical", "time_unit": "none", "aggregates": {"n": {"function": "count"}}}
    http.post("/v1/windows", json=spec)
    times = pa.array([1], pa.timestamp("s"))
    found = problem(send(http, "logical", stream(batch(time=times, value=[1.0]))))
    assert (found["status"], found["field"]) == (400, "time")
    http.delete("/v1/windows/logical")


def test_two_columns_of_one_name(http, unchanged):
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([1.0]), pa.array([2.0])], ["time", "value", "value"])
    assert problem(send(http, unchanged, stream(twice)))["field"] == "value"


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_before_they_are_unpacked(http, unchanged, codec):
    """A body of a few kilobytes that would be 16 MiB of zeros; one of a page could be a gigabyte."""
    options = pa.ipc.IpcWriteOptions(compression=codec)
    zeros = batch(time=np.zeros(1 << 16, np.int64), value=np.zeros(1 << 16))
    body = stream(*[zeros] * 16, options=options)
    assert len(body) < 1 << 20
    found = problem(send(http, unchanged, body))
    assert (found["status"], found["field"]) == (400, "body")
    assert "compressed" in found["detail"]
    words = pa.record_batch({"time": pa.array([1]), "value": pa.array(["x" * 10_000]).dictionary_encode()})
    found = problem(send(http, unchanged, stream(words, options=options)))
    assert "compressed" in found["detail"]


def test_what_is_no_stream(http, unchanged):
    good = stream(batch(time=[1, 2], value=[1.0, 2.0]))
    for body in (b"", b"nonsense", b"ARROW1\x00\x00", b"\xff" * 1000, good[: len(good) // 2], good[:8]):
        found = problem(send(http, unchanged, body))
        assert (found["status"], found["field"]) == (400, "body"), body[:20]


def test_damaged_streams_harm_nobody(http, service, typed):
    """Every byte of the metadata, one at a time: an answer each time, and the service lives."""
    times = pa.array([1, 2], pa.timestamp("us", "Europe/Berlin"))
    good = stream(batch(time=times, f=[1.0, 2.0], i=[1, 2], s=["x", "yy"], b=[True, False], key=["k", "j"]))
    for at in range(0, len(good), 3):
        damaged = bytearray(good)
        damaged[at] ^= 0x55
        assert send(http, typed, bytes(damaged)).status_code in (200, 400, 413)
    assert http.get("/healthz").status_code == 200


def test_a_name_that_is_no_utf_8(http, unchanged):
    good = stream(batch(time=[1], value=[1.0]))
    found = problem(send(http, unchanged, good.replace(b"value", b"val\xffe")))
    assert (found["status"], found["field"]) == (400, "body")


def test_nobody_asks_what_a_time_zone_is_called(http, window):
    """Instants count in UTC in all of them."""
    good = stream(batch(time=pa.array([1], pa.timestamp("s", "Europe/Berlin")), value=[1.0]))
    for body in (good, good.replace(b"Berlin", b"Ber\xffin")):
        assert send(http, window, body).json()["inserted"] == 1
    answer = http.get(f"/v1/windows/{window}/range", params={"start": 1, "end": 1}).json()
    assert answer["entries"] == 2


@pytest.mark.parametrize("rows", [10, 9_000])
def test_a_long_stream_is_read_beside_the_event_loop(http, typed, monkeypatch, rows):
    """A million different keys held the loop for half a second, and batches of one row each for two."""
    threads = []
    read = arrow.batch_of

    def noted(*given):
        threads.append(threading.current_thread().name)
        return read(*given)

    monkeypatch.setattr(arrow, "batch_of", noted)
    names = [f"key {i}" for i in range(rows)]
    body = stream(batch(time=list(range(rows)), f=[0.5] * rows, i=[7] * rows, s=names, b=[True] * rows, key=names))
    assert send(http, typed, body).json()["inserted"] == rows
    assert collected(http, typed, key=names[-1])["s"] == [names[-1]]
    assert [name.startswith("reader") for name in threads] == [rows > 1000]
    wrong = send(http, typed, body[: len(body) // 2])
    assert (wrong.status_code, problem(wrong)["field"]) == (400, "body")


def test_a_stream_of_a_series_says_what_is_beside_its_columns():
    times, counts = np.array([0, 10]), np.array([1, 2])
    sessions = Series("k", times, 10, counts, {"n": counts}, last=times + 5)
    found = pa.ipc.open_stream(arrow.stream_of(sessions, ())).read_all()
    assert found.to_pydict() == {"time": [0, 10], "last": [5, 15], "entries": [1, 2], "aggregates.n": [1, 2]}
    assert found.schema.metadata == {b"width": b"10", b"key": b"k"}
    groups = Page([Series(None, times, 10, counts, {"n": counts}, parts={"a": each}) for each in "xy"])
    groups.position = "y"
    found = pa.ipc.open_stream(arrow.stream_of(groups, ["a"])).read_all()
    assert found["a"].to_pylist() == ["x", "x", "y", "y"]
    assert found["aggregates.n"].to_pylist() == [1, 2, 1, 2]
    assert found.schema.metadata == {b"width": b"10", b"next": b"y"}
