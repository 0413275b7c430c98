"""Views: each answers as a window of its own would that was sent the same entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import Unsupported
from sash_engine.monoids import Monoid
from sash_engine.windows.questions import ALL_KEYS, Grouped, Query, RangeQuery, SeriesQuery
from sash_engine.windows.reading import group_series
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from tests.support.shelf import Shelf
from tests.support.twins import a_share_of_examples, alike
from tests.support.viewed import SOURCES, VIEWS, Viewed, ask, bulk, follow, many_writes, source_spec, view_spec
from tests.support.written import writes_until

writes_of = writes_until(
    60,
    st.tuples(st.just("add")),
    st.tuples(st.just("wider"), st.sampled_from(list(VIEWS))),
    st.tuples(st.just("drop"), st.sampled_from(list(VIEWS))),
)


kinds_of, late_of = st.sampled_from(list(SOURCES)), st.lists(st.sampled_from(list(VIEWS)), unique=True)


@a_share_of_examples(4)
@given(kind=kinds_of, writes=writes_of, late=late_of)
def test_each_view_answers_as_a_window_of_its_own(kind, writes, late):
    follow(Viewed(kind, late), writes)


@a_share_of_examples(6)
@given(kind=kinds_of, writes=writes_of, late=late_of)
def test_a_stored_window_has_the_same_views_after_restarts(kind, writes, late):
    shelf = Shelf()
    follow(Viewed(kind, late, shelf.cold), writes, shelf)


@pytest.mark.parametrize("name", list(VIEWS))
def test_a_view_that_has_more_aggregates_after_others_were_added_is_restored(name):
    """An image has partials by slot, so the slots of a window that is read back are in the same order."""
    shelf = Shelf()
    viewed = Viewed("by age", cold=shelf.cold)
    viewed.step("bulk", [("x|y", 14 + i // 8, i % 19 - 9) for i in range(100)])
    viewed.step("wider", name)
    slots = viewed.window.layout.keys
    shelf.store(viewed.window)
    viewed.window, shelf = shelf.reopened(shelf.parts(viewed.window), clock=viewed.clock)
    assert viewed.window.layout.keys == slots
    viewed.same()
    viewed.window.check_invariants(alike)


@pytest.mark.parametrize("kind", ["by age", "panes", "on wall time"])
def test_series_over_several_large_keys(kind, monkeypatch):
    monkeypatch.setattr(group_series, "_ROWS_OF_FOREST", 3)
    viewed = Viewed(kind)
    for step in range(8):
        viewed.step("bulk", [(f"{'xq'[i % 2]}|y", 14 + 3 * step + i % 3, i) for i in range(30)])
    viewed.same()


@pytest.mark.parametrize("kind", list(SOURCES))
def test_many_entries_in_each_source(kind):
    follow(Viewed(kind), many_writes(20))


@pytest.mark.parametrize("kind", list(SOURCES))
def test_few_entries_at_the_bounds(kind):
    """Keys that share pages, with entries on both sides of what is too old, and exactly there."""
    viewed = Viewed(kind)
    viewed.step("bulk", [("x|y", 18, 1), ("x|y", 24, 2), ("x|y", 30, 3), ("q|y", 25, 4), ("x|z", 24, 5)])
    for moment in range(24, 42):
        viewed.step("punctuate", moment)
        viewed.window.check_invariants()
        if moment == 36:
            viewed.same()
        viewed.step("clock", 1)
        if moment == 29:
            viewed.step("bulk", [("q|y", 31, 6)])


def test_views_go_on_when_their_window_gets_more_aggregates():
    viewed = Viewed("by age")
    viewed.step("bulk", [("x|y", 14 + i // 8, i % 19 - 9) for i in range(100)])
    viewed.step("aggregates")
    viewed.step("bulk", [("x|y", 27, 3)])
    viewed.window.check_invariants()
    viewed.same()


def test_other_aggregates_of_the_source_are_no_concern_of_a_question():
    """`short` has a list, which depends on the order of entries; the window and its other views do not have it."""
    window = Viewed("by age").window
    window.bulk_insert(bulk(window.spec, [("x|y", 12, 1), ("x|z", 12, 2), ("q|y", 13, 3)]))
    for question in (
        Query(keys=ALL_KEYS, combine=True),
        Query(selection=Grouped(by=["a"])),
        RangeQuery(0, 20, keys=ALL_KEYS),
        SeriesQuery(10, 20, 5, keys=ALL_KEYS),
        SeriesQuery(10, 20, 5, selection=Grouped(by=["a"])),
    ):
        with pytest.MonkeyPatch.context() as patch:
            for monoid in window.find("short").reader._layout.answering_monoids:
                if not monoid.commutative:
                    patch.setattr(type(monoid), "reduce_segments", _refuse)
            assert len(ask(window, question)[0]) > 0
            assert len(ask(window.find("steps"), question)[0]) > 0
        assert ask(window.find("short"), question)[0] is Unsupported


def test_panes_of_small_keys_count_their_entries():
    viewed = Viewed("panes")
    viewed.step(
        "bulk", [("x|y", 20, 1), ("x|y", 20, 2), ("x|z", 28, 1), ("x|y", 28, 3), ("x|y", 29, 4), ("x|y", 29, 5)]
    )
    viewed.same()
    assert viewed.window.find("short").info().entries == 4


def test_the_order_of_slots_is_that_of_the_views_that_are_left():
    """An image stores partials by slot, and says which views there are, not which there were."""
    shelf = Shelf()
    window = Viewed("by age", late=list(VIEWS), cold=shelf.cold).window
    low, high = ({"function": function, "field": "v"} for function in ("first", "last"))
    for name, aggregates in (("a", {"low": low}), ("b", {"high": high, "low": low})):
        document = {"name": name, "of": "requests", "aggregates": aggregates}
        window.derive(completed(WindowSpec.parse(document), window.spec))
    window.bulk_insert(bulk(window.spec, [("x|y", 20 + i, i) for i in range(15)]))
    window.drop("a")
    again, _ = shelf.reopened(shelf.parts(window))
    assert again.layout.keys == window.layout.keys
    assert again.find("b").reader.query(Query("x|y"))[0].aggregates == {"high": 14, "low": 0}
    again.check_invariants()


def _refuse(self: Monoid, *_: object) -> None:
    raise AssertionError(f"nobody asked for {self.function}")


def test_an_aggregate_that_two_of_them_have_is_computed_once():
    window = Viewed("by age", late=list(VIEWS)).window
    before = len(window.layout.monoids)
    window.derive(view_spec(window.spec, "short"))
    assert len(window.layout.monoids) == before + 2, (
        "the list and the last; the window has the sum, and counts are free"
    )
    window.derive(view_spec(window.spec, "steps"))
    assert len(window.layout.monoids) == before + 3
    window.drop("short")
    window.drop("steps")
    assert window.layout.keys == Viewed("by age", late=list(VIEWS)).window.layout.keys
    assert window.spec == source_spec("by age")
