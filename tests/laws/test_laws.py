"""Every aggregate obeys the laws, over ordinary values and over NaN, infinities and negative zero."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import (
    BUILT_IN,
    M4,
    ArgMax,
    ArgMin,
    Collect,
    CollectDistinct,
    First,
    IgnoresNulls,
    Last,
    Mean,
    laws,
)
from sash_engine.monoids.base import Monoid
from tests.support.aggregates import column, every_case, label, samples
from tests.support.profile import THOROUGH

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
    for step in (3, 7, 32):
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


# ---------------------------------------------------------------- equal times: in order of arrival


TIMES = np.array([10, 10, 10, 20, 20])
NAMES = column("string", ["a", "b", "c", "d", "e"])


def in_every_grouping(monoid, columns):
    """The fold of two and of three parts, wherever they are cut, by scalars and by columns."""
    n = len(columns[0])
    for cuts in itertools.chain(itertools.combinations(range(1, n), 1), itertools.combinations(range(1, n), 2)):
        partials = monoid.reduce_segments(columns, np.array([0, *cuts]))
        left = monoid.identity
        for partial in monoid.unpack(partials):
            left = monoid.combine(left, partial)
        yield monoid.lower(left)
        yield monoid.lower(monoid.fold(partials))
        if len(cuts) == 1:
            first, second = (tuple(c[i : i + 1] for c in partials) for i in (0, 1))
            (joined,) = monoid.unpack(monoid.combine_columns(first, second))
            yield monoid.lower(joined)


def extremes(kind, *values):
    return [column(kind, values), NAMES]


M4_OF_EQUAL = {
    "first": {"time": 10, "value": 5},
    "last": {"time": 30, "value": 1},
    "min": {"time": 20, "value": 1},
    "max": {"time": 10, "value": 9},
}


@pytest.mark.parametrize(
    ("monoid", "columns", "expected"),
    [
        (ArgMax("float64", "string"), extremes("float64", 1.0, 7.0, 7.0, 7.0, 2.0), "b"),
        (ArgMin("float64", "string"), extremes("float64", 5.0, 1.0, 1.0, 2.0, 1.0), "b"),
        (ArgMax("float64", "string"), extremes("float64", 9.0, 1.0, float("nan"), float("nan"), 9.0), "c"),
        (ArgMin("float64", "string"), extremes("float64", 0.0, 1.0, 2.0, float("nan"), float("nan")), "d"),
        (ArgMax("string", "string"), extremes("string", "x", "zz", "z", "zz", "a"), "b"),
        (ArgMin("int64", "string"), extremes("int64", 3, 2, 2, 2, 3), "b"),
        (First("string"), [NAMES], "a"),
        (Last("string"), [NAMES], "e"),
        (Collect("string"), [NAMES], ["a", "b", "c", "d", "e"]),
        (CollectDistinct("string"), [NAMES], ["a", "b", "c", "d", "e"]),
        (CollectDistinct("int64"), [np.array([2, 1, 2, 3, 1])], [2, 1, 3]),
        (M4("int64"), [np.array([5, 9, 1, 9, 1]), np.array([10, 10, 20, 20, 30])], M4_OF_EQUAL),
    ],
)
def test_the_order_of_entries_is_that_of_time_and_then_of_arrival(monoid, columns, expected):
    assert monoid.lower(monoid.reduce(columns)) == expected
    assert all(found == expected for found in in_every_grouping(monoid, columns))


def test_where_an_extreme_is_without_saying_what_to_return():
    where = ArgMax()
    assert where.types == ("float64", "int64")
    assert where.lower(where.reduce([np.array([1.0, 4.0, 4.0, 3.0, 2.0]), TIMES])) == 10


# ---------------------------------------------------------------- rows with nulls: the aggregate over the others


FEWER = settings(max_examples=max(settings().max_examples // 6, 10))
ONE_EACH = CASES if THOROUGH else list({type(each): each for each in CASES}.values())
"""What wraps them knows nothing of their parameters: one of each aggregate is enough."""


def with_marks(draw, inner, values):
    marks = st.lists(st.booleans(), min_size=len(values[0]), max_size=len(values[0]))
    return [np.array(draw(marks), np.bool_) for _ in range(len(inner.types))]


@pytest.mark.parametrize("inner", ONE_EACH, ids=label)
@FEWER
@given(data=st.data())
def test_laws_with_nulls(inner, data):
    values = list(data.draw(samples(inner)))
    wrapped, tolerance = IgnoresNulls(inner, len(values)), TOLERANCES.get(inner.function)
    marks = with_marks(data.draw, inner, values)
    laws.check(wrapped, [*values, *marks], tolerance=tolerance)
    there = np.logical_and.reduce(marks)
    kept = inner.lower(inner.reduce([column[there] for column in values]))
    nothing = None if inner.function in ("sum", "decayed_sum") else inner.lower(inner.identity)
    found = wrapped.lower(wrapped.reduce([*values, *marks]))
    assert laws.close(kept if there.any() else nothing, found, tolerance or 1e-9)


@pytest.mark.parametrize("inner", ONE_EACH, ids=label)
@FEWER
@given(data=st.data())
def test_partials_that_are_true_are_plausible_and_others_are_not(inner, data):
    values = list(data.draw(samples(inner)))
    n = len(values[0])
    if not n:
        return
    wrapped, marks = IgnoresNulls(inner, len(values)), with_marks(data.draw, inner, values)
    total = wrapped.reduce([*values, *marks])
    packed = wrapped.pack([total])
    assert not wrapped.implausible(packed, np.array([n])).any()
    assert wrapped.implausible(wrapped.pack([total]), np.array([max(total[0] - 1, 0)])).all() == (total[0] > 0)


def test_bytes_that_are_no_partial_are_refused():
    for wrapped in (IgnoresNulls(Mean(), 1), IgnoresNulls(Collect(), 1)):
        for data in (b"", b"\1", (0).to_bytes(8, "little") + b"[]", (-1).to_bytes(8, "little", signed=True) + b"[1]"):
            with pytest.raises(InvalidArgument):
                wrapped.decode(data)


@pytest.mark.parametrize("inner", ONE_EACH, ids=label)
def test_what_the_engine_asks_of_an_aggregate_is_what_the_inner_one_says(inner):
    wrapped = IgnoresNulls(inner, 1)
    for name in ("commutative", "exact", "answer", "schema", "large", "external", "values_per_entry"):
        assert getattr(wrapped, name) == getattr(inner, name), name
    assert wrapped.sparse_suffixes == inner.sparse_suffixes


def test_partials_that_cannot_be_are_implausible():
    """Fewer than no values, more values than entries, and a partial that the inner aggregate refuses."""
    for wrapped in (IgnoresNulls(Mean(), 1), IgnoresNulls(Collect(), 1)):
        value = (3.5,) if wrapped.fixed else ((1.0, 2.0),)
        found = [(-1, *(value if not wrapped.fixed else (-1, *value))), wrapped.identity]
        found += [(rows, *((inside, *value) if wrapped.fixed else value)) for rows, inside in ((2, 2), (4, 4))]
        assert wrapped.implausible(wrapped.pack(found), np.full(4, 3)).tolist() == [True, False, False, True]
    wrong = IgnoresNulls(Mean(), 1).pack([(2, 3, 3.5), (2, 2, 3.5)])
    assert IgnoresNulls(Mean(), 1).implausible(wrong, np.array([3, 3])).tolist() == [True, False]


def test_what_was_stored_is_restored_without_the_checks_of_what_is_sent(monkeypatch):
    inner = Collect()
    wrapped, partial = IgnoresNulls(inner, 1), (2, (1.0, 2.0))
    monkeypatch.setattr(inner, "restore", lambda data: ("restored", data))
    assert wrapped.restore(wrapped.encode(partial)) == (2, ("restored", inner.encode(partial[1])))
