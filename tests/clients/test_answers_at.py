"""Answers about pairs beside the rows of frames: each row is what a query as of its time answers."""

import weakref
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sash_client import Features, InvalidArgument
from sash_client.aio import AsyncClient
from sash_client.calls.plans import performed
from sash_client.data import features
from sash_client.data.bulks import keyed_times
from sash_client.windows import questions
from sash_client.windows.handle import Handle
from sash_proto.v1 import windows_pb2 as pb
from tests.support.refused import field_of

START = datetime(2013, 1, 1, tzinfo=UTC)
MINUTE = 60_000_000
TICKS = int(START.timestamp()) * 1_000_000
SPEC = {
    "name": "flights",
    "keyed": True,
    "fields": {"delay": "float64"},
    "aggregates": {
        "sum": {"function": "sum"},
        "worst": {"function": "max"},
        "entries": {"function": "count"},
        "all": {"function": "collect"},
    },
}
TIMES = [TICKS + minute * MINUTE for minute in (90, 5, 5, 40, 200)]
KEYS = ["JFK", "LGA", "JFK", "nobody", "LGA"]
NAMES = ["entries_1h", "sum_1h", "worst_1h", "aggregates.entries_1h", "all_1h"]
ROWS = {"airport": KEYS, "at": [datetime.fromtimestamp(tick / 1e6, UTC) for tick in TIMES], "label": [1, 0, 0, 1, 1]}
FRAMES = {
    "pandas": (lambda: pd.DataFrame(ROWS, index=[7, 7, 8, 9, 1]), pd.DataFrame),
    "polars": (lambda: pl.DataFrame(ROWS), pl.DataFrame),
    "arrow": (lambda: pa.table(ROWS), pa.Table),
    "arrow.batch": (lambda: pa.RecordBatch.from_pydict(ROWS), pa.RecordBatch),
}


def filled(client, spec=SPEC):
    window = client.create_window(spec)
    times = TICKS + np.arange(120) * MINUTE
    keys = np.array(["JFK", "LGA"])[np.arange(120) % 2] if "keys" not in spec else None
    window.bulk_insert(times, {"delay": np.arange(120) / 7}, keys=keys if keys is not None else PARTS)
    return window


PARTS = {"airport": ["JFK", "LGA"] * 60, "carrier": ["AA"] * 120}


def expected(window, lookback="1h"):
    return [
        window.query(key=key, as_of=int(time), lookbacks=[lookback])[0] for key, time in zip(KEYS, TIMES, strict=True)
    ]


def listed(column):
    return (
        column.tolist()
        if hasattr(column, "tolist")
        else column.to_pylist()
        if hasattr(column, "to_pylist")
        else column.to_list()
    )


@pytest.mark.parametrize("transport", ["grpc", "connect"], indirect=True)
@pytest.mark.parametrize("kind", list(FRAMES))
def test_frames_in_and_out(client, kind, monkeypatch):
    monkeypatch.setattr(questions, "_PAIR_ANSWERS", 2)
    make, type_ = FRAMES[kind]
    window, seen = filled(client), []
    frame = make()
    found = window.answers_at(
        frame, key="airport", time="at", lookbacks=["1h"], progress=lambda *done: seen.append(done)
    )
    assert type(found) is type_
    assert list(getattr(found, "column_names", found.columns)) == [*ROWS, *sorted(NAMES, key=order_of)]
    assert seen == [(2, 5), (4, 5), (5, 5)]
    answers = expected(window)
    assert listed(found["entries_1h"]) == [answer.entries for answer in answers]
    assert listed(found["sum_1h"]) == [answer.aggregates["sum"] for answer in answers]
    worst = [None if each is None or each != each else each for each in listed(found["worst_1h"])]
    assert worst == [answer.aggregates["worst"] for answer in answers]
    assert [list(each) for each in listed(found["all_1h"])] == [answer.aggregates["all"] for answer in answers]
    assert listed(found["label"]) == ROWS["label"]


def order_of(name):
    return ["entries_1h", "all_1h", "aggregates.entries_1h", "sum_1h", "worst_1h"].index(name)


@pytest.fixture
def transport(request):
    return getattr(request, "param", "grpc")


def test_times_and_keys(client):
    window = filled(client)
    found = window.answers_at(TIMES, keys=KEYS, aggregates="sum")
    assert type(found) is Features
    assert list(found.columns) == ["entries", "sum"]
    assert len(found) == 5
    assert found.columns["sum"].tolist() == [
        window.query(key=key, as_of=time)[0].aggregates["sum"] for key, time in zip(KEYS, TIMES, strict=True)
    ]
    assert found.to_polars().columns == ["entries", "sum"]


def test_no_pairs(client):
    window = filled(client)
    found = window.answers_at(pl.DataFrame(ROWS).head(0), key="airport", time="at", lookbacks=["1h", "1d"])
    assert len(found) == 0
    assert "sum_1d" in found.columns


def test_parts_of_keys_and_conditions(client):
    window = filled(client, SPEC | {"name": "parts", "keys": ["airport", "carrier"]})
    frame = pd.DataFrame(ROWS | {"carrier": "AA"})
    found = window.answers_at(frame, time="at", lookbacks=["1h"], where="airport=JFK", aggregates=["sum"])
    entries = [
        window.query(key={"airport": key, "carrier": "AA"}, as_of=time, lookbacks=["1h"])[0].entries
        if key == "JFK"
        else 0
        for key, time in zip(KEYS, TIMES, strict=True)
    ]
    assert found["entries_1h"].tolist() == entries
    assert sum(entries)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"keys": KEYS[:2]}, "key"),
        ({"keys": KEYS, "lookbacks": ["never"]}, "lookback"),
        ({"keys": KEYS, "lookbacks": "1h"}, "lookbacks"),
        ({"keys": KEYS, "aggregates": ["none"]}, "aggregates"),
        ({}, "keys"),
    ],
)
def test_refused(client, options, field):
    assert field_of(filled(client).answers_at, TIMES, **options) == field


def test_a_column_whose_name_the_frame_has(client):
    window = filled(client)
    frame = pa.table(ROWS | {"sum_1h": [0.0] * 5})
    found = window.answers_at(frame, key="airport", time="at", lookbacks=["1h"], aggregates=["sum"])
    assert found.column_names == [*ROWS, "sum_1h", "entries_1h", "aggregates.sum_1h"]
    assert found["sum_1h"].to_pylist() == [0.0] * 5
    for taken in ({"sum_1h": 0, "aggregates.sum_1h": 1}, {"entries_1h": 0}):
        frame = pd.DataFrame(ROWS | taken)
        with pytest.raises(InvalidArgument, match=r"two columns would have the name 'aggregates\."):
            window.answers_at(frame, key="airport", time="at", lookbacks=["1h"])


def test_a_lookback_that_is_given_twice(client):
    found = filled(client).answers_at(TIMES, keys=KEYS, lookbacks=["1h", "1h"], aggregates=["sum"])
    assert {name: len(column) for name, column in found.columns.items()} == {"entries_1h": 5, "sum_1h": 5}


TOTAL = {"name": "total", "time_unit": "s", "fields": {"late": "int64"}, "aggregates": {"worst": {"function": "max"}}}


@pytest.fixture
def several(client):
    """The window of flights, and one without keys."""
    total = client.create_window(TOTAL)
    total.bulk_insert(TICKS // 1_000_000 + np.arange(9) * 1200, {"late": np.arange(9) * 7 % 10})
    return filled(client), total


@pytest.mark.parametrize("transport", ["grpc", "connect"], indirect=True)
@pytest.mark.parametrize("kind", list(FRAMES))
def test_several_windows(client, several, kind, monkeypatch):
    monkeypatch.setattr(questions, "_PAIR_ANSWERS", 3)
    make, type_ = FRAMES[kind]
    flights, total = several
    seen = []
    found = client.answers_at(
        make(),
        {"flights": {"key": "airport", "aggregates": ["sum"]}, "total": {"lookbacks": ["2h"]}},
        time="at",
        lookbacks=["1h"],
        progress=lambda *done: seen.append(done),
    )
    assert type(found) is type_
    names = ["flights_entries_1h", "flights_sum_1h", "total_entries_2h", "total_worst_2h"]
    assert list(getattr(found, "column_names", found.columns)) == [*ROWS, *names]
    assert seen == [(3, 10), (5, 10), (8, 10), (10, 10)]
    assert listed(found["flights_sum_1h"]) == [answer.aggregates["sum"] for answer in expected(flights)]
    answers = [total.query(as_of=time // 1_000_000, lookbacks=["2h"])[0] for time in TIMES]
    assert listed(found["total_entries_2h"]) == [answer.entries for answer in answers]
    assert listed(found["total_worst_2h"]) == [answer.aggregates["worst"] for answer in answers]


def test_several_windows_by_name_and_times(client, several):
    flights, _ = several
    client.create_window(SPEC | {"name": "none"})
    found = client.answers_at(TIMES, ["flights", "none"], keys=KEYS, aggregates=["sum"])
    assert list(found.columns) == ["flights_entries", "flights_sum", "none_entries", "none_sum"]
    assert found.columns["flights_sum"].tolist() == flights.answers_at(TIMES, keys=KEYS).columns["sum"].tolist()
    assert found.columns["none_entries"].tolist() == [0] * 5


def test_a_window_without_keys_beside_a_column_of_that_name(client, several):
    _, total = several
    found = total.answers_at(pd.DataFrame({"key": KEYS, "time": ROWS["at"]}), lookbacks=["2h"])
    assert sum(found["entries_2h"]) > 0
    with pytest.raises(InvalidArgument):
        total.answers_at(pd.DataFrame({"key": KEYS, "time": ROWS["at"]}), key="key")


async def test_several_windows_with_asyncio(client, address, several):
    async with AsyncClient(**address) as sash:
        found = await sash.answers_at(
            pl.DataFrame(ROWS), {"flights": {}, "total": {"key": None}}, key="airport", time="at", lookbacks=["1h"]
        )
    assert found["flights_entries_1h"].to_list() == [answer.entries for answer in expected(several[0])]
    assert "total_worst_1h" in found.columns


@pytest.mark.parametrize(
    ("windows", "options", "field"),
    [
        ([], {}, "windows"),
        ("flights", {}, "windows"),
        ({"flights": {"lookback": ["1h"]}}, {}, "lookback"),
        (["flights"], {"lookback": ["1h"]}, "lookback"),
        (["a", "a_b"], {}, "windows"),
    ],
)
def test_several_windows_refused(client, windows, options, field):
    filled(client)
    for name, aggregate in (("a", "b_c"), ("a_b", "c")):
        client.create_window(SPEC | {"name": name, "aggregates": {aggregate: {"function": "count"}}})
    assert field_of(client.answers_at, TIMES, windows, keys=KEYS, **options) == field


class Response:
    """An answer of the service that can be referred to weakly."""

    def __init__(self, message):
        self.answers, self.missing_shards = message.answers, message.missing_shards


@pytest.mark.parametrize("bulks", [2, 9])
def test_one_bulk_at_a_time_is_in_memory(bulks, monkeypatch):
    """However many rows there are: a request is made when the one before is answered, and no answer is kept."""
    monkeypatch.setattr(questions, "_PAIR_ANSWERS", 4)
    made, alive = [], []
    monkeypatch.setattr(features, "keyed_times", lambda *found: (made.append(found[2]), keyed_times(*found)))
    spec = pb.WindowSpec(name="w", keyed=True, aggregates={"n": pb.AggregateSpec(function="count")})

    def answer(ask):
        assert made == [4 * at for at in range(len(alive) + 1)]
        assert not any(each() for each in alive)
        rows = np.frombuffer(ask.request.time, "<i8")
        column = pb.SeriesColumn(int64=(rows * 2).tobytes())
        answers = pb.AnswerColumns(entries=rows.tobytes(), aggregates={"n": column})
        response = Response(pb.AnswersAtResponse(answers=[answers]))
        alive.append(weakref.ref(response))
        return response

    plan = questions.answers_at(Handle(None, "w", spec), np.arange(4 * bulks), keys=["k"] * 4 * bulks)
    found = performed(plan, answer)
    assert (len(alive), any(each() for each in alive)) == (bulks, False)
    assert found.columns["n"].tolist() == list(range(0, 8 * bulks, 2))
    assert found.columns["entries"].tolist() == list(range(4 * bulks))


def test_shards_that_any_window_lacks_are_told():
    """A description needs all shards, so they are away only from behind it on."""
    missing = [3, 1]

    def answer(ask):
        if ask.method == "GetWindow":
            return pb.WindowInfo(spec=pb.WindowSpec(name=ask.request.name))
        assert ask.request.partial == "allow"
        columns = pb.AnswerColumns(entries=bytes(8), valid=b"\0")
        return pb.AnswersAtResponse(answers=[columns], missing_shards=[missing.pop(0)])

    found = performed(questions.answers_of(None, [1], ["a", "b"], partial="allow"), answer)
    assert found.missing_shards == (1, 3)
    assert {name: column.tolist() for name, column in found.columns.items()} == {
        "a_entries": [None],
        "b_entries": [None],
    }


def test_bulks_are_of_few_keys(monkeypatch):
    """Pairs of a key travel together, in their order, and the answers stand where the pairs stood."""
    monkeypatch.setattr(questions, "_PAIR_ANSWERS", 3)
    spec = pb.WindowSpec(name="w", keyed=True, aggregates={"n": pb.AggregateSpec(function="count")})
    times, sent = np.array([5, 1, 9, 4, 2, 7, 8]), []

    def answer(ask):
        rows = np.frombuffer(ask.request.time, "<i8")
        sent.append(rows.tolist())
        assert np.frombuffer(ask.request.known_at, "<i8").tolist() == (rows + 10).tolist()
        column = pb.SeriesColumn(int64=(rows * 2).tobytes(), valid=bytes(int(row != 9) for row in rows))
        answers = pb.AnswerColumns(entries=rows.tobytes(), aggregates={"n": column})
        return pb.AnswersAtResponse(answers=[answers])

    plan = questions.answers_at(Handle(None, "w", spec), times, keys=[*"bacbacb"], known_at=times + 10)
    found = performed(plan, answer)
    assert sent == [[5, 4, 8], [1, 2, 9], [7]]
    assert found.columns["entries"].tolist() == [5, 1, 9, 4, 2, 7, 8]
    assert found.columns["n"].tolist() == [10, 2, None, 8, 4, 14, 16]
