"""Answers from a table of history in process: the rows of a service with the same entries, to the last bit."""

import contextlib
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client import FailedPrecondition, Features, InvalidArgument
from sash_client.offline import answers_at, spec_of_history
from sash_client.windows import questions
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.clients import client_of
from tests.support.connect_server import address_of
from tests.support.pairs import FIELDS, bits, columns_of, every_aggregate
from tests.support.profile import THOROUGH
from tests.support.refused import field_of
from tests.support.twins import a_share_of_examples

KINDS = {
    "keys": {"keyed": True},
    "parts": {"keys": ["part", "other"]},
    "no keys": {},
    "a history": {"keyed": True, "slide": {"max_age": 10}, "history": 10_000},
    "wall time": {"keyed": True, "slide": {"max_age": "10s", "clock": "wall"}, "history": "30000d", "time_unit": "s"},
    "idle keys": {"keyed": True, "idle_expiry": "1d", "slide": {"max_age": 10_000}},
    "rollups": {"keys": ["part", "other"], "rollups": [["part"]]},
    "nulls": {"keyed": True, "nullable": ["v", "i"]},
    "the first": {"keyed": True, "order": {"equal_times": "first"}},
    "the last": {"keyed": True, "order": {"equal_times": "last"}},
    "named": {"keyed": True, "identity": "i"},
    "panes": {"keyed": True, "granularity": 4},
}
EVERY = every_aggregate()
BULK = 9


@pytest.fixture(scope="module")
def sash(service):
    with client_of(**address_of(service, "grpc")) as client:
        yield client


def spec_of(kind, part=0, parts=8):
    """A spec of a kind with a share of all aggregates that it can have."""
    document = {"name": "w", "time_unit": "none", "fields": FIELDS, **KINDS[kind]}
    found = {}
    for name, aggregate in list(EVERY.items())[part::parts]:
        with contextlib.suppress(Exception):
            WindowSpec.parse(document | {"aggregates": {name: aggregate}})
            found[name] = aggregate
    return document | {"aggregates": found}


def keys_of(spec, keys):
    if "keys" in spec:
        return {"part": ["xy"[key % 2] for key in keys], "other": [str(key) for key in keys]}
    return {"key": [f"k{key}" for key in keys]} if spec.get("keyed") else {}


def table_of(spec, rows):
    columns = columns_of([v for _, _, v in rows], spec.get("nullable", ()))
    types = {"v": pa.float64(), "i": pa.int64(), "s": pa.string(), "b": pa.bool_()}
    fields = {name: pa.array(column, types[name]) for name, column in columns.items()}
    keys = {name: pa.array(column, pa.string()) for name, column in keys_of(spec, [key for key, _, _ in rows]).items()}
    return pa.table({"time": pa.array([time for _, time, _ in rows], pa.int64()), **keys, **fields})


def pairs_of(spec, asked):
    keys = {name: pa.array(column, pa.string()) for name, column in keys_of(spec, [key for key, _ in asked]).items()}
    return pa.table({"time": pa.array([time for _, time in asked], pa.int64()), **keys})


def same(found, expected, without=()):
    assert found.column_names == expected.column_names
    for name in expected.column_names:
        if not name.startswith(tuple(without)):
            pair = zip(found[name].to_pylist(), expected[name].to_pylist(), strict=True)
            assert all(bits(mine) == bits(theirs) for mine, theirs in pair), name
            assert found[name].type == expected[name].type


rows_of = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(-9, 99)), max_size=60)
asked_of = st.lists(st.tuples(st.integers(0, 5), st.integers(-20, 99)), min_size=1, max_size=20)
lookbacks_of = st.lists(st.sampled_from(["1", "5", "17", "1000"]), max_size=2, unique=True)


@pytest.mark.parametrize("kind", list(KINDS))
@a_share_of_examples(10)
@given(rows=rows_of, asked=asked_of, lookbacks=lookbacks_of, part=st.integers(0, 7))
def test_a_service_answers_the_same(sash, kind, rows, asked, lookbacks, part):
    spec = spec_of(kind, part)
    with contextlib.suppress(Exception):
        sash.delete_window("w")
    window = sash.create_window(spec)
    table = table_of(spec, rows)
    size = max(len(rows), 1) if kind == "panes" else BULK  # a pane rounds as its entries came
    for at in range(0, len(rows), size):
        window.bulk_insert(table.slice(at, size))
    pairs = pairs_of(spec, asked)
    same(answers_at(table, pairs, spec, lookbacks=lookbacks), window.answers_at(pairs, lookbacks=lookbacks))


def test_a_pane_joins_its_entries_in_the_order_of_the_rows():
    spec = {"name": "w", "time_unit": "none", "granularity": 10, "aggregates": {"last": {"function": "last"}}}
    table = pa.table({"time": [9, 12, 3, -1, -5], "value": [1.0, 2.0, 3.0, 4.0, 5.0]})
    window = Window(WindowSpec.parse(spec))
    window.bulk_insert(Batch.of(window.spec, [9, 12, 3, -1, -5], {"value": [1.0, 2.0, 3.0, 4.0, 5.0]}))
    times = np.array([-1, 9, 19])
    (expected,) = window.answers_at(times)
    assert answers_at(table, times, spec).columns["last"].tolist() == expected.aggregates["last"].tolist()


RANDOM = {"quantile_float64", "quantile_int64"}
"""Sketches that draw random numbers where they have many values."""
ROWS = 4500 if THOROUGH else 2600
"""Of two keys: each has more than one block of 1,024."""


@pytest.mark.parametrize(("part", "bulk"), [(0, 700), (1, 7), (2, 700)])
def test_large_keys_have_the_blocks_of_a_live_window(part, bulk):
    """Bulks that have fewer than 512 entries of a key fill its blocks one after the other, whichever they are."""
    random = np.random.default_rng(part)
    times, keys = np.sort(random.integers(0, 3000, ROWS)).tolist(), random.integers(0, 2, ROWS).tolist()
    rows = list(zip(keys, times, random.integers(-999, 999, ROWS).tolist(), strict=True))
    spec = spec_of("keys", part, 3)
    spec["aggregates"] = {name: each for name, each in spec["aggregates"].items() if name not in RANDOM}
    table, window = table_of(spec, [rows[row] for row in by_key(keys, times, random)]), Window(WindowSpec.parse(spec))
    for at in range(0, len(rows), bulk):
        some = [v for _, _, v in rows[at : at + bulk]]
        names = [f"k{key}" for key in keys[at : at + bulk]]
        window.bulk_insert(Batch.of(window.spec, times[at : at + bulk], columns_of(some), names))
    asked = list(zip(random.integers(0, 3, 60).tolist(), random.integers(0, 3000, 60).tolist(), strict=True))
    for lookbacks in (["50", "2000"], []):
        found = answers_at(table, pairs_of(spec, asked), spec, lookbacks=lookbacks)
        times, names = np.array([time for _, time in asked]), [f"k{key}" for key, _ in asked]
        for columns in window.answers_at(times, names, lookbacks):
            behind = f"_{columns.lookback}" if lookbacks else ""
            assert found[f"entries{behind}"].to_pylist() == columns.entries.tolist()
            for name in spec["aggregates"]:
                pair = zip(found[name + behind].to_pylist(), columns.aggregates[name].tolist(), strict=True)
                assert all(bits(mine) == bits(theirs) for mine, theirs in pair), name


def by_key(keys, times, random):
    """Rows in another order, in which those of one key and time are as they were."""
    shuffled = {(key, time): random.random() for key, time in zip(keys, times, strict=True)}
    return sorted(range(len(keys)), key=lambda row: shuffled[keys[row], times[row]])


def test_a_dictionary_may_have_a_key_twice():
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1]), pa.array(["a", "a", "b"]))
    table = pa.table({"time": [1, 2, 3, 4], "key": keys, "delay": [1.0, 2.0, 4.0, 8.0]})
    found = answers_at(table, pa.table({"time": [9, 9], "key": ["a", "b"]}), SPEC, lookbacks=["1h"])
    assert found["sum_1h"].to_pylist() == [11.0, 4.0]


# ---------------------------------------------------------------- what it takes

START = 1_356_998_400  # 2013-01-01
SPEC = {
    "name": "flights",
    "time_unit": "s",
    "keyed": True,
    "fields": {"delay": "float64"},
    "slide": {"max_age": "1h"},
    "aggregates": {"sum": {"function": "sum", "field": "delay"}, "n": {"function": "count"}},
}
FLIGHTS = {
    "airport": ["JFK", "LGA", "JFK", "JFK", "LGA", "JFK"],
    "left": [START + 60 * minute for minute in (90, 95, 5, 41, 300, 5000)],
    "tail": ["N1", "N2", "N3", "N4", "N5", "N6"],
    "delay": [1.5, 2.0, 4.0, 8.0, 16.0, 32.0],
}
PAIRS = pa.table({"airport": ["JFK", "LGA", "EWR"], "at": pa.array([START + 6000, START + 6000, START], pa.int64())})
NAMES = {"entry_time": "left", "entry_key": "airport", "time": "at", "key": "airport", "lookbacks": ["1h"]}
SUMS, ENTRIES = [9.5, 2.0, 0.0], [2, 1, 0]


def arrow():
    return pa.table({**FLIGHTS, "left": pa.array(FLIGHTS["left"], pa.int64()).cast(pa.timestamp("s", "UTC"))})


def parquet(path):
    pq.write_table(arrow(), path / "flights.parquet")
    return ds.dataset(path)


TABLES = {
    "pandas": lambda path: pd.DataFrame({**FLIGHTS, "left": pd.to_datetime(FLIGHTS["left"], unit="s", utc=True)}),
    "polars": lambda path: pl.DataFrame(arrow()),
    "arrow": lambda path: arrow(),
    "one batch": lambda path: arrow().to_batches()[0],
    "batches": lambda path: (arrow().slice(at, 2).to_batches()[0] for at in range(0, 6, 2)),
    "a reader": lambda path: pa.RecordBatchReader.from_batches(arrow().schema, arrow().to_batches()),
    "a dataset": parquet,
}


@pytest.mark.parametrize("kind", list(TABLES))
def test_tables_of_all_kinds(kind, tmp_path):
    """Entries of all times answer, whatever the slide says; columns that are no fields are not read."""
    found = answers_at(TABLES[kind](tmp_path), PAIRS, SPEC, **NAMES)
    assert type(found) is pa.Table
    assert found.column_names == ["airport", "at", "entries_1h", "n_1h", "sum_1h"]
    assert found["sum_1h"].to_pylist() == SUMS
    assert found["entries_1h"].to_pylist() == ENTRIES


def test_a_dataset_is_asked_for_the_columns_that_are_read():
    asked = []

    class Dataset:
        schema = arrow().schema

        def to_table(self, columns):
            asked.append(columns)
            return arrow().select(columns)

    answers_at(Dataset(), PAIRS, SPEC, **NAMES)
    assert asked == [["airport", "left", "delay"]]


def test_pairs_of_all_kinds():
    for pairs in (PAIRS.to_pandas(), pl.DataFrame(PAIRS)):
        found = answers_at(arrow(), pairs, SPEC, **NAMES)
        assert type(found) is type(pairs)
        assert list(found["sum_1h"]) == SUMS
    seen = []
    found = answers_at(
        arrow(),
        PAIRS["at"],
        SPEC,
        keys=PAIRS["airport"],
        entry_time="left",
        entry_key="airport",
        lookbacks=["1h"],
        aggregates="sum",
        where="key!=LGA",
        progress=lambda *done: seen.append(done),
    )
    assert type(found) is Features
    assert {name: column.tolist() for name, column in found.columns.items()} == {
        "entries_1h": [2, 0, 0],
        "sum_1h": [9.5, 0.0, 0.0],
    }
    assert seen == [(3, 3)]


def test_pairs_are_asked_about_in_bulks(monkeypatch):
    monkeypatch.setattr(questions, "_PAIR_ANSWERS", 2)
    assert answers_at(arrow(), PAIRS, SPEC, **NAMES)["sum_1h"].to_pylist() == SUMS


def test_a_spec_as_text_and_no_lookbacks():
    text = "{name: flights, time_unit: s, keyed: true, aggregates: {all: {function: collect}}}"
    table = pa.table({"time": [3, 1, 2, 2], "key": ["a"] * 4, "value": [3.0, 1.0, 2.5, 2.25]})
    found = answers_at(table, pa.table({"time": [2, 9, 0], "key": ["a"] * 3}), text)
    assert found["all"].to_pylist() == [[1.0, 2.5, 2.25], [1.0, 2.5, 2.25, 3.0], []], "in order of time, then of rows"


def test_no_entries_and_no_pairs():
    nothing = answers_at(arrow().slice(0, 0), PAIRS, SPEC, **NAMES)
    assert nothing["entries_1h"].to_pylist() == [0, 0, 0]
    assert answers_at(arrow(), PAIRS.slice(0, 0), SPEC, **NAMES).column_names == nothing.column_names


# ---------------------------------------------------------------- what it refuses

PANES = {"window": "other", "granularity": "1m"}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"slide": {"max_count": 5}}, "slide.max_count"),
        ({"slide": {"max_gap": "5m"}}, "slide.max_gap"),
        ({"slide": {"when": "total.n > 5"}}, "slide.when"),
        ({"slide": {"adaptive": {}}}, "slide.adaptive"),
        ({"order": {"ahead": "5m"}}, "order.ahead"),
        ({"from": PANES}, "from"),
        ({"of": "other"}, "of"),
        ({"of": "other", "fields": None, "keyed": None, "time_unit": None}, "of"),
        ({"history": "1m"}, "history"),
        ({"colour": "red"}, "colour"),
        ({"aggregates": {"n": {"function": "nope"}}}, "aggregates.n.function"),
    ],
)
def test_a_part_of_a_spec_is_refused_by_name(more, field):
    document = {name: value for name, value in {**SPEC, **more}.items() if value is not None}
    match = re.escape(field.removesuffix(".function"))
    assert field_of(answers_at, arrow(), PAIRS, document, **NAMES, match=match) == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"entry_time": None}, "time"),
        ({"entry_key": "port"}, "port"),
        ({"entry_key": None}, "key"),
        ({"time": "when"}, "when"),
        ({"lookbacks": ["never"]}, "lookback"),
        ({"aggregates": ["none"]}, "aggregates"),
        ({"where": "colour=red"}, "where"),
    ],
)
def test_a_question_is_refused_as_a_service_refuses_it(options, field):
    assert field_of(answers_at, arrow(), PAIRS, SPEC, **{**NAMES, **options}) == field


def test_entries_are_refused_as_a_service_refuses_them():
    with pytest.raises(InvalidArgument, match="field 'delay' is missing"):
        answers_at(arrow().drop_columns("delay"), PAIRS, SPEC, **NAMES)
    with pytest.raises(InvalidArgument, match="missing values"):
        answers_at(arrow().set_column(3, "delay", pa.nulls(6, pa.float64())), PAIRS, SPEC, **NAMES)
    twice = pa.concat_tables([arrow(), arrow()])
    with pytest.raises(FailedPrecondition) as refused:
        answers_at(twice, PAIRS, {**SPEC, "order": {"equal_times": "reject"}}, **NAMES)
    assert refused.value.reason == "FAILED_PRECONDITION"
    assert (
        answers_at(arrow(), PAIRS, {**SPEC, "order": {"out_of_order": "reject"}}, **NAMES)["sum_1h"].to_pylist() == SUMS
    )
    guard = {"ahead": "1d", "too_far_ahead": "reject"}  # that of a new window
    assert answers_at(arrow(), PAIRS, {**SPEC, "order": guard}, **NAMES)["sum_1h"].to_pylist() == SUMS


def test_what_has_no_effect_is_left_out():
    given = {**SPEC, "history": "9d", "idle_expiry": "10d", "durability": "sync", "order": {"equal_times": "last"}}
    assert set(spec_of_history(given).model_fields_set) == {
        "name",
        "time_unit",
        "keyed",
        "fields",
        "aggregates",
        "order",
    }
    assert spec_of_history(given).order.equal_times == "last"
