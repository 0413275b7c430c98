"""Totals of keys that are kept between questions: the answers are those of a window that keeps none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.monoids import Sum
from sash_engine.monoids.pane import Pane
from sash_engine.windows.keys.pages import Pages
from sash_engine.windows.questions import ALL_KEYS, Grouped, Query, RangeQuery, Top
from sash_engine.windows.reading import group_folds
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.twins import a_share_of_examples
from tests.support.viewed import COMMON, SUMS, bulk, same_write, write
from tests.support.written import writes_until
from tests.windows.test_rollups import ask

NUMBERS = {
    **SUMS,
    "mean": {"function": "mean", "field": "v"},
    "max": {"function": "max", "field": "v"},
}
SPEC = {**COMMON, "name": "w", "fields": {"v": "float64", "w": "string"}, "aggregates": NUMBERS}
KINDS = {
    "plain": {"identity": "w"},
    "age": {"slide": {"max_age": 12}},
    "count": {"slide": {"max_count": 3}},
    "gap": {"slide": {"max_gap": 5}},
    "wall": {"slide": {"max_age": 12, "clock": "wall"}},
    "idle": {"idle_expiry": "5s"},
    "last": {"order": {"equal_times": "keep"}},
    "panes": {"granularity": 4, "slide": {"max_age": 12}},
    "sketches": {"aggregates": {**NUMBERS, "users": {"function": "distinct_count", "field": "w"}}},
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


@a_share_of_examples(3)
@given(kind=st.sampled_from(list(KINDS)), writes=writes_until(30), pages=st.sampled_from([(2, 4), (4, 64)]))
def test_answers_are_those_of_a_window_that_keeps_none(kind, writes, pages):
    clocks = ManualClock(0), ManualClock(0)
    spec = WindowSpec.parse({**SPEC, **KINDS[kind]})
    kept, plain = (Window(spec, pages=pages, block=4, clock=clock) for clock in clocks)
    for each in writes:
        same_write((kept, plain), clocks, *each)
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
    window.bulk_insert(bulk(window.spec, [(key, i, 1) for i, key in enumerate(keys)]))
    read, rows_each = [], Pages.rows_each
    monkeypatch.setattr(
        Pages, "rows_each", lambda pages, keys, *more: read.append(len(keys)) or rows_each(pages, keys, *more)
    )
    for changed, expected in ((0, 1000), (0, 0), (5, 5)):
        for i in range(changed):
            write(window, "insert", f"{i}|{i}", 4000 + i, 1)
        assert (
            sum(answer.entries for answer in window.reader.query(Query(selection=Grouped(by=["a"])))) == 3000 + changed
        )
        assert sum(read) == expected
        read.clear()


@pytest.mark.parametrize("several", [False, True])
def test_a_pane_that_others_are_combined_with_is_read_again(monkeypatch, several):
    monkeypatch.setattr(group_folds, "_MANY", 1)
    window = Window(WindowSpec.parse({**SPEC, "granularity": 4, "aggregates": SUMS}))
    keys = [f"x|{i}" for i in range(5)]

    def entries():
        return sum(answer.entries for answer in window.reader.query(Query(selection=Grouped(by=["a"]))))

    window.bulk_insert(bulk(window.spec, [(key, 9, 1) for key in keys]))
    assert (entries(), entries()) == (5, 5)
    assert window.keys._pages.kept.slots
    if several:
        window.bulk_insert(bulk(window.spec, [(key, 10, 1) for key in keys]))
    else:
        write(window, "insert", "x|3", 10, 1)
    assert entries() == (10 if several else 6)
    assert window.bulk_evict(12, None) == (10 if several else 6)
    window.check_invariants()


def test_totals_take_a_bounded_number_of_bytes(monkeypatch):
    """26 bytes of a key for each of its parts: a mean or a sum beside the times, and not five aggregates."""
    monkeypatch.setattr(group_folds, "_MANY", 1)
    aggregates = {**NUMBERS, "low": {"function": "min", "field": "v"}}
    window = Window(WindowSpec.parse({**SPEC, "aggregates": aggregates}))
    write(window, "insert", "x|p", 1, 1)
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
    window.bulk_insert(bulk(window.spec, [("x|p", 1, 3), ("y|q", 2, 4)]))
    for by in ("mean", "max", "sum"):
        found = window.reader.query(Query(keys=ALL_KEYS, selection=Grouped(top=Top(by, 1))))
        assert [(answer.key, answer.aggregates[by]) for answer in found] == [("y|q", 4.0)]
