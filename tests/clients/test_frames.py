"""Data frames of pandas and Polars and tables of Arrow: into windows, and out of series, answers and entries."""

import sys
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sash_client import Bulk, Series, Unsupported
from sash_client.aio import AsyncClient
from sash_client.answers import Answer
from sash_client.data.bulks import from_frame
from sash_client.data.tables import Answers, AsyncEntries, Entries
from sash_proto.v1 import windows_pb2 as pb
from tests.support.refused import field_of

HOUR = 3_600_000_000
TEXT = "object" if pd.__version__ < "3" else "str"
AT = [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in range(4)]
ROWS = {
    "time": AT,
    "key": ["JFK", "LGA", "JFK", "LGA"],
    "carrier": ["UA", "AA", "UA", "DL"],
    "delay": [5.0, -2.0, float("nan"), 30.0],
    "n": [1, 2, 3, 4],
    "on": [True, False, True, True],
}
SPEC = {
    "name": "flights",
    "keyed": True,
    "fields": {"delay": "float64", "n": "int64", "carrier": "string", "on": "bool"},
    "aggregates": {
        "n": {"function": "sum", "field": "n"},
        "worst": {"function": "arg_max", "field": "n", "returns": "carrier"},
        "mean": {"function": "mean", "field": "n"},
        "entries": {"function": "count"},
        "top": {"function": "collect", "field": "n"},
    },
}
CATEGORIES = {"key": "category", "carrier": "category"}
FRAMES = {
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas.categorical": lambda: pd.DataFrame(ROWS).astype(CATEGORIES),
    "pandas.index": lambda: pd.DataFrame(ROWS).set_index(["key", "time"]),
    "pandas.datetimeindex": lambda: pd.DataFrame(ROWS).set_index("time").rename_axis(None),
    "polars": lambda: pl.DataFrame(ROWS),
    "polars.categorical": lambda: pl.DataFrame(ROWS).with_columns(pl.col("key", "carrier").cast(pl.Categorical)),
    "arrow": lambda: pa.table(ROWS),
    "arrow.dictionary": lambda: pa.table(
        {name: pa.array(ROWS[name]).dictionary_encode() if name in CATEGORIES else ROWS[name] for name in ROWS}
    ),
    "arrow.batch": lambda: pa.RecordBatch.from_pydict(ROWS),
}


def as_rows(frame):
    """The rows of any frame as plain values; NaN, which is not itself, as text."""
    if isinstance(frame, pd.DataFrame):
        rows = frame.to_dict("records")
    else:
        rows = frame.to_dicts() if isinstance(frame, pl.DataFrame) else frame.to_pylist()
    return [{name: "NaN" if value != value else value for name, value in row.items()} for row in rows]


EXPECTED = as_rows(pa.table(ROWS))


def by_key(rows):
    return sorted(rows, key=lambda row: (row["key"], row["time"]))


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_goes_in_and_comes_out_as_every_kind(client, kind):
    window = client.create_window(SPEC)
    assert window.bulk_insert(FRAMES[kind]()).inserted == 4
    for to in (Entries.to_pandas, Entries.to_polars, Entries.to_arrow):
        assert by_key(as_rows(to(window.entries()))) == by_key(EXPECTED)
    again = client.create_window(SPEC | {"name": "again"})
    assert again.bulk_insert(getattr(window.entries(), f"to_{kind.partition('.')[0]}")()).inserted == 4
    assert as_rows(again.entries().to_arrow()) == as_rows(window.entries().to_arrow())


def test_columns_may_have_other_names(client):
    window = client.create_window(SPEC)
    frame = pd.DataFrame(ROWS).rename(columns={"time": "departure", "key": "airport"})
    assert window.bulk_insert(frame, time="departure", key="airport").inserted == 4
    with window.producer("p") as producer:
        producer.bulk_insert(pl.from_pandas(frame, nan_to_null=False), time="departure", key="airport")
    (stage,) = window.stage(frame, time="departure", key="airport", query="q", batch=0)
    assert window.commit("q", 0, [stage]).inserted == 4
    assert [result.inserted for result in window.insert_stream([Bulk.from_frame(frame, "departure", "airport")])] == [4]
    assert window.bulk_insert(frame.drop(columns="airport"), time="departure", keys="JFK").inserted == 4
    assert window.describe().entries == 20


@pytest.mark.parametrize(
    ("arguments", "options", "field", "says"),
    [
        ((pd.DataFrame(ROWS).drop(columns="time"),), {}, "time", "no column 'time'; it has key, carrier"),
        ((pl.DataFrame(ROWS),), {"time": "at"}, "at", "no column 'at'; it has time, key"),
        ((pa.table(ROWS),), {"key": "airport"}, "airport", "no column 'airport'"),
        ((pd.DataFrame(ROWS).set_axis(["time", "key", "n", "n", "x", "y"], axis=1),), {}, "n", "two columns 'n'"),
        ((pd.DataFrame(ROWS), {}), {}, "columns", "either a data frame or columns"),
        ((pd.DataFrame(ROWS),), {"entries": [1]}, "entries", "either a data frame or entries"),
        ((pd.DataFrame(ROWS),), {"keys": "JFK"}, "keys", "either key or keys"),
        (([1], [1.0]), {"time": "time"}, "time", "names a column of a data frame"),
        ((pd.DataFrame(ROWS | {"more": 1}),), {}, "more", "has no field 'more'"),
        ((pd.DataFrame(ROWS).drop(columns="on"),), {}, "on", "field 'on' is missing"),
        ((pl.DataFrame(ROWS | {"n": [1, 2, None, 4]}),), {}, "n", "n has missing values, the first in row 2;"),
        ((pl.DataFrame(ROWS | {"time": [*AT[:3], None]}),), {}, "time", "time has missing values, the first in row 3;"),
        ((pd.DataFrame(ROWS | {"key": ["JFK", None, None, "x"]}),), {}, "key", "the first in row 1;"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(client, arguments, options, field, says):
    window = client.create_window(SPEC)
    assert field_of(window.bulk_insert, *arguments, match=says, **options) == field
    assert window.describe().entries == 0


def test_a_frame_is_not_copied():
    frame = pd.DataFrame({"time": np.arange(3), "value": np.arange(3.0)})
    bulk = from_frame(frame)
    assert np.shares_memory(bulk.columns["value"].to_numpy(), frame["value"].to_numpy())


@pytest.mark.parametrize("to", ["to_pandas", "to_polars", "to_arrow"])
def test_panes_go_out_and_in(client, to):
    aggregates = {"mean": {"function": "mean"}, "q": {"function": "quantile"}, "n": {"function": "count"}}
    spec = {"name": "panes", "time_unit": "s", "granularity": "1m", "keyed": True, "aggregates": aggregates}
    window = client.create_window(spec)
    window.bulk_insert([0, 30, 60, 61], [1.0, 2.0, 4.0, 8.0], keys=["a", "a", "a", "b"])
    frame = getattr(window.entries(), to)()
    assert {"time", "key", "entries", "partials.mean[0]", "partials.q[0]"} <= set(as_rows(frame)[0])
    again = client.create_window(spec | {"name": "again"})
    assert again.bulk_insert(frame).inserted == 4
    assert again.query(key="a")[0].aggregates == window.query(key="a")[0].aggregates
    more = window.entries().to_pandas().assign(x=1)
    assert field_of(again.bulk_insert, more, match="column 'x' stands beside partials") == "x"


def test_entries_are_bulks_until_they_are_a_table(client):
    window = client.create_window({"name": "w", "time_unit": "none", "aggregates": {"n": {"function": "count"}}})
    window.bulk_insert([1, 2], [1.0, 2.0])
    entries = window.entries()
    assert next(entries).times.tolist() == [1, 2]
    assert list(entries) == []
    assert as_rows(window.entries().to_arrow()) == [{"time": 1, "value": 1.0}, {"time": 2, "value": 2.0}]
    assert as_rows(window.entries(5).to_polars()) == []
    closed = window.entries()
    closed.close()
    assert list(closed) == []


@pytest.mark.parametrize(
    ("to", "types"),
    [
        ("to_pandas", ["datetime64[us, UTC]", TEXT, TEXT, "float64", "int64", "bool"]),
        (
            "to_polars",
            [pl.Datetime("us", "UTC"), pl.String, pl.String, pl.Float64, pl.Int64, pl.Boolean],
        ),
        ("to_arrow", [pa.timestamp("us", "UTC"), pa.string(), pa.string(), pa.float64(), pa.int64(), pa.bool_()]),
    ],
)
@pytest.mark.parametrize("entries", [0, 4])
def test_columns_have_the_types_of_the_spec(client, to, types, entries):
    window = client.create_window(SPEC)
    if entries:
        window.bulk_insert(pd.DataFrame(ROWS))
    frame = getattr(window.entries(), to)()
    names = ["time", "key", "carrier", "delay", "n", "on"]
    found = frame.schema.types if to == "to_arrow" else [frame[name].dtype for name in names]
    assert list(frame.column_names if to == "to_arrow" else frame.columns) == names
    assert [str(each) if to == "to_pandas" else each for each in found] == types


def test_answers_are_a_list_and_a_table(client):
    window = client.window(client.create_window(SPEC).name)
    window.bulk_insert(pa.table(ROWS))
    answers = window.query(keys=["JFK", "LGA"], lookbacks=["1h", "3h"])
    assert answers == list(answers)
    assert isinstance(answers[0], Answer)
    rows = answers.to_arrow().to_pylist()
    assert [(row["key"], row["lookback"], row["entries"], row["n"]) for row in rows] == [
        ("JFK", "1h", 1, 3),
        ("JFK", "3h", 2, 4),
        ("LGA", "1h", 1, 4),
        ("LGA", "3h", 2, 6),
    ]
    assert [row["top"] for row in rows] == [[3], [1, 3], [4], [2, 4]]
    assert [row["aggregates.entries"] for row in rows] == [1, 2, 1, 2]
    assert rows[1]["end"] == AT[2]
    assert as_rows(answers.to_polars()) == rows
    frame = answers.to_pandas()
    assert list(frame.columns) == [
        *("key", "lookback", "start", "end", "entries", "aggregates.entries", "mean", "n", "top", "worst")
    ]
    assert frame.set_index(["key", "lookback"]).loc[("LGA", "3h"), "worst"] == "DL"
    assert str(frame["end"].dtype) == "datetime64[us, UTC]"


def test_answers_over_nothing(client):
    window = client.create_window(SPEC)
    window.bulk_insert(pa.table(ROWS))
    answers = window.query(key="none", lookbacks=["1h"])
    assert answers.to_arrow().select(["n", "mean"]).to_pylist() == [{"n": answers[0].aggregates["n"], "mean": None}]
    assert pd.isna(answers.to_pandas()["start"][0]) == (answers[0].start is None)
    assert Answers([], lambda: pb.WindowSpec(keyed=True, aggregates={"n": pb.AggregateSpec()})).to_polars().columns == [
        *("key", "start", "end", "entries", "n")
    ]


def test_watched_answers_are_tables(client):
    window = client.create_window(SPEC)
    window.bulk_insert(pa.table(ROWS))
    watching = window.watch(key="JFK")
    assert next(watching).to_pandas()["n"].tolist() == [4]
    watching.close()


def test_a_series_is_a_table(client):
    window = client.create_window(SPEC)
    window.bulk_insert(pa.table(ROWS))
    series = window.series(0, 4 * HOUR, step="2h", key="JFK")
    series = window.series(AT[0], AT[3], step="1h", key="JFK")
    table = series.to_arrow()
    assert table.schema.field("time").type == pa.timestamp("us", "UTC")
    assert table.column("time").to_pylist() == AT[:3]
    assert table.column("key").to_pylist() == ["JFK"] * 3
    assert table.column("entries").to_pylist() == [1, 0, 1]
    assert table.column("mean").to_pylist() == [1.0, None, 3.0]
    assert table.column("worst").to_pylist() == ["UA", None, "UA"]
    assert table.column("top").to_pylist() == [[1], [], [3]]
    assert as_rows(series.to_polars()) == as_rows(table)
    frame = series.to_pandas().set_index("time")
    assert frame.loc["2013-01-01T02:00Z", "mean"] == 3.0
    assert np.isnan(frame.loc["2013-01-01T01:00Z", "mean"])


def series_of(unit="us", times=(1, 2), **aggregates):
    return Series(None, np.array(times), 1, np.array([1, 0]), aggregates, unit)


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s", "none"])
def test_times_are_instants_of_the_unit(unit):
    series = series_of(unit, [-1, 7])
    if unit == "none":
        assert series.to_pandas()["time"].tolist() == series.to_polars()["time"].to_list() == [-1, 7]
        return
    expected = np.array([-1, 7], f"datetime64[{unit}]")
    assert str(series.to_pandas()["time"].dtype) == f"datetime64[{unit}, UTC]"
    np.testing.assert_array_equal(series.to_pandas()["time"].dt.tz_localize(None).to_numpy(), expected)
    np.testing.assert_array_equal(series.to_polars()["time"].to_numpy(), expected)
    assert series.to_arrow()["time"].cast(pa.int64()).to_pylist() == [-1, 7]


def test_polars_has_no_seconds_beyond_its_milliseconds():
    assert series_of("s", [0, 2**63 // 1000]).to_polars()["time"].dtype == pl.Datetime("ms", "UTC")
    with pytest.raises(Unsupported, match="its coarsest unit is ms"):
        series_of("s", [0, 2**63 // 1000 + 1]).to_polars()


@pytest.mark.parametrize(
    ("column", "found", "dtype"),
    [
        (np.array([1.5, np.nan]), [1.5, "NaN"], "float64"),
        (np.ma.MaskedArray([1.5, 7.0], [False, True]), [1.5, None], "float64"),
        (np.ma.MaskedArray([2**62, 0], [False, True]), [2**62, None], "Int64"),
        (np.ma.MaskedArray([1, 2], [False, False]), [1, 2], "int64"),
        (np.array([True, None], dtype=object), [True, None], "boolean"),
        (np.array([-(2**63), None], dtype=object), [-(2**63), None], "Int64"),
        (np.array([2**63 - 1, 2], dtype=object), [2**63 - 1, 2], "int64"),
        (np.array([1, 2.5], dtype=object), [1.0, 2.5], "float64"),
        (np.array(["a", None], dtype=object), ["a", None], TEXT),
        (np.array([b"\0", None], dtype=object), [b"\0", None], "object"),
        (np.array([None, {"a": 1, "b": [2]}], dtype=object), [None, {"a": 1, "b": [2]}], "object"),
        (np.array([{"a": 1}, {"b": 2}], dtype=object), [{"a": 1, "b": None}, {"a": None, "b": 2}], "object"),
        (np.array([None, None], dtype=object), [None, None], "object"),
    ],
    ids=str,
)
def test_answers_of_every_kind(column, found, dtype):
    series = series_of(x=column)
    for table in (series.to_polars(), series.to_arrow()):
        assert [row["x"] for row in as_rows(table)] == found
    frame = series.to_pandas()
    assert str(frame["x"].dtype) == dtype
    if dtype not in ("object", TEXT):
        assert [None if pd.isna(x) else x for x in frame["x"]] == [None if x == "NaN" else x for x in found]
    frame.loc[0, "time"] = pd.Timestamp(0, tz="UTC")  # it is the caller's own


def test_answers_without_a_type():
    big = series_of(x=np.array([2**300, 1], dtype=object))
    assert big.to_pandas()["x"].tolist() == [2**300, 1]
    for to in (Series.to_polars, Series.to_arrow):
        with pytest.raises(Unsupported, match="has no type for all values of 'x'") as caught:
            to(big)
        assert caught.value.field == "x"
        with pytest.raises(Unsupported):
            to(series_of(x=np.array([1, "a"], dtype=object)))


SMALL = pb.WindowSpec(time_unit="none", fields={"x": "float64"})


def bulk_of(*ticks):
    return Bulk(np.array(ticks), {"x": np.array(ticks, float)})


def test_a_table_has_the_entries_of_all_bulks():
    entries = Entries(iter([bulk_of(1, 2), bulk_of(), bulk_of(3)]), lambda: SMALL)
    assert entries.to_arrow().to_pydict() == {"time": [1, 2, 3], "x": [1.0, 2.0, 3.0]}


async def test_closing_entries_ends_the_call():
    ends = []

    async def bulks():
        try:
            yield bulk_of(1)
            yield bulk_of(2)
        finally:
            ends.append("end")

    async def spec():
        return SMALL

    entries = AsyncEntries(bulks(), spec)
    assert len(await anext(entries)) == 1
    await entries.aclose()
    assert ends == ["end"]
    entries = AsyncEntries(bulks(), spec)
    assert (await entries.to_arrow()).num_rows == 2


async def test_the_client_for_asyncio(service):
    async with AsyncClient(service.grpc_target) as sash:
        window = await sash.create_window(SPEC | {"name": "async"})
        assert (await window.bulk_insert(pl.DataFrame(ROWS))).inserted == 4
        window = sash.window("async")
        answers = await window.query(key="JFK")
        for rows in (await answers.to_pandas(), await answers.to_polars(), await answers.to_arrow()):
            assert as_rows(rows)[0]["n"] == 4
        assert (await window.series(AT[0], AT[3], step="1h", key="JFK")).to_polars()["mean"].to_list() == [1.0, None, 3]
        assert by_key(as_rows(await window.entries().to_arrow())) == by_key(EXPECTED)
        assert by_key(as_rows(await window.entries().to_pandas())) == by_key(EXPECTED)
        assert by_key(as_rows(await window.entries().to_polars())) == by_key(EXPECTED)
        entries = window.entries()
        assert len(await anext(entries)) > 0
        await entries.aclose()
        assert [bulk async for bulk in entries] == []
        async for answers in window.watch(key="JFK"):
            assert (await answers.to_pandas())["n"].tolist() == [4]
            break
        await sash.delete_window("async")


@pytest.mark.parametrize(("to", "package"), [("pandas", "pandas"), ("polars", "polars"), ("arrow", "pyarrow")])
def test_a_library_that_is_missing_is_named(monkeypatch, to, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=f"^to_{to} needs {package}: pip install {package}$"):
        getattr(series_of(), f"to_{to}")()
