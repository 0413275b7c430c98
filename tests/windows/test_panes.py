"""Granularity: what a pane is, and what is refused. Answers against the fold: test_conformance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sash_engine.errors import FailedPrecondition, Unsupported
from sash_engine.forest import Forest, Layout, PaneLayout
from sash_engine.monoids import BUILT_IN, Sum, laws
from sash_engine.monoids.pane import Pane, exported, imported, partials_table
from sash_engine.windows.batches.panes import Panes
from sash_engine.windows.spec.window import WindowSpec
from tests.support.aggregates import every_case, label, samples
from tests.support.pane_windows import BASE, FEW, window
from tests.support.refused import refused
from tests.support.windows import bulk, content, functions

# ---------------------------------------------------------------- what a pane is


def test_a_range_covers_the_panes_that_start_in_it():
    w = window()
    w.bulk_insert(bulk([(5, 0), (15, 1), (19, 2), (25, 3)]))
    assert w.range_query(1, 10, None).aggregates["all"] == [1, 2]
    assert w.range_query(11, 19, None).aggregates["all"] == []
    (answer,) = w.query(None, [20], None)
    assert (answer.start, answer.end, answer.entries) == (1, 20, 3)
    series = w.series(0, 40, 20, None, None)
    assert series.entries.tolist() == [3, 1]
    assert series.entries.dtype == np.int64
    assert series.aggregates["n"].tolist() == [3, 1]
    assert series.aggregates["all"].tolist() == [[0, 1, 2], [3]]
    assert window().series(0, 40, 20, None, None).entries.tolist() == [0, 0]


def test_an_aggregate_that_reads_the_time_reads_the_entrys_own():
    w = window()
    w.bulk_insert(bulk([(11, 1), (17, 8), (19, 2)]))
    assert w.insert(13, {"value": 7}, None, answer=True).answers[0].aggregates["when"] == 17
    w.insert(18, {"value": 9}, None)
    assert w.query(None, [], None)[0].aggregates["when"] == 18


def test_when_is_asked_about_entries_and_evicts_panes():
    w = window(slide={"when": "total.entries - old.entries >= 3"})
    result = w.bulk_insert(bulk([(1, 0), (2, 1), (11, 2), (12, 3), (21, 4)]))
    assert result.evicted == 2
    assert content(w) == [2, 3, 4]
    assert w.insert(22, {"value": 5}, None).evicted == 0
    assert w.insert(23, {"value": 6}, None).evicted == 2
    assert content(w) == [4, 5, 6]


def test_order_goes_by_panes():
    w = window(order={"out_of_order": "reject"})
    w.bulk_insert(bulk([(15, 0), (11, 1), (20, 2)]))
    w.insert(25, {"value": 3}, None)
    w.insert(21, {"value": 4}, None)
    refused(w.insert, 19, {"value": 5}, None, error=FailedPrecondition)
    refused(w.bulk_insert, bulk([(30, 6), (29, 7)]), error=FailedPrecondition)
    assert content(w) == [0, 1, 2, 3, 4]


def test_the_first_time_of_all_has_no_pane():
    w = window(granularity=1000)
    for insert in (
        lambda: w.insert(-(2**63) + 5, {"value": 1}, None),
        lambda: w.bulk_insert(bulk([(-(2**63) + 5, 1)])),
    ):
        assert refused(insert).field == "time"
    w.insert(2**63 - 2, {"value": 1}, None)
    assert w.info().newest == (2**63 - 2) // 1000 * 1000


def test_no_aggregate_can_be_computed_from_panes():
    w = window()
    w.insert(1, {"value": 1}, None)
    assert w.add_aggregates({"sum": {"function": "sum"}}).entries == 1
    assert (
        refused(
            w.add_aggregates,
            {"sum": {"function": "sum"}, "mean": {"function": "mean"}},
            error=Unsupported,
            match="'mean'",
        ).field
        == "aggregates.mean"
    )
    assert set(w.spec.aggregates) == set(BASE["aggregates"])


# ---------------------------------------------------------------- what it costs


class Counting(Sum):
    """Counts what is asked of it."""

    combines = folds = 0

    def combine(self, older, newer):
        Counting.combines += 1
        return super().combine(older, newer)

    def fold(self, partials):
        Counting.folds += len(partials[0])
        return super().fold(partials)


@pytest.mark.parametrize("panes", range(1, 20))
def test_an_entry_of_the_open_pane_and_a_query_cost_a_few_combines(panes):
    forest = Forest(PaneLayout(Layout({"value": "float64"}, {"sum": (Counting(), ["value"])}, block=8)))
    for time in range(panes):
        forest.insert(time, [1, 1.0])
    forest.query()
    Counting.combines = Counting.folds = 0
    for i in range(1, 11):
        forest.insert(panes - 1, [1, 1.0])
        assert forest.query() == [panes + i]
    assert Counting.combines <= 3 * 10
    assert not Counting.folds
    forest.check_invariants()


# ---------------------------------------------------------------- the aggregates of panes


@pytest.mark.parametrize("monoid", every_case(), ids=label)
@settings(max_examples=FEW)
@given(data=st.data())
def test_panes_obey_the_laws(monoid, data):
    values = data.draw(samples(monoid, max_size=6))
    if len(values[0]):
        cuts = data.draw(st.lists(st.integers(0, len(values[0]) - 1), max_size=4))
        starts = np.unique([0, *cuts]).astype(np.int64)
        laws.check(Pane(monoid), monoid.reduce_segments(values, starts))


def test_the_table_of_partials_has_every_aggregate():
    for monoid in every_case():
        assert len(monoid.parts) == len(set(monoid.parts)) == len(monoid.dtypes), "every part has a name"
        assert monoid.fixed == (object not in monoid.dtypes)
    table = {function: (columns, blob) for function, columns, blob in partials_table(BUILT_IN)}
    assert list(table) == [monoid.function for monoid in BUILT_IN]
    assert table["kurtosis"] == ("entries int64, mean float64, m2 float64, m3 float64, m4 float64", "")
    assert table["sum"] == ("sum float64", "int64: the integer in two's complement, little-endian")
    assert all(columns or blob for columns, blob in table.values())


@pytest.mark.parametrize("monoid", every_case(), ids=label)
@settings(max_examples=FEW)
@given(data=st.data())
def test_what_goes_out_comes_in(monoid, data):
    values = data.draw(samples(monoid, special=True))
    n = len(values[0])
    if n:
        partial = monoid.reduce(values)
        (again,) = monoid.unpack(imported(monoid, exported(monoid, [partial]), np.array([n]), "it"))
        assert laws.close(monoid.lower(partial), monoid.lower(again), 0.0)


def test_strings_integers_and_sketches_are_stored_as_bytes_and_strings():
    aggregates = functions(
        mean="mean n",
        sum="sum n",
        min="min s",
        who={"function": "arg_max", "field": "n", "returns": "s"},
        all="collect s",
        users="distinct_count s",
    )
    panes = Panes(WindowSpec.parse(BASE | {"fields": {"n": "int64", "s": "string"}, "aggregates": aggregates}))
    rows = [np.array([0, 10]), np.array([2**62, -3]), np.array(["a", "b"], object), np.array([4, 12])]
    _, columns = panes.folded(rows, np.array([2]), partials=False)
    stored = panes.layout.stored(columns)
    assert all(type(item) in (bytes, str) for column in stored if column.dtype == object for item in column)
    loaded = panes.layout.loaded(stored)
    for row in (0, 1):
        answers = [panes.layout.lower(1, panes.layout.reduce_rows(which, row, row + 1)) for which in (columns, loaded)]
        assert answers[0] == answers[1]
