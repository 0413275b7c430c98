"""Specs of views: what they have of their window, and which of them a window can have."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument, NotFound
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.refused import refusal, refused

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
