"""Windows with a history: they show their slide, and answer about the past from all that they keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import InvalidArgument
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import EntriesQuery, KeysQuery, Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.historic import KINDS, Historic, spec_of, view_of
from tests.support.refused import refused
from tests.support.shelf import Shelf
from tests.support.twins import a_share_of_examples
from tests.support.viewed import follow, many_writes, writes_until

writes_of = writes_until(70)


@a_share_of_examples(4)
@given(kind=st.sampled_from(list(KINDS)), writes=writes_of)
def test_the_slide_and_the_past_are_those_of_windows_that_keep_them(kind, writes):
    follow(Historic(kind), writes)


@a_share_of_examples(6)
@given(kind=st.sampled_from(list(KINDS)), writes=writes_of)
def test_a_stored_window_has_the_same_history_after_restarts(kind, writes):
    shelf = Shelf()
    follow(Historic(kind, shelf.cold), writes, shelf)


@pytest.mark.parametrize("kind", list(KINDS))
def test_many_entries_of_each_kind(kind):
    old = [("bulk", [("x|y", 31 - back, 5) for back in range(20)]), ("insert", "q|y", 19, 3)]
    follow(Historic(kind), [*many_writes(12), *old])


COUNT = {"n": {"function": "count"}}
SPEC = {"name": "w", "time_unit": "s", "keyed": True, "aggregates": COUNT, "slide": {"max_age": "10s"}}


def made(**more):
    return WindowSpec.parse({**SPEC, "history": "100s", **more})


def sent(spec, *times):
    window = Window(spec)
    window.bulk_insert(Batch.of(spec, list(times), {"value": [1.0] * len(times)}, ["a"] * len(times)))
    return window


def test_what_each_question_is_about():
    window = sent(made(), 1000, 985, 950)
    (slide,), (past,) = window.query("a", ["1h"]), window.query("a", ["1h"], as_of=1000)
    assert (slide.entries, past.entries) == (1, 3), "without as_of it is about the slide"
    assert window.query("a")[0].entries == 1
    assert window.query("a", as_of=990)[0].entries == 2
    assert window.range_query(900, 1000, "a").entries == 1
    assert window.series(940, 1001, "10s", key="a").entries.tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert [batch.times.tolist() for batch in window.entries(key="a")] == [[1000]]
    assert window.info().entries == 3, "describe counts what is kept"
    for question in (RangeQuery(1, 2, "a"), SeriesQuery(1, 2, 1, key="a"), EntriesQuery(key="a"), KeysQuery()):
        assert window.reader_of(question) is window.reader
    assert window.reader_of(Query("a", as_of=1)) is window.past is not window.reader


def test_without_a_history_there_is_one_reader():
    window = sent(WindowSpec.parse(SPEC), 1000)
    assert window.past is window.reader
    view = window.derive(completed(WindowSpec.parse({"name": "v", "of": "w", "aggregates": COUNT}), window.spec))
    assert view.past is view.reader


def test_an_entry_that_is_too_old_for_the_slide_is_counted():
    window = sent(made(), 1000)
    assert window.insert(991, {"value": 1.0}, "a").history == 0
    assert window.insert(990, {"value": 1.0}, "a").history == 1
    late = window.insert(900, {"value": 1.0}, "a")
    assert (late.inserted, late.late, late.history) == (0, 1, 0)
    done = window.bulk_insert(Batch.of(window.spec, [901, 989, 1001, 900], {"value": [1.0] * 4}, ["a", "a", "a", "b"]))
    assert (done.inserted, done.late, done.history) == (4, 0, 2), "a key that is new has no slide yet"
    assert window.keys.now_of[window.keys.find("a")] == 1001


def test_a_commit_of_many_stages_counts_the_same():
    window = sent(made(), 2_000_000)
    spec, n = window.spec, 2_200_000
    times = [*range(1_999_950, 2_000_050)] * (n // 200)
    stages = [Batch.of(spec, times, {"value": [1.0] * len(times)}, ["a"] * len(times)) for _ in range(2)]
    steps = window.bulk_insert_stages_steps(stages)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        done = end.value
    assert (done.inserted, done.history) == (n, 41 * n // 100), "1999950 to 1999990 were too old"


def test_what_is_old_leaves_the_history_in_the_end():
    window = sent(made(), 1000, 950)
    assert window.insert(1050, {"value": 1.0}, "a").evicted == 1
    assert window.info().evicted_through == 950
    assert window.query("a", as_of=1050)[0].entries == 2


def test_a_view_may_show_the_whole_history_and_has_none_of_its_own():
    spec = spec_of("event")
    for slide in ({"max_age": 24}, {"max_age": 3}, None):
        view = {"name": "v", "of": "historic", "aggregates": COUNT, **({} if slide is None else {"slide": slide})}
        assert completed(WindowSpec.parse(view), spec).slide.max_age == str((slide or {"max_age": 8})["max_age"])
    assert (
        refused(
            completed,
            WindowSpec.parse({"name": "v", "of": "historic", "aggregates": COUNT, "slide": {"max_age": 25}}),
            spec,
            match="longer than",
        ).limit
        == "at most 24"
    )
    with pytest.raises(InvalidArgument, match="'v' is a view, and 'w' has the entries"):
        WindowSpec.parse({"name": "v", "of": "w", "aggregates": COUNT, "history": 30})


def test_a_view_without_a_slide_shows_what_its_window_shows():
    window = sent(made(), 1000, 985, 950)
    view = window.derive(completed(WindowSpec.parse({"name": "v", "of": "w", "aggregates": COUNT}), window.spec))
    assert [each.entries for each in view.reader.query(Query("a"))] == [1]
    assert [each.entries for each in view.past.query(Query("a"))] == [3]
    assert view_of(spec_of("event")).slide.max_age == "16"


def test_a_cascade_may_have_a_history():
    source = Window(WindowSpec.parse({**SPEC, "name": "requests"}))
    cascade = source.derive(made(**{"from": {"window": "requests", "granularity": "5s"}}))
    kept = source.derive(
        WindowSpec.parse(
            {**SPEC, "name": "kept", "slide": {"max_age": "100s"}, "from": {"window": "requests", "granularity": "5s"}}
        )
    )
    for times in ([1000, 994, 991, 950], [985, 901], [1040]):
        source.bulk_insert(Batch.of(source.spec, times, {"value": [1.0] * len(times)}, ["a"] * len(times)))
    assert (cascade.query("a")[0].entries, cascade.info().entries) == (1, 6), "the pane of 900 was late"
    for as_of in (960, 999, 1100):
        assert cascade.query("a", ["1h"], as_of=as_of) == kept.query("a", ["1h"], as_of=as_of)
    assert cascade.query("a", as_of=1100)[0].entries == 6
    cascade.check_invariants()
