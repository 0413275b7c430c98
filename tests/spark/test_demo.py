"""The demo's own arithmetic: its fold, its comparison and its accounts. A planted difference must show."""

from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client import Counts, InvalidArgument, WindowInfo
from sash_spark import BatchReport, demo, sash_sink
from sash_spark.demo import Row, accounting, departures_of, differences, expected_present, expected_rows, table
from sash_spark.flights import load_flights, write_feed
from sash_spark.parts import gathered

ROWS = [
    Row("EWR", "1h", 3, 1.5, 2.5, 9.0, "UA"),
    Row("JFK", "1h", 1, 1.5, None, 9.0, "B6"),
]


def raw(*flights):
    columns = ("origin", "carrier", "flight", "time_hour", "minute", "dep_delay", "air_time")
    return pd.DataFrame(flights, columns=columns)


FLIGHTS = raw(
    ("JFK", "HA", 51, "2013-01-01T15:00:00Z", 0, 10.0, 600.0),  # 15:10, lands at 01:10
    ("JFK", "B6", 1, "2013-01-01T15:00:00Z", 30, -5.0, 40.0),  # 15:25, lands first, at 16:05
    ("JFK", "UA", 2, "2013-01-01T15:00:00Z", 0, 25.0, 60.0),  # 15:25, lands second: equal times
    ("JFK", "AA", 3, "2013-01-01T16:00:00Z", 0, 25.0, 30.0),  # 16:25
    ("JFK", "DL", 4, "2013-01-01T16:00:00Z", 0, None, None),  # never left
    ("EWR", "DL", 5, "2013-01-01T16:00:00Z", 0, 90.0, None),  # never landed
    ("EWR", "DL", 6, "2013-01-01T16:00:00Z", 0, 2.0, 10.0),
)


def test_the_fold_by_hand():
    departures = departures_of(FLIGHTS)
    assert departures["flight"].tolist() == [1, 6, 2, 3, 51]
    assert expected_rows(departures, ("1h", "1h1m", "1d")) == [
        *(Row("EWR", lookback, 1, 2.0, None, 2.0, "DL") for lookback in ("1h", "1h1m", "1d")),
        # 15:25 is exactly an hour before 16:25: a lookback excludes its start.
        Row("JFK", "1h", 1, 25.0, None, 25.0, "AA"),
        # Two are 25 minutes late: the worst is the first of them in time.
        Row("JFK", "1h1m", 3, 15.0, pytest.approx(300**0.5), 25.0, "UA"),
        Row("JFK", "1d", 4, 13.75, pytest.approx(206.25**0.5), 25.0, "UA"),
    ]
    assert expected_present(departures, "1h") == 2
    assert expected_present(departures, "61m") == 4


def test_equal_rows_do_not_differ():
    assert differences(ROWS, ROWS, "gRPC") == []
    assert differences(ROWS, [replace(ROWS[0], mean=1.5 + 1e-12), ROWS[1]], "gRPC") == []


@pytest.mark.parametrize(
    "planted",
    [
        {"airport": "LGA"},
        {"lookback": "6h"},
        {"flights": 4},
        {"mean": 1.500001},
        {"mean": float("nan")},
        {"mean": None},
        {"deviation": 2.500001},
        {"deviation": None},
        {"max": 9.0000001},
        {"worst": "AA"},
    ],
    ids=str,
)
def test_a_planted_difference_is_found(planted):
    (name,) = planted
    found = [replace(ROWS[0], **planted), ROWS[1]]
    (line,) = differences(ROWS, found, "REST")
    assert line == f"REST: EWR 1h {name}: {planted[name]!r}, not {getattr(ROWS[0], name)!r}"


def test_missing_and_surplus_rows_are_found():
    assert differences(ROWS, ROWS[:1], "gRPC") == ["gRPC: 1 rows where the fold has 2"]
    assert differences(ROWS, [*ROWS, ROWS[0]], "gRPC") == ["gRPC: 3 rows where the fold has 2"]
    (line,) = differences(ROWS, [ROWS[0], replace(ROWS[1], deviation=0.0)], "gRPC")
    assert "JFK 1h deviation: 0.0, not None" in line


INFO = WindowInfo("w", {}, 30, 3, 0, 9, Counts(inserted=90, late=10, evicted=60))
REPORT = BatchReport(15, arrived=100, inserted=90, late=10, evicted=60)


def test_accounts_that_add_up():
    assert accounting(100, 30, REPORT, INFO) == []


@pytest.mark.parametrize(
    ("arrived", "present", "report", "info"),
    [
        (101, 30, REPORT, INFO),
        (100, 31, REPORT, INFO),
        (100, 30, replace(REPORT, late=11), INFO),
        (100, 30, replace(REPORT, evicted=61), INFO),
        (100, 30, REPORT, replace(INFO, entries=29)),
        (100, 30, REPORT, replace(INFO, counts=Counts(91, 10, 61))),
    ],
)
def test_accounts_that_do_not_add_up(arrived, present, report, info):
    assert accounting(arrived, present, report, info)


def test_the_demo_fails_if_a_number_differs(monkeypatch, capsys):
    monkeypatch.setattr(demo, "_flights_through", lambda *_: ["gRPC: EWR 1h mean: 1.0, not 2.0"])
    assert demo.main([]) == 1
    assert "WRONG  gRPC: EWR 1h mean: 1.0, not 2.0" in capsys.readouterr().out
    monkeypatch.setattr(demo, "_flights_through", lambda *_: [])
    assert demo.main([]) == 0


def test_the_table():
    lines = table(ROWS).splitlines()
    assert lines[0].split() == ["airport", "last", "flights", "mean", "std", "dev", "max", "carrier"]
    assert lines[1].split() == ["EWR", "1h", "3", "1.50", "2.50", "9", "UA"]
    assert lines[2].split() == ["JFK", "1h", "1", "1.50", "-", "9", "B6"]


def test_the_feed_holds_every_flight_in_the_order_of_landing(tmp_path):
    flights = load_flights()
    assert len(flights) == 336_776
    assert int(flights["air_time"].notna().sum()) == 327_346
    paths = write_feed(flights, tmp_path, files=4)
    assert [path.stat().st_mtime for path in paths] == sorted({path.stat().st_mtime for path in paths})
    feed = pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
    pd.testing.assert_frame_equal(
        feed.sort_values(list(feed.columns), ignore_index=True),
        flights.sort_values(list(flights.columns), ignore_index=True),
    )
    flown = departures_of(feed)
    in_feed = feed[feed["air_time"].notna()]
    landed = flown["landed"].sort_index()
    assert landed.index.equals(in_feed.index)
    assert landed.is_monotonic_increasing


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 40))
def test_rows_are_gathered_in_order_into_calls_of_a_size(sizes, rows):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    batches = [
        pa.RecordBatch.from_pydict({"v": pa.array(range(start, start + size), pa.int64())})
        for start, size in zip(starts, sizes, strict=True)
    ]
    tables = list(gathered(iter(batches), rows))
    assert [v for part in tables for v in part["v"].to_pylist()] == list(range(sum(sizes)))
    assert all(part.num_rows == rows for part in tables[:-1])
    assert all(1 <= part.num_rows <= rows for part in tables)


def test_a_sink_of_no_rows_a_call_is_refused():
    with pytest.raises(InvalidArgument):
        sash_sink("127.0.0.1:7070", window="w", time="t", rows_per_call=0)
