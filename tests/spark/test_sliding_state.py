"""The state of one key without Spark: whatever is inserted, stored and read again, an answer is the fold."""

import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

import sash_spark
from sash_client import DataLoss, FailedPrecondition, InvalidArgument
from sash_engine.forest import Forest
from sash_engine.forest.layout import Layout
from sash_spark.sliding_plan import EVER, NEVER, Plan
from sash_spark.sliding_state import KeyState

SCHEMA = StructType(
    [
        StructField("at", TimestampType()),
        StructField("k", StringType()),
        StructField("v", LongType()),
        StructField("x", DoubleType()),
        StructField("s", StringType()),
    ]
)
AGGREGATES = {
    "n": {"function": "count"},
    "all": {"function": "collect", "field": "v"},
    "sum": {"function": "sum", "field": "v"},
    "mean": {"function": "mean", "field": "x"},
    "distinct": {"function": "distinct_count", "field": "s"},
    "worst": {"function": "arg_max", "field": "x", "returns": "s"},
}


def plan_of(windows=("10s",), aggregates=AGGREGATES, emit="1s", block=None):
    plan = Plan.of(SCHEMA, "k", "at", list(windows), aggregates, emit)
    if block is not None:
        plan.__dict__["layout"] = Layout(plan.fields, plan.aggregates, block)
    return plan


class Memory:
    """A store that counts what it is asked for."""

    def __init__(self):
        self.values = {}
        self.read, self.written = [], []

    def head(self):
        return self.values.get("head")

    def put_head(self, value):
        self.values["head"] = value

    def clear(self):
        self.values.clear()

    def block(self, number):
        self.read.append(number)
        return self.values.get(("block", number))

    def put_block(self, number, value):
        self.written.append(number)
        self.values["block", number] = value

    def sketches(self, number):
        return self.values.get(("sketches", number))

    def put_sketches(self, number, value):
        self.values["sketches", number] = value

    def remove(self, number):
        self.values.pop(("block", number), None)
        self.values.pop(("sketches", number), None)


def columns_for(plan, times, start=0):
    """Rows with these times; values tell them apart."""
    rows = np.arange(start, start + len(times))
    made = {"v": rows, "x": rows % 7 * 1.5, "s": np.array([f"s{i % 5}" for i in rows], object)}
    columns = [np.array(times, np.int64), *(made[name] for name in plan.fields)]
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]


def plain(column):
    return column.tolist()


@given(
    st.lists(
        st.tuples(st.lists(st.integers(-12, 12), max_size=14), st.booleans(), st.integers(0, 30)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 5),
)
def test_any_history_gives_the_fold(history, block):
    plan = plan_of(block=block)
    store, forest = Memory(), Forest(plan.layout)
    now, rows, evicted = 0, 0, NEVER
    for offsets, reopen, width in history:
        times = [time for time in (now + offset for offset in offsets) if time >= evicted]
        now += 6
        columns = columns_for(plan, times, rows)
        rows += len(times)
        state = KeyState(plan, store)
        state.mark, state.timer = now, -1
        state.insert(columns)
        forest.bulk_insert(columns[0].copy(), [column.copy() for column in columns[1:]])
        starts = np.arange(max(now - 40, evicted), now + 20)
        entries, answers = state.answers(starts, starts + width)
        expected_entries, expected = forest.series(starts, starts + width)
        assert entries.tolist() == expected_entries.tolist()
        for name, ours, theirs in zip(plan.aggregates, answers, expected, strict=True):
            wanted = theirs[expected_entries > 0].tolist()
            assert plain(ours) == (pytest.approx(wanted) if name == "mean" else wanted), name
        if reopen:
            evicted = now - 25
            state.evict_before(evicted)
        state.save()
        if len(state):
            assert KeyState(plan, store).mark == now


def test_a_batch_reads_and_writes_what_it_touches():
    plan = plan_of(block=20)
    store = Memory()
    state = KeyState(plan, store)
    for first in range(0, 1000, 20):
        state.insert(columns_for(plan, range(first, first + 20), first))
    state.save()
    assert sorted(store.written) == list(range(50))
    store.read.clear()
    store.written.clear()
    state = KeyState(plan, store)
    state.insert(columns_for(plan, [500, *range(1000, 1004)], 1000))
    entries, answers = state.answers(np.array([100]), np.array([1003]))  # 100 is where block 5 starts
    state.save()
    assert entries.tolist() == [904]
    assert answers[1][0] == [*range(100, 501), 1000, *range(501, 1000), 1001, 1002, 1003]
    assert store.read == [25]
    assert store.written == [25]
    assert ("sketches", 25) in store.values, "long lists are stored apart"
    state = KeyState(plan, store)
    state.evict_before(1000)
    state.save()
    assert set(store.values) == {"head"}


def test_a_bulk_is_few_values():
    plan = plan_of(block=20)
    store = Memory()
    state = KeyState(plan, store)
    state.insert(columns_for(plan, range(5)))
    state.insert(columns_for(plan, range(5, 1000), 5))
    state.insert(columns_for(plan, range(1000, 1013), 1000))
    state.save()
    assert sorted(store.written) == list(range(7)), "1000 rows in blocks of 160; 13 wait in the head"
    state = KeyState(plan, store)
    entries, answers = state.answers(np.array([150, 0]), np.array([170, 2000]))
    assert entries.tolist() == [20, 1013]
    assert answers[1][0] == list(range(150, 170))
    assert answers[1][1] == list(range(1013))
    assert store.read == [0, 1]


def test_a_block_that_is_gone_is_no_answer():
    plan = plan_of(block=4)
    store = Memory()
    state = KeyState(plan, store)
    state.insert(columns_for(plan, range(100)))
    state.save()
    del store.values["block", 2]
    with pytest.raises(DataLoss, match="block 2"):
        KeyState(plan, store).answers(np.array([60]), np.array([70]))


def test_state_of_another_version_or_of_other_aggregates_is_refused():
    plan = plan_of()
    store = Memory()
    state = KeyState(plan, store)
    state.insert(columns_for(plan, range(3)))
    state.save()
    for other in (plan_of(["20s"]), plan_of(emit="2s"), plan_of(aggregates={"n": {"function": "count"}})):
        with pytest.raises(FailedPrecondition, match="other fields, aggregates, windows or steps"):
            KeyState(other, store)
    head = bytearray(store.values["head"])
    struct.pack_into("<H", head, 4, 99)
    store.values["head"] = bytes(head)
    with pytest.raises(FailedPrecondition, match="version 99, this program reads version 1"):
        KeyState(plan, store)


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(-60, 60),
    st.integers(0, 80),
)
def test_the_windows_are_those_with_entries(times, step, width, after, more):
    plan = plan_of([f"{max(width, step)}us"], emit=f"{step}us")
    width = max(width, step)
    times = np.array(sorted(times))
    upto = after + more
    expected = {
        start
        for time in times.tolist()
        for start in range((time - width) // step * step, time + 1, step)
        if start <= time < start + width and after < start + width <= upto
    }
    found = np.concatenate([np.empty(0, np.int64), *plan.starts(times, times, width, after, upto)]).tolist()
    assert found == sorted(expected)
    everything = np.concatenate([*plan.starts(times, times, width, NEVER, EVER)])
    ends = [start + width for start in everything.tolist() if start + width > after]
    assert plan.due(times, times, after) == min(ends, default=None)
    last = max(start for start in everything.tolist() if start <= times[-1])
    assert plan.closes(times[-1:]).tolist() == [last + width]


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
        ("sash_spark.sliding", {"grpc", "pandas", "pydantic", "sash_client"}),
        ("sash_spark.sliding_operator", {"numpy", "pyarrow", "sash", "sash_client"}),
        ("sash_spark.source", {"pandas", "sash_spark.reading", "sash_spark.preaggregate"}),
    ],
)
def test_python_workers_import_what_they_use(module, without):
    """Every worker that Spark starts pays for it."""
    code = f"import sys, {module}; print(sorted({without!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_names_of_the_package_are_found_when_asked_for():
    assert all(getattr(sash_spark, name).__name__ == name for name in sash_spark.__all__)
    assert not hasattr(sash_spark, "nope")
