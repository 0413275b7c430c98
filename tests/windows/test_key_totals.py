"""Totals of keys that are kept between questions: the answers are those of a window that keeps none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.monoids import Sum
from sash_engine.monoids.pane import Pane
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.keys.pages import Pages
from sash_engine.windows.questions import ALL_KEYS, Grouped, Query, RangeQuery, Top
from sash_engine.windows.reading import group_folds
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.twins import a_share_of_examples
from tests.windows.test_rollups import ask

SPEC = {
    "name": "w",
    "time_unit": "s",
    "keys": ["a", "b"],
    "fields": {"id": "int64", "v": "float64"},
    "aggregates": {
        "n": {"function": "count"},
        "sum": {"function": "sum", "field": "v"},
        "mean": {"function": "mean", "field": "v"},
        "max": {"function": "max", "field": "v"},
    },
}
KINDS = {
    "plain": {"identity": "id"},
    "age": {"slide": {"max_age": 12}},
    "count": {"slide": {"max_count": 3}},
    "gap": {"slide": {"max_gap": 5}},
    "wall": {"slide": {"max_age": 12, "clock": "wall"}},
    "idle": {"idle_expiry": "5s"},
    "last": {"order": {"equal_times": "keep"}},
    "panes": {"granularity": 4, "slide": {"max_age": 12}},
    "sketches": {"aggregates": {**SPEC["aggregates"], "users": {"function": "distinct_count", "field": "id"}}},
}
QUESTIONS = (
    Query(selection=Grouped(by=["a"])),
    Query(selection=Grouped(by=[])),
    Query(lookbacks=[6, 20], selection=Grouped(by=["b"])),
    Query(as_of=20, selection=Grouped(by=["b"])),
    Query(keys=ALL_KEYS, selection=Grouped(top=Top("mean", 3))),
    Query(keys=ALL_KEYS, combine=True),
    RangeQuery(5, 25, selection=Grouped(by=["a", "b"])),
)

keys_of = st.sampled_from([f"{a}|{b}" for a in "xyz" for b in "pq"])
times_of = st.integers(0, 30)
rows_of = st.lists(st.tuples(keys_of, times_of, st.integers(0, 3), st.integers(-9, 9)), min_size=1, max_size=9)
writes_of = st.lists(
    st.one_of(
        st.tuples(st.just("bulk"), rows_of),
        st.tuples(st.just("insert"), keys_of, times_of, st.integers(0, 3), st.integers(-9, 9)),
        st.tuples(st.just("evict"), times_of, st.one_of(st.none(), keys_of)),
        st.tuples(st.just("range"), times_of, st.one_of(st.none(), keys_of)),
        st.tuples(st.just("retract"), rows_of),
        st.tuples(st.just("update"), rows_of),
        st.tuples(st.just("clock"), st.integers(1, 6)),
        st.tuples(st.just("aggregates")),
    ),
    max_size=10,
)


def write(window, clock, kind, *arguments):
    match kind, arguments:
        case (("bulk" | "retract" | "update"), (rows,)):
            keys, times, ids, values = zip(*rows, strict=True)
            columns = {"id": np.array(ids), "v": np.array(values, np.float64)}
            if kind == "bulk":
                return window.bulk_insert(Batch.of(window.spec, times, columns, keys))
            if window.spec.identity is None:
                return None
            batch = Batch.of(window.spec, times, columns, keys)
            if kind == "update":
                return window.update(batch)
            del batch.columns["v"]
            return window.retract(batch)
        case "insert", (key, time, identity, value):
            return window.insert(time, {"id": identity, "v": float(value)}, key)
        case "evict", (time, key):
            return window.bulk_evict(time, key)
        case "range", (start, key):
            return window.evict_range(start, start + 4, key)
        case "clock", (seconds,):
            clock.advance(seconds * 10**9)
            return window.tidy()
        case "aggregates", ():
            return (
                None if window.spec.granularity else window.add_aggregates({"low": {"function": "min", "field": "v"}})
            )


@a_share_of_examples(3)
@given(kind=st.sampled_from(list(KINDS)), writes=writes_of, pages=st.sampled_from([(2, 4), (4, 64)]))
def test_answers_are_those_of_a_window_that_keeps_none(kind, writes, pages):
    clocks = ManualClock(0), ManualClock(0)
    kept, plain = (
        Window(WindowSpec.parse({**SPEC, **KINDS[kind]}), pages=pages, block=4, clock=clock) for clock in clocks
    )
    for each in writes:
        assert str(write(kept, clocks[0], *each)) == str(write(plain, clocks[1], *each))
        for question in QUESTIONS:
            found = []
            for window, many in ((kept, 1), (plain, 10**9)):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(group_folds, "_MANY", many)
                    found.append(ask(window, question))
            assert found[0] == found[1], question
    assert plain.keys._pages.kept is None


def test_only_keys_that_have_changed_are_read_again(monkeypatch):
    monkeypatch.setattr(group_folds, "_MANY", 1)
    window = Window(WindowSpec.parse(SPEC))
    keys = [f"{i % 7}|{i}" for i in range(1000)] * 3
    columns = {"id": np.zeros(3000, np.int64), "v": np.ones(3000)}
    window.bulk_insert(Batch.of(window.spec, range(3000), columns, keys))
    read, rows_each = [], Pages.rows_each
    monkeypatch.setattr(
        Pages, "rows_each", lambda pages, keys, *more: read.append(len(keys)) or rows_each(pages, keys, *more)
    )
    for changed, expected in ((0, 1000), (0, 0), (5, 5)):
        for i in range(changed):
            window.insert(4000 + i, {"id": 0, "v": 1.0}, f"{i}|{i}")
        assert (
            sum(answer.entries for answer in window.reader.query(Query(selection=Grouped(by=["a"])))) == 3000 + changed
        )
        assert sum(read) == expected
        read.clear()


@pytest.mark.parametrize("several", [False, True])
def test_a_pane_that_others_are_combined_with_is_read_again(monkeypatch, several):
    monkeypatch.setattr(group_folds, "_MANY", 1)
    few = {name: SPEC["aggregates"][name] for name in ("n", "sum")}
    window = Window(WindowSpec.parse({**SPEC, "granularity": 4, "aggregates": few}))
    keys = [f"x|{i}" for i in range(5)]

    def entries():
        return sum(answer.entries for answer in window.reader.query(Query(selection=Grouped(by=["a"]))))

    columns = {"id": np.zeros(5, np.int64), "v": np.ones(5)}
    window.bulk_insert(Batch.of(window.spec, [9] * 5, columns, keys))
    assert (entries(), entries()) == (5, 5)
    assert window.keys._pages.kept.slots
    if several:
        window.bulk_insert(Batch.of(window.spec, [10] * 5, columns, keys))
    else:
        window.insert(10, {"id": 0, "v": 1.0}, "x|3")
    assert entries() == (10 if several else 6)
    assert window.bulk_evict(12, None) == (10 if several else 6)
    window.check_invariants()


def test_totals_take_a_bounded_number_of_bytes(monkeypatch):
    """26 bytes of a key for each of its parts: a mean or a sum beside the times, and not five aggregates."""
    monkeypatch.setattr(group_folds, "_MANY", 1)
    window = Window(
        WindowSpec.parse({**SPEC, "aggregates": {**SPEC["aggregates"], "low": {"function": "min", "field": "v"}}})
    )
    window.insert(1, {"id": 0, "v": 1.0}, "x|p")
    window.reader.query(Query(selection=Grouped(by=["a"])))
    assert window.keys._pages.kept.slots == []
    window.reader.query(Query(keys=ALL_KEYS, selection=Grouped(top=Top("mean", 3))))
    assert len(window.keys._pages.kept.slots) == 1


def test_an_aggregate_of_somebody_else_is_combined_as_it_says():
    """A plug-in that takes a sum over, and combines otherwise, does not get the sum's short cut."""

    class Farthest(Sum):
        def combine(self, older, newer):
            return older if abs(older) > abs(newer) else newer

        def combine_columns(self, older, newer):
            return (np.where(np.abs(older[0]) > np.abs(newer[0]), older[0], newer[0]),)

    for monoid, expected in ((Farthest("float64"), [-5.0, 7.0]), (Sum("float64"), [-2.0, 7.0])):
        (found,) = Pane(monoid).reduce_segments([np.array([3.0, -5.0, 7.0])], np.array([0, 2]))
        assert found.tolist() == expected


def test_totals_of_one_more_aggregate_are_of_the_rows_that_are_there(monkeypatch):
    """The first question keeps means; the second one reads all keys again, for the sums."""
    monkeypatch.setattr(group_folds, "_MANY", 1)
    window = Window(WindowSpec.parse(SPEC))
    window.bulk_insert(Batch.of(window.spec, [1, 2], {"id": [0, 0], "v": [3.0, 4.0]}, ["x|p", "y|q"]))
    for by in ("mean", "max", "sum"):
        found = window.reader.query(Query(keys=ALL_KEYS, selection=Grouped(top=Top(by, 1))))
        assert [(answer.key, answer.aggregates[by]) for answer in found] == [("y|q", 4.0)]
