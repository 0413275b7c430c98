"""Every aggregate obeys the laws, over ordinary values and over NaN, infinities and negative zero."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sash_engine.monoids import BUILT_IN, laws
from sash_engine.monoids.base import Monoid
from tests.support.aggregates import column, every_case, label, samples

FEW = settings(max_examples=max(settings().max_examples // 4, 5))
CASES = every_case()
READ_FLOATS = [monoid for monoid in CASES if "float64" in monoid.types]
TOLERANCES = {"skewness": 1e-7, "kurtosis": 1e-6, "linear_slope": 1e-7, "relative_variation": 1e-7}

each = pytest.mark.parametrize("monoid", CASES, ids=label)


@each
@FEW
@given(data=st.data())
def test_laws(monoid, data):
    laws.check(monoid, data.draw(samples(monoid)), tolerance=TOLERANCES.get(monoid.function))


@pytest.mark.parametrize("monoid", READ_FLOATS, ids=label)
@FEW
@given(data=st.data())
def test_laws_with_nan_and_infinities(monoid, data):
    values = data.draw(samples(monoid, special=True))
    laws.check(monoid, values, tolerance=TOLERANCES.get(monoid.function))


def rows_of(monoid, n, most):
    """Rows of few different values, up to `most`; times are sorted."""
    random, columns = np.random.default_rng(7), []
    for read, kind in zip(monoid.reads, monoid.types, strict=True):
        numbers = random.integers(1, most, n)
        made = {
            "time": lambda numbers=numbers: np.sort(numbers * 7),
            "float64": lambda numbers=numbers: numbers / 4,
            "int64": lambda numbers=numbers: numbers,
            "string": lambda numbers=numbers: column("string", [f"item {i}" for i in numbers]),
            "bool": lambda numbers=numbers: numbers % 2 == 0,
        }
        columns.append(made["time" if read.option == "time" else kind]())
    return columns


LONG = ("segments", "reduction", "suffixes", "lifting", "lowering")


@each
def test_column_forms_of_many_rows(monoid):
    """Longer than what is folded one by one, and than the stride of sketches' suffixes; equal and ragged segments."""
    n = 96
    columns = rows_of(monoid, n, 9)
    tolerance = None if monoid.exact else 1e-7
    laws.check(monoid, columns, laws=LONG, tolerance=tolerance)
    for step in (1, 3, 32, 5, 7):
        starts = np.arange(0, n, step)
        found = monoid.unpack(monoid.reduce_segments(columns, starts))
        for start, partial in zip(starts.tolist(), found, strict=True):
            alone = monoid.reduce([c[start : start + step] for c in columns])
            assert laws.close(monoid.lower(alone), monoid.lower(partial), tolerance or 0.0)


@each
def test_more_rows_than_a_dot_product_takes(monoid):
    columns = rows_of(monoid, 5000, 2)  # equal values: sketches of others answer by chance
    halves = [monoid.reduce([c[:2500] for c in columns]), monoid.reduce([c[2500:] for c in columns])]
    answer = monoid.lower(monoid.combine(*halves))
    assert laws.close(answer, monoid.lower(monoid.reduce(columns)), 0.0 if monoid.exact else 1e-9)
    (whole,) = monoid.unpack(monoid.reduce_segments(columns, np.zeros(1, np.int64)))
    assert laws.close(answer, monoid.lower(whole), 0.0 if monoid.exact else 1e-9)


def laws_dtype(kind):
    return {"float64": np.float64, "int64": np.int64, "bool": np.bool_}[kind]


@pytest.mark.parametrize("monoid", [m for m in CASES if not m.dtypes[0].hasobject], ids=label)
def test_segments_of_a_large_bulk(monoid):
    """Longer than what is reduced in one go: chunks must meet without a seam."""
    n = 100_000
    columns, ragged = rows_of(monoid, n, 3), np.unique(np.append(np.random.default_rng(5).integers(0, n, 40), 0))
    for starts in (np.arange(0, n, 1000), ragged, np.array([0, 99_990])):
        found = monoid.reduce_segments(columns, starts)
        assert tuple(part.dtype for part in found) == tuple(monoid.dtypes)
        ends = np.append(starts[1:], n)
        for i, partial in enumerate(monoid.unpack(found)):
            alone = monoid.reduce([c[starts[i] : ends[i]] for c in columns])
            assert laws.close(alone, partial, 0.0 if monoid.exact else 1e-6)


@pytest.mark.parametrize("monoid", READ_FLOATS, ids=label)
def test_extreme_floats_raise_no_warning(monoid):
    """Warnings are errors here; overflow to inf is an answer."""
    for items in ([1.7e308] * 8, [1.7e308, -1.7e308] * 4, [5e-324] * 8, [float("inf"), float("-inf"), 1.0] * 4):
        columns = [
            column(kind, items if kind == "float64" else [str(i) for i in range(len(items))])
            if kind in ("float64", "string")
            else np.arange(len(items)).astype(laws_dtype(kind))
            for kind in monoid.types
        ]
        partial = monoid.reduce(columns)
        monoid.lower(monoid.combine(partial, monoid.combine(monoid.lift(laws.rows(columns)[0]), partial)))
        monoid.scan_suffix(columns)
        partials = monoid.reduce_segments(columns, np.array([0, 1, 4]))
        monoid.lower_columns(monoid.combine_columns(partials, partials))
        monoid.fold(monoid.lift_columns(columns * 1))


@pytest.mark.parametrize("cls", BUILT_IN, ids=lambda cls: cls.function)
def test_documented(cls: type[Monoid]):
    text = cls.__doc__ or ""
    assert ">>> " in text, "a worked example"
    assert "Flags:" in text, "its flags"
    flags = text.split("Flags:")[1].split("\n\n")[0]
    instances = [monoid for monoid in CASES if type(monoid) is cls]
    for flag in ("commutative", "invertible", "exact"):
        assert (flag in flags) == any(getattr(monoid, flag) for monoid in instances), flag


@pytest.mark.parametrize("monoid", [each for each in every_case() if not each.large], ids=label)
def test_the_fold_of_a_segment_does_not_depend_on_the_others(monoid):
    """To the last bit: a question about some groups answers of them what a question about all does."""
    random = np.random.default_rng(1)
    for case in range(24):
        sizes = random.integers(1, 30, random.integers(1, 5)) if case % 2 else np.full(4, random.integers(1, 30))
        n, starts = int(sizes.sum()), np.cumsum(sizes) - sizes
        far = 1e9 if case % 3 == 0 else 1.0
        kinds = {
            "float64": np.abs(random.normal(size=n) * 10.0 ** random.integers(-3, 6)) + np.repeat(starts + far, sizes),
            "int64": np.sort(random.integers(0, 10**9, n)),
            "bool": random.integers(0, 2, n).astype(np.bool_),
            "string": np.array([f"{each}" for each in random.integers(0, 9, n)], object),
        }
        values = [kinds[kind] for kind in monoid.types]
        whole = monoid.unpack(monoid.reduce_segments(values, starts))
        for partial, start, size in zip(whole, starts.tolist(), sizes.tolist(), strict=True):
            alone = monoid.reduce_segments([column[start : start + size] for column in values], np.array([0]))
            assert repr(monoid.unpack(alone)[0]) == repr(partial)
