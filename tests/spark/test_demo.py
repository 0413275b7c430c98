"""The demo: its fold, its comparison, its accounts, and all of it once with few flights. A planted fault must show."""

import contextlib
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client import Counts, InvalidArgument, Window, WindowInfo
from sash_spark import BatchReport, demo, sash_sink
from sash_spark.demo import (
    Row,
    Verdict,
    accounting,
    departures_of,
    differences,
    expected_present,
    expected_rows,
    expected_top,
    table,
)
from sash_spark.flights import load_flights, write_feed
from sash_spark.writing.route import gathered
from tests.spark.conftest import service_here

ROWS = [
    Row(("EWR",), "1h", 3, 1.5, 2.5, 9.0),
    Row(("JFK",), "1h", 1, 1.5, None, 9.0),
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
    by_airport = [
        *(Row(("EWR",), lookback, 1, 2.0, None, 2.0) for lookback in ("1h", "1h1m", "1d")),
        # 15:25 is exactly an hour before 16:25: a lookback excludes its start.
        Row(("JFK",), "1h", 1, 25.0, None, 25.0),
        Row(("JFK",), "1h1m", 3, 15.0, pytest.approx(300**0.5), 25.0),
        Row(("JFK",), "1d", 4, 13.75, pytest.approx(206.25**0.5), 25.0),
    ]
    assert expected_rows(departures, ("airport",), ("1h", "1h1m", "1d")) == by_airport
    assert expected_rows(departures, ("carrier",), ("1h",)) == [
        Row((carrier,), "1h", 1, delay, None, delay)
        for carrier, delay in (("AA", 25.0), ("B6", -5.0), ("DL", 2.0), ("HA", 10.0), ("UA", 25.0))
    ]
    assert [row.group for row in expected_rows(departures, ("airport", "carrier"), ("1h",))] == [
        *(("EWR", "DL"), ("JFK", "AA"), ("JFK", "B6"), ("JFK", "HA"), ("JFK", "UA"))
    ]
    assert expected_rows(departures, (), ("1h",)) == [Row((), "1h", 2, 13.5, pytest.approx(264.5**0.5), 25.0)]
    assert expected_top(by_airport, "1h1m") == [by_airport[4], by_airport[1]]
    assert expected_present(departures, "1h") == 5  # each of five keys has its own newest
    assert expected_present(departures_of(raw(*FLIGHTS.assign(carrier="B6").values.tolist())), "61m") == 4


def test_equal_rows_do_not_differ():
    assert differences(ROWS, ROWS, "gRPC") == Verdict(12)
    assert differences(ROWS, [replace(ROWS[0], mean=1.5 + 1e-12), ROWS[1]], "gRPC") == Verdict(12)


@pytest.mark.parametrize(
    "planted",
    [
        {"group": ("LGA",)},
        {"lookback": "6h"},
        {"flights": 4},
        {"mean": 1.500001},
        {"mean": float("nan")},
        {"mean": None},
        {"deviation": 2.500001},
        {"deviation": None},
        {"max": 9.0000001},
    ],
    ids=str,
)
def test_a_planted_difference_is_found(planted):
    (name,) = planted
    found = [replace(ROWS[0], **planted), ROWS[1]]
    line = f"REST: EWR 1h {name}: {planted[name]!r}, not {getattr(ROWS[0], name)!r}"
    assert differences(ROWS, found, "REST") == Verdict(12, (line,))


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
def due(few):
    """The values that the demo compares."""
    departures = departures_of(few[0])
    groups = sum(len(set(zip(*(departures[name] for name in by), strict=True))) for by in demo.GROUPINGS if by) + 1
    return 2 * demo.ACCOUNTS + 2 * 2 * len(Row.__slots__) * (2 * groups + demo.TOP)


@pytest.fixture(scope="module")
def ran(spark, few):
    """The demo with few flights through Spark: what it returned and printed, its service, what its pipeline said."""
    with pytest.MonkeyPatch.context() as patch, service_here() as service:
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
def test_a_few_flights_through_all_of_it(ran, few, due):
    code, said, _, done = ran
    assert code == 0
    assert [line for line in said if line.startswith("WRONG")] == []
    equal = [line for line in said if line.endswith(", over gRPC and over REST, equal the fold that pandas computed.")]
    groups = (due - 2 * demo.ACCOUNTS) // 2 // 2 // len(Row.__slots__)
    assert [line.partition(",")[0] for line in equal] == [f"All {4 * groups} numbers of {groups} groups"] * 2
    assert sum(line.startswith(f"{few[1][1]:,} arrived = ") for line in said) == 2
    assert done.rows == FEW


def planted(answers, name, value):
    return [replace(each, aggregates={**each.aggregates, name: value}) for each in answers]


def answers_of(edge, monkeypatch, plant):
    """Change what an edge answers: `plant` gets a window's name, the question, and each answer's parts and numbers."""
    if edge == "gRPC":
        query = Window.query

        def over_grpc(self, **asked):
            return [
                replace(each, aggregates=plant(self.name, asked, each.parts, each.aggregates))
                for each in query(self, **asked)
            ]

        monkeypatch.setattr(Window, "query", over_grpc)
    else:
        rest_answers = demo.rest_answers

        def over_rest(address, window, asked):
            found = rest_answers(address, window, asked)
            return [
                {**each, "aggregates": plant(window, asked, each.get("parts"), each["aggregates"])} for each in found
            ]

        monkeypatch.setattr(demo, "rest_answers", over_rest)


@pytest.mark.spark
@pytest.mark.parametrize("edge", ["gRPC", "REST"])
def test_a_difference_fails_the_demo(again, monkeypatch, edge):
    def plant(window, asked, parts, numbers):
        chosen = (window, asked.get("by"), parts) == ("departure_delay_month", ("airport",), {"airport": "JFK"})
        return {**numbers, "deviation": -1.0} if chosen else numbers

    answers_of(edge, monkeypatch, plant)
    code, lines = again()
    assert code == 1
    assert [line.partition(":")[0] for line in lines] == [f"WRONG  {edge}"] * 2
    assert all(" deviation: -1.0, not " in line and " JFK " in line for line in lines)


@pytest.mark.spark
@pytest.mark.parametrize(
    "question", [{"by": ("carrier",)}, {"by": ("airport", "carrier")}, {"combine": True}, {"top": "mean"}], ids=str
)
def test_every_grouping_is_compared(again, monkeypatch, question):
    def plant(window, asked, parts, numbers):
        return {**numbers, "max": -1.0} if question.items() <= asked.items() else numbers

    answers_of("gRPC", monkeypatch, plant)
    code, lines = again()
    assert code == 1
    assert lines


@pytest.mark.spark
@pytest.mark.parametrize("skipped", ["_checked", "differences", "accounting", "expected_rows"])
def test_a_check_that_compares_nothing_fails_the_demo(again, monkeypatch, skipped, due):
    returns, compared = {
        "_checked": (Verdict(), 0),
        "differences": (Verdict(), 14),
        "accounting": (Verdict(), due - 14),
        "expected_rows": ([], 14),
    }[skipped]
    monkeypatch.setattr(demo, skipped, lambda *_: returns)
    code, lines = again()
    assert code == 1
    assert f"WRONG  {compared} values were compared, of {due}" in lines


@pytest.mark.spark
def test_a_window_that_is_not_checked_fails_the_demo(again, monkeypatch, due):
    config = demo.flights_config

    def shorter(service, scratch):
        found = config(service, scratch)
        return found.model_copy(update={"windows": found.windows[:1]})

    monkeypatch.setattr(demo, "flights_config", shorter)
    assert again() == (1, [f"WRONG  {due // 2} values were compared, of {due}"])


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
    assert lines[0].split() == ["group", "last", "flights", "mean", "std", "dev", "max"]
    assert lines[1].split() == ["EWR", "1h", "3", "1.50", "2.50", "9"]
    assert lines[2].split() == ["JFK", "1h", "1", "1.50", "-", "9"]
    assert table([replace(ROWS[0], group=("EWR", "UA"))]).splitlines()[1].split()[0] == "EWR|UA"
    assert table([replace(ROWS[0], group=())]).splitlines()[1].split()[0] == "all"


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
