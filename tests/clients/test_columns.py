"""Columns of every accepted kind become the field's type, strings a dictionary with codes, and nulls a mask."""

import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client import InvalidArgument
from sash_client.data.columns import to_coded, to_column, to_nullable
from sash_client.data.times import to_ticks
from sash_wire.coded import Coded
from sash_wire.nulls import with_nulls
from tests.support.refused import field_of

TEXTS = ["UA", "AA", "UA", "", "Zürich"]


def decoded(column):
    return [column.dictionary[code] for code in column.codes.tolist()]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "float64"),
        ([1.0, 2.0], "float64"),
        (np.array([1, 2], dtype="f4"), "float64"),
        (np.array([1, 2], dtype=">f8"), "float64"),
        (np.array([[1, 9], [2, 9]], dtype="f8")[:, 0], "float64"),
        (np.array([1, 2.0], dtype=object), "float64"),
        (pd.Series([1.0, 2.0], dtype="Float64"), "float64"),
        (pd.Series([1, 2], dtype="float32[pyarrow]"), "float64"),
        (pa.array([1.0, 2.0]), "float64"),
        (pl.Series([1.0, 2.0]), "float64"),
        (pl.Series([1, 2], dtype=pl.Int8), "float64"),
        (pl.Series([1, 2], dtype=pl.UInt16), "int64"),
        (pd.Series([1, 2], dtype="uint16[pyarrow]"), "int64"),
        (pa.chunked_array([[1], [2]]), "float64"),
        (np.array([1, 2], dtype="u1"), "int64"),
        (pd.Series([1, 2], dtype="Int16"), "int64"),
        (np.array([1, 2], dtype=object), "int64"),
        (pa.array([1, 2], pa.int8()), "int64"),
    ],
)
def test_numbers_are_widened(values, kind):
    column = to_column(values, kind, "delay")
    assert column.dtype == np.dtype({"float64": "<f8", "int64": "<i8"}[kind])
    assert column.flags.c_contiguous
    assert column.tolist() == [1, 2]


@pytest.mark.parametrize(
    "values",
    [
        [True, False],
        np.array([True, False]),
        np.array([True, False], dtype=object),
        pd.Series([True, False]),
        pd.Series([True, False], dtype="boolean"),
        pa.array([True, False]),
        pl.Series([True, False]),
    ],
)
def test_bools(values):
    assert to_column(values, "bool", "on").tolist() == [True, False]


def test_a_column_of_its_own_type_is_not_copied():
    values = np.arange(4.0)
    assert to_column(values, "float64", "delay") is values
    assert np.shares_memory(to_column(pd.Series(values, copy=False), "float64", "delay"), values)


def test_nan_and_infinities_are_values():
    column = to_column([np.nan, np.inf, -np.inf, -0.0], "float64", "delay")
    np.testing.assert_array_equal(column, [np.nan, np.inf, -np.inf, -0.0])
    assert np.signbit(column[3])


@pytest.mark.parametrize(
    "values",
    [
        TEXTS,
        tuple(TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        np.array(TEXTS, dtype=np.dtypes.StringDType()),
        pd.Series(TEXTS),
        pd.Series(TEXTS, dtype="string"),
        pd.Series(TEXTS, dtype="category"),
        pd.Categorical(TEXTS),
        pd.CategoricalIndex(TEXTS),
        pd.Series(TEXTS, dtype="string[pyarrow]"),
        pd.Series(TEXTS, dtype=pd.ArrowDtype(pa.string())),
        pd.Series(pa.array(TEXTS).dictionary_encode(), dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))),
        pd.Index(TEXTS),
        pl.Series(TEXTS),
        pl.Series(TEXTS, dtype=pl.Categorical),
        pl.Series(TEXTS, dtype=pl.Enum(["", "AA", "UA", "Zürich", "unused"])),
        pl.concat([pl.Series(TEXTS[:2]), pl.Series(TEXTS[2:])], rechunk=False),
        pa.array(TEXTS),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).dictionary_encode(),
        pa.chunked_array([TEXTS[:2], TEXTS[2:]]),
        pa.chunked_array([pa.array(TEXTS[:2]).dictionary_encode(), pa.array(TEXTS[2:]).dictionary_encode()]),
    ],
    ids=lambda values: f"{type(values).__name__}.{getattr(values, 'dtype', getattr(values, 'type', 'text'))}",
)
def test_every_kind_of_strings_is_coded(values):
    coded = to_column(values, "string", "carrier")
    assert coded.codes.dtype == np.dtype("<u4")
    assert len(coded.dictionary) == len(set(coded.dictionary)) == 4
    assert decoded(coded) == TEXTS


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40), st.data())
def test_a_part_holds_its_rows_and_no_more_strings_than_it_needs(texts, data):
    start = data.draw(st.integers(0, len(texts)))
    stop = data.draw(st.integers(start, len(texts)))
    part = to_coded(texts, "key").part(start, stop)
    assert decoded(part) == texts[start:stop]
    assert set(part.dictionary) == set(texts[start:stop])


def test_a_categorical_with_unused_categories_travels_whole():
    coded = to_coded(pd.Categorical(["b"], categories=["a", "b", "c"]), "key")
    assert coded == Coded(["a", "b", "c"], coded.codes)
    assert decoded(coded.part(0, 1)) == ["b"]
    assert coded.part(0, 1).dictionary == ["b"]


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        ([1.5], "int64", "is int64;"),
        (np.array([1.0]), "int64", "is int64;"),
        ([2**63], "int64", "out of range"),
        ([True], "int64", "is int64;"),
        ([True], "float64", "is float64;"),
        ([1, 0], "bool", "is bool;"),
        (["1"], "float64", "is float64;"),
        (np.array(["2013"], dtype="M8[Y]"), "int64", "is int64;"),
        ([[1.0]], "float64", "one-dimensional"),
        ([1.0, None], "float64", "missing"),
        (pd.Series([1.0, None], dtype="Float64"), "float64", "missing"),
        (pd.Series([1, None], dtype="Int64"), "int64", "missing"),
        (pa.array([1.0, None]), "float64", "missing"),
        ([1.0, "x"], "float64", "float64"),
        (np.array([1.0, "x"], dtype=object), "float64", "one type"),
        (np.array([1, True], dtype=object), "int64", "one type; row 1 is a bool"),
        (np.array([1.0, True], dtype=object), "float64", "one type"),
        (np.array([2**70, 1], dtype=object), "int64", "out of range"),
        (["a", None], "string", "missing"),
        (pd.Series(["a", None]), "string", "missing"),
        (pd.Series(["a", None], dtype="category"), "string", "missing"),
        (pa.array(["a", None]), "string", "missing"),
        (pa.array(["a", None]).dictionary_encode(), "string", "missing"),
        (["a", 1], "string", "not all strings"),
        ([1, 2], "string", "not all strings"),
        (pa.array([1, 2]), "string", "not all strings"),
        (pa.array([b"a"]), "string", "not all strings"),
        (pd.Series([1, 2], dtype="category"), "string", "not all strings"),
        (["\ud800"], "string", "not all strings"),
    ],
)
def test_what_does_not_fit_the_field_is_refused(values, kind, says):
    assert field_of(to_column, values, kind, "delay", match=says) == "delay"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.0, 2.0, None, None], "float64"),
        (pd.Series([1, 2, None, 4], dtype="Int64"), "int64"),
        (pd.Series([True, True, None], dtype="boolean"), "bool"),
        (pd.Series([1, 2, None], dtype="int64[pyarrow]"), "int64"),
        (pl.Series([1.0, 2.0, None, None]), "float64"),
        (pa.array([1, 2, None, 4]), "int64"),
        (pa.chunked_array([[1, 2], [None, 4]]), "int64"),
        (np.ma.masked_array([1.0, 2.0, 3.0], [False, False, True]), "float64"),
        (np.ma.masked_array([1, 2, 3], [False, False, True]), "int64"),
        (["a", "b", None], "string"),
        (pd.Series(["a", "b", np.nan, None]), "string"),
        (pd.Series(["a", "b", pd.NA], dtype="string"), "string"),
        (pd.Series(["a", "b", None], dtype="category"), "string"),
        (pd.Series(["a", "b", None], dtype="string[pyarrow]"), "string"),
        (pl.Series(["a", "b", None]), "string"),
        (pl.Series(["a", "b", None], dtype=pl.Categorical), "string"),
        (pa.array(["a", "b", None]), "string"),
        (pa.array(["a", "b", None]).dictionary_encode(), "string"),
    ],
    ids=lambda values: f"{type(values).__module__}.{getattr(values, 'dtype', getattr(values, 'type', 'list'))}",
)
def test_a_missing_value_is_named_by_its_row(values, kind):
    assert field_of(to_column, values, kind, "delay", match="delay has missing values, the first in row 2;") == "delay"


def test_a_value_of_another_type_is_named_by_its_row():
    with pytest.raises(InvalidArgument, match="not all strings; row 1 is a int"):
        to_column(["a", 1], "string", "delay")
    with pytest.raises(InvalidArgument, match="not all numbers of one type; row 1 is a str"):
        to_column(np.array([1, "x"], dtype=object), "int64", "delay")
    with pytest.raises(InvalidArgument, match="not all strings but Int64"):
        to_column(pl.Series([1]), "string", "delay")


class Column:
    """A column of a library that speaks Arrow's C stream."""

    __arrow_c_stream__ = None


def test_only_arrow_needs_arrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    texts, numbers, instants = ["a", "b"], [1, 2], np.array([0, 7], "M8[us]")
    for values in (texts, np.array(texts), pd.Series(texts), pl.Series(texts), pl.Series(texts, dtype=pl.Categorical),
                   pd.Series(texts, dtype="category")):  # fmt: skip
        assert decoded(to_column(values, "string", "x")) == texts
    for values in (numbers, np.array(numbers, dtype=object), pd.Series(numbers), pl.Series(numbers)):
        assert to_column(values, "int64", "x").tolist() == numbers
    for values in (instants, pd.Series(instants), pl.Series(instants)):
        assert to_ticks(values, "us").tolist() == [0, 7]
    with pytest.raises(ModuleNotFoundError, match=r"^the column 'x', a Column, needs pyarrow: pip install pyarrow$"):
        to_column(Column(), "int64", "x")


@pytest.mark.parametrize("kind", ["float64", "int64", "bool", "string"])
def test_no_values_are_an_empty_column(kind):
    assert len(to_column([], kind, "delay")) == 0


def test_nulls_in_a_dictionary_of_numbers_are_missing():
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([1.5, None]))
    with pytest.raises(InvalidArgument, match="first in row 1"):
        to_column(values, "float64", "v")


# ---------------------------------------------------------------- nulls

CODED = pa.array(["a", None, "b", "a"]).dictionary_encode()
OBJECTS = np.array(["a", None, "b"], object)


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        (CODED, "string", ["a", None, "b", "a"]),
        (pa.chunked_array([CODED, CODED[:2]]), "string", ["a", None, "b", "a", "a", None]),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["x", None])), "string", ["x", None, None]),
        (pa.array(["a", None], pa.string_view()), "string", ["a", None]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([None, 1.0])), "float64", [None, None, 1.0]),
        (pa.nulls(2), "int64", [None, None]),
        (pl.Series(["a", None], dtype=pl.Categorical), "string", ["a", None]),
        (pl.Series([1.0, float("inf"), None]), "float64", [1.0, float("inf"), None]),
        (pd.Series(["a", None], dtype="category"), "string", ["a", None]),
        (pd.Series([1, None, 2], index=[9, 9, 1], dtype="Int64"), "int64", [1, None, 2]),
        (pd.Series([True, pd.NA, pd.NaT, None], dtype=object), "bool", [True, None, None, None]),
        (pd.Series(["a", float("nan")], dtype=object), "string", ["a", None]),
        (OBJECTS, "string", ["a", None, "b"]),
        (np.ma.masked_array(OBJECTS, [False, False, True]), "string", ["a", None, None]),
        (np.ma.masked_array([1, 2], [False, True]), "int64", [1, None]),
        ([1.0, np.ma.masked, None], "float64", [1.0, None, None]),
        ([np.ma.masked, 1.0], "float64", [None, 1.0]),
        ((2, np.ma.masked), "int64", [2, None]),
        (pd.array([1.5, None], dtype="Float64"), "float64", [1.5, None]),
        (pa.array([None, None]), "string", [None, None]),
        (pa.array([None]), "bool", [None]),
        ([2**62 + 1, None], "int64", [2**62 + 1, None]),
        ([None, 1], "float64", [None, 1.0]),
        ([], "string", []),
    ],
)
def test_nulls_of_every_kind(values, kind, found):
    column, there = to_nullable(values, kind, "f")
    assert with_nulls(column, there) == found


def test_nan_of_pandas_is_a_value_among_numbers():
    column, there = to_nullable(pd.Series([1.0, np.nan]), "float64", "f")
    assert there is None
    assert np.isnan(column).tolist() == [False, True]


def test_a_placeholder_stands_in_the_place_of_a_null():
    column, there = to_nullable([None, 5], "int64", "f")
    assert there is not None
    assert column.tolist() == [0, 5]


@pytest.mark.parametrize("mask", [[[False, False]], [[False, True]]])
def test_a_masked_array_of_two_dimensions_is_refused(mask):
    assert field_of(to_nullable, np.ma.masked_array([[1, 2]], mask), "int64", "f") == "f"


@pytest.mark.parametrize(
    "values",
    [5, None, {1}, {"a": 1}, iter([1, None]), np.array([[1, None]], object), [Decimal(1), None]],
    ids=lambda values: type(values).__name__,
)
def test_what_is_no_column_is_refused(values):
    assert field_of(to_nullable, values, "int64", "f") == "f"
