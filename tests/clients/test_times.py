"""Times of every accepted kind become the same ticks, without a copy where none is needed."""

import time
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client import InvalidArgument
from sash_client.data.times import to_duration, to_tick, to_ticks
from tests.support.refused import field_of

INSTANT = np.datetime64("2013-01-01T10:15", "m")
AWARE = datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
MICROSECONDS = 1_357_035_300_000_000
NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


@pytest.mark.parametrize(
    "times",
    [
        np.array([MICROSECONDS]),
        np.array([MICROSECONDS], dtype=">i8"),
        np.array([MICROSECONDS], dtype="u8"),
        [MICROSECONDS],
        np.array([INSTANT]),
        np.array([INSTANT], dtype="datetime64[s]"),
        np.array([INSTANT], dtype=">M8[ns]"),
        pd.Series([INSTANT]),
        pd.Series([INSTANT], index=[7]),
        pd.Series([INSTANT]).dt.tz_localize("UTC"),
        pd.Series([INSTANT]).dt.tz_localize("UTC").dt.tz_convert("America/New_York"),
        pd.DatetimeIndex([INSTANT]),
        pd.DatetimeIndex([INSTANT], tz="UTC").tz_convert("Asia/Kolkata"),
        pd.Series([MICROSECONDS], dtype="Int64"),
        pd.Series([INSTANT]).astype("timestamp[us][pyarrow]"),
        pd.Series([MICROSECONDS], dtype="int64[pyarrow]"),
        pa.array([AWARE], pa.timestamp("us")),
        pa.array([AWARE], pa.timestamp("s", tz="America/New_York")),
        pa.chunked_array([pa.array([AWARE], pa.timestamp("ns")), pa.array([], pa.timestamp("ns"))]),
        pa.array([MICROSECONDS]),
        pl.Series([MICROSECONDS]),
        pl.Series([AWARE]),
        pl.Series([AWARE.replace(tzinfo=None)], dtype=pl.Datetime("ns")),
        pl.Series([AWARE]).dt.convert_time_zone("America/New_York"),
        [datetime(2013, 1, 1, 10, 15, tzinfo=UTC)],
        [datetime(2013, 1, 1, 5, 15, tzinfo=timezone(timedelta(hours=-5)))],
    ],
    ids=lambda times: f"{type(times).__module__}.{getattr(times, 'dtype', getattr(times, 'type', 'list'))}",
)
def test_every_kind_of_time_becomes_the_same_ticks(times):
    ticks = to_ticks(times, "us")
    assert ticks.dtype == np.dtype("<i8")
    assert ticks.tolist() == [MICROSECONDS]


@pytest.mark.parametrize(
    ("time", "unit", "tick"),
    [
        (17, "none", 17),
        (np.int32(-17), "s", -17),
        (INSTANT, "s", MICROSECONDS // 10**6),
        (np.datetime64("2013-01", "M"), "s", 1_356_998_400),
        (np.datetime64(3, "7s"), "s", 21),
        (pd.Timestamp("1970-01-01T00:00:00.000000007"), "ns", 7),
        (pd.Timestamp("1970-01-01T01:00", tz="Europe/Paris"), "s", 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "us", -1),
    ],
)
def test_one_time(time, unit, tick):
    assert to_tick(time, unit) == tick


def test_int64_and_instants_of_the_unit_are_not_copied():
    ticks = np.arange(5)
    instants = ticks.view("datetime64[us]")
    for times, memory in (
        (ticks, ticks),
        (instants, instants),
        (pd.Series(instants), pd.Series(instants).to_numpy()),
        (pa.array(instants), pa.array(instants)),
    ):
        result = to_ticks(times, "us")
        assert result.tolist() == [0, 1, 2, 3, 4]
        if not isinstance(memory, pa.Array):
            assert np.shares_memory(result, times if isinstance(times, np.ndarray) else times.to_numpy())
        else:
            assert result.ctypes.data == times.buffers()[1].address


@given(
    ticks=st.lists(st.integers(-(2**63) + 1, 2**63 - 1), max_size=5),
    found=st.sampled_from(list(NANOSECONDS)),
    wanted=st.sampled_from(list(NANOSECONDS)),
)
def test_a_change_of_unit_is_exact_or_an_error(ticks, found, wanted):
    times = np.array(ticks, dtype="int64").view(f"datetime64[{found}]")
    exact = [(tick * NANOSECONDS[found], NANOSECONDS[wanted]) for tick in ticks]
    if any(a % b or not -(2**63) <= a // b < 2**63 for a, b in exact):
        with pytest.raises(InvalidArgument):
            to_ticks(times, wanted)
    else:
        assert to_ticks(times, wanted).tolist() == [a // b for a, b in exact]


@pytest.mark.parametrize(
    ("times", "unit", "says"),
    [
        ([1.5], "us", "integer ticks or instants"),
        (np.array([1.0]), "us", "integer ticks or instants"),
        (["2013-01-01", "noon"], "us", "is not a time"),
        ([True], "us", "integer ticks or instants"),
        (np.array([True]), "us", "integer ticks or instants"),
        (np.array([[1]]), "us", "one-dimensional"),
        (17, "us", "one-dimensional"),
        ([2**63], "us", "out of range"),
        (np.array([2**63], dtype="u8"), "us", "out of range"),
        (np.array(["NaT"], dtype="datetime64[us]"), "us", "missing"),
        (pd.Series([INSTANT, None]), "us", "missing"),
        (pd.Series([INSTANT, None]).dt.tz_localize("UTC"), "us", "missing"),
        (pd.Series([1, None], dtype="Int64"), "us", "missing"),
        (pa.array([1, None]), "us", "missing"),
        ([datetime(2013, 1, 1, tzinfo=UTC), None], "us", "missing"),
        ([datetime(2013, 1, 1)], "us", "no time zone"),
        (np.array([INSTANT]), "none", "logical ticks"),
        (np.array([1], dtype="datetime64[ms]"), "s", "not a whole number of ticks"),
        (np.array([1], dtype="datetime64[ps]"), "ns", "finer"),
        (np.array(["9999-01-01"], dtype="datetime64[D]"), "ns", "out of range"),
    ],
)
def test_what_is_no_time_is_refused(times, unit, says):
    with pytest.raises(InvalidArgument, match=says) as caught:
        to_ticks(times, unit)
    assert caught.value.field in ("time", "time[1]")
    assert caught.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "time",
    [
        2**63,
        -(2**63) - 1,
        True,
        1.0,
        "noon",
        None,
        datetime(2013, 1, 1),
        np.datetime64("NaT"),
        np.timedelta64(5, "m"),  # which NumPy takes for an integer
        pd.Timedelta("5m"),
    ],
)
def test_what_is_not_one_time_is_refused(time):
    with pytest.raises(InvalidArgument):
        to_tick(time, "us", "as_of")


def test_no_times_are_no_ticks():
    for empty in ([], np.array([], dtype="i8"), pd.Series([], dtype="datetime64[ns]"), pa.array([], pa.int64())):
        assert to_ticks(empty, "us").tolist() == []


def test_lookbacks():
    assert to_duration("5m", "lookbacks") == "5m"
    assert to_duration(90, "lookbacks") == to_duration(np.int64(90), "lookbacks") == "90"
    for length, spelled in (
        (timedelta(minutes=5), "5m"),
        (timedelta(minutes=60), "1h"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(weeks=1, microseconds=5), "7d5us"),
        (timedelta(0), "0s"),
        (timedelta(seconds=-1), "-1s"),
        (np.timedelta64(1500, "ns"), "1us500ns"),
        (np.timedelta64(5, "m"), "5m"),
        (np.array([1], "timedelta64[7ms]")[0], "7ms"),
        (pd.Timedelta("90s") + pd.Timedelta(1, "ns"), "1m30s1ns"),
    ):
        assert to_duration(length, "lookbacks") == spelled
    for wrong in (True, 1.5, None, np.timedelta64("NaT"), np.timedelta64(1, "M"), np.timedelta64(1, "ps"), pd.NaT):
        with pytest.raises(InvalidArgument):
            to_duration(wrong, "lookbacks")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("55", 55),
        ("-7", -7),
        ("2013-01-01T10:15", AWARE),
        ("2013-01-01T10:15Z", AWARE),
        ("2013-01-01T11:15+01:00", AWARE),
    ],
)
def test_times_as_text(text, found):
    expected = found if isinstance(found, int) else to_tick(found, "us")
    assert to_tick(text, "us") == expected
    assert to_ticks([text, 5], "us").tolist() == [expected, 5]
    assert to_ticks(np.array([text]), "us").tolist() == [expected]


def test_times_counted_from_now():
    before = time.time_ns()
    now, past, ahead = to_ticks(["now", "-1h", "now+1h"], "ns").tolist()
    assert before <= now <= time.time_ns()
    assert before - 3600 * 10**9 <= past < now < ahead


@pytest.mark.parametrize("text", ["noon", "", "5m", "2013-13-01"])
def test_a_text_that_is_no_time_is_refused(text):
    assert field_of(to_tick, text, "us", "as_of", match="is not a time") == "as_of"
