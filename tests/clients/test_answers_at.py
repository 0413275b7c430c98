"""Answers about pairs beside the rows of frames: each row is what a query as of its time answers."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sash_client import Features, InvalidArgument
from sash_client.aio import AsyncClient
from sash_client.windows import questions

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


async def test_asyncio(client, address):
    window = filled(client)
    async with AsyncClient(**address) as sash:
        found = await sash.window("flights").answers_at(pl.DataFrame(ROWS), key="airport", time="at", lookbacks=["1h"])
    assert found["entries_1h"].to_list() == [answer.entries for answer in expected(window)]


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
    with pytest.raises(InvalidArgument) as refused:
        filled(client).answers_at(TIMES, **options)
    assert refused.value.field == field
