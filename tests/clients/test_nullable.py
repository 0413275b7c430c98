"""Columns with nulls of every kind: which rows have a value, and a clear error for what is no column."""

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sash_client import InvalidArgument
from sash_client.data.columns import to_nullable
from sash_wire.nulls import with_nulls

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
    with pytest.raises(InvalidArgument) as caught:
        to_nullable(np.ma.masked_array([[1, 2]], mask), "int64", "f")
    assert caught.value.field == "f"


@pytest.mark.parametrize(
    "values",
    [5, None, {1}, {"a": 1}, iter([1, None]), np.array([[1, None]], object), [Decimal(1), None]],
    ids=lambda values: type(values).__name__,
)
def test_what_is_no_column_is_refused(values):
    with pytest.raises(InvalidArgument) as caught:
        to_nullable(values, "int64", "f")
    assert caught.value.field == "f"
