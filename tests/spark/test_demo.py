"""The demo: its fold, its comparison, its accounts, and all of it once with few flights. A planted fault must show."""

import contextlib
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client import Counts, InvalidArgument, Window, WindowInfo
from sash_client.local import local_service
from sash_spark import BatchReport, demo, sash_sink
from sash_spark.demo import (
    Row,
    Verdict,
    accounting,
    departures_of,
    differences,
    expected_present,
    expected_rows,
    table,
)
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
    assert differences(ROWS, ROWS, "gRPC") == Verdict(14)
    assert differences(ROWS, [replace(ROWS[0], mean=1.5 + 1e-12), ROWS[1]], "gRPC") == Verdict(14)


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
    line = f"REST: EWR 1h {name}: {planted[name]!r}, not {getattr(ROWS[0], name)!r}"
    assert differences(ROWS, found, "REST") == Verdict(14, (line,))


def test_missing_and_surplus_rows_are_found():
    assert differences(ROWS, ROWS[:1], "gRPC") == Verdict(0, ("gRPC: 1 rows where the fold has 2",))
    assert differences(ROWS, [*ROWS, ROWS[0]], "gRPC") == Verdict(0, ("gRPC: 3 rows where the fold has 2",))
    (line,) = differences(ROWS, [ROWS[0], replace(ROWS[1], deviation=0.0)], "gRPC").wrong
    assert "JFK 1h deviation: 0.0, not None" in line


INFO = WindowInfo("w", {}, 30, 3, 0, 9, Counts(inserted=90, late=10, evicted=60))
REPORT = BatchReport(15, arrived=100, inserted=90, late=10, evicted=60)


def test_accounts_that_add_up():
    assert accounting(100, 30, REPORT, INFO) == Verdict(demo.ACCOUNTS)


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
    assert accounting(arrived, present, report, info).wrong


# ---------------------------------------------------------------- all of it

FEW = 3_000
"""The flights of the first three and a half days."""


@pytest.fixture(scope="module")
def few():
    flights = load_flights().head(FEW)
    return flights, (FEW, int(flights["air_time"].notna().sum()))


@pytest.fixture(scope="module")
def ran(spark, few):
    """The demo with few flights through Spark: what it returned and printed, its service, what its pipeline said."""
    with pytest.MonkeyPatch.context() as patch, local_service() as service:
        stopped, done = [], []

        class Recorded(demo.Pipeline):
            def run(self):
                done.append(super().run())
                return done[0]

        patch.setattr(demo, "load_flights", lambda: few[0])
        patch.setattr(demo, "DEPARTURES", few[1])
        patch.setattr(demo, "Pipeline", Recorded)
        patch.setattr(demo, "local_service", lambda **_: contextlib.nullcontext(service))
        patch.setattr(spark, "stop", lambda: stopped.append(True))  # other tests go on with it
        said = []
        patch.setattr(demo, "say", said.append)
        code = demo.main(["--files", "2"])
        assert stopped == [True]
        yield code, said, service, done[0]


@pytest.fixture
def again(ran, few, spark, monkeypatch):
    """Runs the demo on the windows that are there, with what its pipeline said; Spark has no part in it."""
    _, _, service, done = ran

    class Done:
        def __init__(self, *_, **__):
            pass

        def run(self):
            return done

    said = []
    monkeypatch.setattr(demo, "load_flights", lambda: few[0])
    monkeypatch.setattr(demo, "DEPARTURES", few[1])
    monkeypatch.setattr(demo, "Pipeline", Done)
    monkeypatch.setattr(demo, "local_service", lambda **_: contextlib.nullcontext(service))
    monkeypatch.setattr(demo, "local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr(demo, "say", said.append)

    def run(*arguments):
        said.clear()
        code = demo.main(["--files", "1", *arguments])
        return code, [line for line in said if line.startswith("WRONG" if not arguments else "\nThe page")]

    return run


@pytest.mark.spark
def test_a_few_flights_through_all_of_it(ran, few):
    code, said, _, done = ran
    assert code == 0
    assert [line for line in said if line.startswith("WRONG")] == []
    assert (
        sum(line == "All 30 numbers, over gRPC and over REST, equal the fold that pandas computed." for line in said)
        == 2
    )
    assert sum(line.startswith(f"{few[1][1]:,} arrived = ") for line in said) == 2
    assert done.rows == FEW


def planted(answers, name, value):
    return [replace(each, aggregates={**each.aggregates, name: value}) for each in answers]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["flights", "mean", "deviation", "max", "worst"])
def test_a_difference_over_grpc_fails_the_demo(again, monkeypatch, name):
    query = Window.query

    def wrong(self, key=None, *, lookbacks=(), **options):
        answers = query(self, key=key, lookbacks=lookbacks, **options)
        return planted(answers, name, -1.0) if (self.name, key) == ("departure_delay_month", "JFK") else answers

    monkeypatch.setattr(Window, "query", wrong)
    code, lines = again()
    assert code == 1
    assert [line.partition(":")[0] for line in lines] == ["WRONG  gRPC"] * 2
    assert all(f" {name}: -1.0, not " in line and " JFK " in line for line in lines)


@pytest.mark.spark
@pytest.mark.parametrize("name", ["flights", "mean", "deviation", "max", "worst"])
def test_a_difference_over_rest_fails_the_demo(again, monkeypatch, name):
    rest_answers = demo.rest_answers

    def wrong(address, window, key, lookbacks):
        answers = rest_answers(address, window, key, lookbacks)
        if (window, key) == ("departure_delay", "LGA"):
            answers[1] = {**answers[1], "aggregates": {**answers[1]["aggregates"], name: -1.0}}
        return answers

    monkeypatch.setattr(demo, "rest_answers", wrong)
    code, (line,) = again()
    assert code == 1
    assert line.startswith(f"WRONG  REST: LGA 6h {name}: -1.0, not ")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("skipped", "returns", "compared"),
    [
        ("_checked", Verdict(), 0),
        ("differences", Verdict(), 14),
        ("accounting", Verdict(), 168),
        ("expected_rows", [], 14),
    ],
)
def test_a_check_that_compares_nothing_fails_the_demo(again, monkeypatch, skipped, returns, compared):
    monkeypatch.setattr(demo, skipped, lambda *_: returns)
    code, lines = again()
    assert code == 1
    assert f"WRONG  {compared} values were compared, of 182" in lines


@pytest.mark.spark
def test_a_window_that_is_not_checked_fails_the_demo(again, monkeypatch):
    config = demo.flights_config

    def shorter(service, scratch):
        found = config(service, scratch)
        return found.model_copy(update={"windows": found.windows[:1]})

    monkeypatch.setattr(demo, "flights_config", shorter)
    assert again() == (1, ["WRONG  91 values were compared, of 182"])


@pytest.mark.spark
def test_the_service_is_kept_until_the_user_interrupts(again, ran, monkeypatch):
    waits = []
    monkeypatch.setattr(demo, "_until_interrupted", lambda: waits.append(True))
    assert again("--keep") == (0, [f"\nThe page: {ran[2].address}/   (Ctrl-C stops the service)"])
    assert waits == [True]


@pytest.mark.spark
def test_flights_that_are_not_those_of_the_data_set_fail_the_demo(again, monkeypatch, few):
    monkeypatch.setattr(demo, "load_flights", lambda: few[0].head(FEW - 1))
    code, (line,) = again()
    assert code == 1
    assert line.startswith("WRONG  2,999 flights, ")


@pytest.mark.spark
@pytest.mark.parametrize("change", [{"rows": FEW - 1}, {"bad": {"time is null": 1}}], ids=str)
def test_records_that_are_missing_or_bad_fail_the_demo(again, ran, monkeypatch, change):
    done = replace(ran[3], **change)
    monkeypatch.setattr(demo.Pipeline, "run", lambda _: done)
    assert again() == (1, ["WRONG  records are missing, or bad"])


@pytest.mark.spark
def test_counts_that_do_not_add_up_fail_the_demo(again, ran, monkeypatch):
    done = ran[3]
    report = replace(done.windows["departure_delay"], late=done.windows["departure_delay"].late + 1)
    monkeypatch.setattr(
        demo.Pipeline, "run", lambda _: replace(done, windows={**done.windows, "departure_delay": report})
    )
    code, (line,) = again()
    assert code == 1
    assert line.startswith("WRONG  departure_delay: late, as the sink counted: ")


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
