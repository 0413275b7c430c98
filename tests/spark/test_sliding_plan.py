"""What `sliding_aggregate` is asked for: which windows there are, what does not fit, what workers import."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sash_spark
from sash_client import InvalidArgument
from sash_spark.sliding.plan import Plan
from tests.spark.test_sliding_state import AGGREGATES, SCHEMA, plan_of


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(-60, 60),
)
def test_the_next_window_is_the_first_with_an_entry(times, step, width, after):
    width = max(width, step)
    plan = plan_of([f"{width}us"], emit=f"{step}us")
    times = np.array(times)
    ends = {
        start + width
        for time in times.tolist()
        for start in range((time - width) // step * step, time + 1, step)
        if start <= time < start + width
    }
    assert plan.due(times, times, after) == min((end for end in ends if end > after), default=None)
    assert int(plan.closes(times).max()) == max(ends)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"key": "nope"}, "nope"),
        ({"time": "nope"}, "nope"),
        ({"time": "x"}, "x"),
        ({"windows": []}, "windows"),
        ({"windows": "10m"}, "windows"),
        ({"windows": ["10m", "10m"]}, "windows"),
        ({"windows": ["soon"]}, "windows"),
        ({"windows": ["600"]}, "windows"),
        ({"emit": "often"}, "emit"),
        ({"emit": "11m"}, "emit"),
        ({"aggregates": {}}, "aggregates"),
        ({"aggregates": {"a": {"function": "sum", "field": "nope"}}}, "nope"),
        ({"aggregates": {"a": {"function": "sum", "field": "s"}}}, "aggregates.a.field"),
        ({"aggregates": {"a": {"function": "sum", "field": "at"}}}, "at"),
        ({"aggregates": {"a": {"function": "nope"}}}, "aggregates.a.function"),
        ({"aggregates": {"a": {"function": "quantile", "field": "x", "q": 2}}}, "aggregates.a.q"),
        ({"aggregates": {"start": {"function": "count"}}}, "start"),
        ({"aggregates": {"k": {"function": "count"}}}, "k"),
        ({"aggregates": {"a": "sum"}}, "aggregates.a"),
    ],
)
def test_what_does_not_fit_is_named(changed, field):
    options = {"key": "k", "time": "at", "windows": ["10m"], "aggregates": AGGREGATES, "emit": "1s"} | changed
    with pytest.raises(InvalidArgument) as caught:
        Plan.of(SCHEMA, **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("sash_spark", {"pyspark", "pyarrow", "grpc"}),
        ("sash_spark.sliding.aggregate", {"grpc", "pandas", "pydantic", "sash_client"}),
        ("sash_spark.sliding.operator", {"numpy", "pyarrow", "sash", "sash_client"}),
        ("sash_spark.source", {"pandas", "sash_spark.reading.reader", "sash_spark.writing.preaggregate"}),
    ],
)
def test_python_workers_import_what_they_use(module, without):
    """Every worker that Spark starts pays for it."""
    code = f"import sys, {module}; print(sorted({without!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"


def test_the_names_of_the_package_are_found_when_asked_for():
    assert all(getattr(sash_spark, name).__name__ == name for name in sash_spark.__all__)
    assert not hasattr(sash_spark, "nope")
