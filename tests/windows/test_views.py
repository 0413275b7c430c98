"""Views: each answers as a window of its own would that was sent the same entries."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument, NotFound, Unsupported
from sash_engine.monoids import Monoid
from sash_engine.windows.questions import ALL_KEYS, Grouped, Query, RangeQuery, SeriesQuery
from sash_engine.windows.reading import group_series
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.refused import refusal, refused
from tests.support.shelf import Shelf
from tests.support.twins import a_share_of_examples, alike
from tests.support.viewed import (
    SOURCES,
    VIEWS,
    Viewed,
    ask,
    bulk,
    follow,
    many_writes,
    source_spec,
    view_spec,
    writes_until,
)

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
    follow(Viewed(kind), many_writes(12))


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


# ---------------------------------------------------------------- specs of views


COUNT = {"n": {"function": "count"}}
SOURCE = {
    "name": "requests",
    "time_unit": "s",
    "keys": ["path"],
    "fields": {"v": "int64", "w": "string"},
    "aggregates": {**COUNT, "sum": {"function": "sum", "field": "v"}},
    "slide": {"max_age": "1h"},
    "identity": "v",
    "idle_expiry": "30d",
}
VIEW = {"name": "view", "of": "requests", "aggregates": {"n": {"function": "max", "field": "v"}}}


def made(view=None, source=None):
    document = {name: value for name, value in {**SOURCE, **(source or {})}.items() if value is not None}
    return completed(WindowSpec.parse({**VIEW, **(view or {})}), WindowSpec.parse(document))


def test_a_view_has_what_it_does_not_say_of_its_window():
    source = WindowSpec.parse(SOURCE)
    spec = made({"slide": {"max_age": "1m"}})
    for name in ("time_unit", "keyed", "keys", "fields", "order", "identity", "idle_expiry"):
        assert getattr(spec, name) == getattr(source, name), name
    assert (spec.slide.max_age, spec.slide.clock, spec.of) == ("1m", "event", "requests")
    assert made().slide == source.slide
    assert completed(spec, source) == spec == WindowSpec.parse(spec.document())
    assert made({"fields": SOURCE["fields"], "keys": ["path"], "time_unit": "s"}) == made()


@pytest.mark.parametrize(
    "source", [{"slide": {"max_age": "1h", "clock": "wall"}}, {"slide": {"max_age": "1h", "until": "punctuation"}}]
)
def test_now_is_that_of_the_window(source):
    slide = made({"slide": {"max_age": "1m"}}, source).slide
    assert slide.model_dump(exclude_none=True) == {"clock": "event", **source["slide"], "max_age": "1m"}


@pytest.mark.parametrize(
    "slide", [{"max_count": 5}, {"max_gap": "5m"}, {"when": "old.n > 5"}, {"adaptive": {"field": "v"}}]
)
def test_a_view_has_no_slide_by_which_entries_are_gone_for_good(slide):
    (name,) = slide
    assert refusal(
        made,
        {"slide": slide},
        {"slide": None, "identity": None, "aggregates": COUNT},
        match=f"cannot know which entries {name} has evicted for good",
    ) == (f"slide.{name}", "max_age, every")


@pytest.mark.parametrize(
    "slide", [{"max_count": 5}, {"max_gap": "5m"}, {"when": "old.n > 5"}, {"adaptive": {"field": "v"}}]
)
def test_a_view_without_a_slide_goes_with_any_window(slide):
    rest = {"identity": None, "aggregates": COUNT}
    assert (
        made({"aggregates": COUNT}, {"slide": slide, **rest}).slide
        == WindowSpec.parse({**SOURCE, **rest, "slide": slide} | {"identity": None}).slide
    )
    assert refused(
        made, {"slide": {"max_age": "1m"}}, {"slide": {**slide, "max_age": "1h"}, **rest}, match="leave slide out"
    ).field.startswith("slide")


@pytest.mark.parametrize(
    ("view", "source", "field"),
    [
        ({"slide": {"max_age": "2h"}}, {}, "slide.max_age"),
        ({"slide": {"max_age": "1m", "clock": "wall"}}, {}, "slide.clock"),
        ({"slide": {"clock": "wall"}}, {}, "slide.clock"),
        ({"slide": {"max_age": "1m", "until": "punctuation"}}, {}, "slide.until"),
        ({"slide": {"max_count": 3}}, {}, "slide.max_count"),
        ({"slide": {"max_age": "1m", "max_gap": "1s"}}, {}, "slide.max_gap"),
        ({"slide": {"max_age": "1h", "every": "7m"}}, {"slide": {"max_age": "1h", "every": "5m"}}, "slide.every"),
        ({"slide": {"max_age": "56m"}}, {"slide": {"max_age": "1h", "every": "5m"}}, "slide.every"),
        ({"fields": {"v": "float64"}}, {}, "fields"),
        ({"keys": ["other"]}, {}, "keys"),
        ({"time_unit": "ms"}, {}, "time_unit"),
        ({"identity": "w"}, {}, "identity"),
        ({"granularity": "1m"}, {}, "granularity"),
        ({"order": {"late": "reject"}}, {}, "order"),
        ({"idle_expiry": "1d"}, {}, "idle_expiry"),
        ({"durability": "memory"}, {}, "durability"),
        ({"rollups": [[]]}, {}, "rollups"),
        ({"algorithm": "amta"}, {}, "algorithm"),
        ({"from": {"window": "requests", "granularity": "1m"}}, {}, "from"),
        ({"of": "view"}, {}, "of"),
        ({"aggregates": {"n": {"function": "sum", "field": "gone"}}}, {}, "aggregates.n.field"),
        ({"aggregates": {"path": {"function": "count"}}}, {}, "keys.0"),
        ({}, {"granularity": "1m", "identity": None}, "aggregates.n"),
    ],
)
def test_a_view_that_cannot_be_is_refused(view, source, field):
    assert refused(made, view, source).field == field


def test_a_view_of_nothing_and_of_a_view():
    window = Window(WindowSpec.parse(SOURCE), clock=ManualClock())
    view = window.derive(made())
    with pytest.raises(NotFound, match="of: there is no window 'gone'"):
        window.derive(WindowSpec.parse({**made().document(), "of": "gone"}))
    refused(completed, WindowSpec.parse({**VIEW, "name": "other", "of": "view"}), view.spec, match="say of: requests")


@given(
    age=st.integers(1, 30),
    every=st.integers(1, 30),
    longest=st.integers(1, 30),
    step=st.none() | st.integers(1, 30),
    clock=st.sampled_from(["event", "wall"]),
)
def test_what_a_view_may_show_its_window_never_evicts(age, every, longest, step, clock):
    """Whatever now is, entries that are new enough for the view are new enough for its window."""
    every, step = min(every, age), step and min(step, longest)
    theirs = {"max_age": longest, "clock": clock} | ({} if step is None else {"every": step})
    try:
        view = made({"slide": {"max_age": age, "every": every}}, {"slide": theirs})
    except InvalidArgument:
        assume(False)
    source = Window(WindowSpec.parse({**SOURCE, "slide": theirs}), clock=ManualClock())
    shown = Window(WindowSpec.parse({**view.document(), "of": None}), clock=ManualClock())
    slides: list[Slide] = [window.slide_policy for window in (source, shown)]
    for now in range(-70, 70):
        evicted, hidden = (slide.through(now) for slide in slides)
        assert evicted <= hidden, now
