"""Cascades: each window of a tree is as if it had been written to by itself, and as the fold of what was written."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, SashError
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import ALL_KEYS, Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.refused import refused
from tests.support.twins import a_share_of_examples
from tests.support.windows import functions

AGGREGATES = functions(n="count", sum="sum v", low="min v", tops="max_count v")
SOURCE = {
    "name": "requests",
    "time_unit": "s",
    "keyed": True,
    "fields": {"w": "string", "v": "int64"},
    "aggregates": AGGREGATES,
}
COMMON = {"time_unit": "s", "keyed": True, "fields": {"v": "int64"}, "aggregates": AGGREGATES}
MINUTES = {**COMMON, "name": "minutes", "from": {"window": "requests", "granularity": 5}, "slide": {"max_age": 40}}
HOURS = {
    **COMMON,
    "name": "hours",
    "from": {"window": "minutes", "granularity": 20},
    "slide": {"max_age": 100},
    "aggregates": {name: AGGREGATES[name] for name in ("tops", "low", "n")},
}
OTHERS = {**COMMON, "name": "others", "from": {"window": "requests", "granularity": 7}, "rollups": [[]]}
SOURCES = {
    "entries": {},
    "entries of a while": {"slide": {"max_age": 10}},
    "few entries": {"slide": {"max_count": 2}},
    "sessions": {"slide": {"max_gap": 4}},
    "on wall time": {"slide": {"max_age": 10, "clock": "wall"}},
    "not ahead": {"order": {"ahead": "50s"}},
    "in order": {"order": {"out_of_order": "reject", "late": "reject"}, "slide": {"max_age": 30}},
    "final": {"slide": {"max_age": 10, "until": "punctuation"}},
    "panes": {"granularity": 5, "slide": {"max_age": 10}, "rollups": [[]]},
    "one key": {"keyed": False},
}

times_of = st.integers(0, 120)
rows_of = st.lists(st.tuples(st.sampled_from("abc"), times_of, st.integers(-9, 9)), min_size=1, max_size=12)
writes_of = st.lists(
    st.one_of(
        st.tuples(st.just("bulk"), rows_of),
        st.tuples(st.just("bulk"), rows_of),
        st.tuples(st.just("insert"), st.sampled_from("abc"), times_of, st.integers(-9, 9)),
        st.tuples(st.just("evict"), times_of),
        st.tuples(st.just("punctuate"), times_of),
        st.tuples(st.just("clock"), st.integers(1, 30)),
    ),
    max_size=10,
)


def tree_of(source="entries", clock=None, cascades=(MINUTES, HOURS, OTHERS), **options):
    """The window that feeds, and those that it feeds."""
    keyed = {"keyed": SOURCES[source].get("keyed", True)}
    window = Window(
        WindowSpec.parse({**SOURCE, **SOURCES[source]}), pages=(2, 4), block=4, clock=clock or ManualClock(0), **options
    )
    granularity = SOURCES[source].get("granularity")
    for document in cascades:
        if granularity and document is OTHERS:
            document = {**document, "from": {"window": "requests", "granularity": 10}}
        document = {name: value for name, value in document.items() if keyed["keyed"] or name != "rollups"}
        window.derive(WindowSpec.parse({**document, **keyed}))
    return window


def alone(window, clock):
    """A window of the same panes that is written to by itself, as it would be by hand."""
    document = {name: value for name, value in window.spec.document().items() if name != "from"}
    return Window(WindowSpec.parse({**document, "order": {}}), pages=(2, 4), block=4, clock=clock)


def batch_of(spec, rows, before=lambda row: True):
    """A bulk of the rows for which `before` holds; new keys come in the order of all rows."""
    kept = [row for row in rows if before(row)]
    _, times, values = zip(*kept, strict=True) if kept else ((), (), ())
    columns = {"w": [str(value) for value in values], "v": values}
    keys = Coded.of([key for key, _, _ in rows])
    coded = Coded(keys.dictionary, keys.codes[[i for i, row in enumerate(rows) if before(row)]])
    made = Batch.of(spec, times, {name: columns[name] for name in spec.fields})
    return replace(made, keys=coded) if spec.keyed else made


def same_answers(window, model):
    keys = {"keys": ALL_KEYS} if window.spec.keyed else {}
    for question in (Query(**keys), Query(**keys, lookbacks=[20, 60])):
        assert [str(answer) for answer in window.reader.query(question)] == [
            str(answer) for answer in model.reader.query(question)
        ]
    assert str(window.reader.range_query(RangeQuery(20, 79, **keys))) == str(
        model.reader.range_query(RangeQuery(20, 79, **keys))
    )
    assert str(window.reader.series(SeriesQuery(0, 100, 20, **keys))) == str(
        model.reader.series(SeriesQuery(0, 100, 20, **keys))
    )


@a_share_of_examples(3)
@example(source="not ahead", writes=[("bulk", [("a", 51, 1), ("b", 0, 2), ("a", 0, 3)])])
@given(source=st.sampled_from(list(SOURCES)), writes=writes_of)
def test_each_window_is_as_if_it_were_written_to_by_itself(source, writes):
    clock = ManualClock(0)
    window = tree_of(source, clock)
    plain = tree_of(source, clock, cascades=())
    models = {each.spec.name: alone(each, clock) for each in window.derived.fed}
    for kind, *arguments in writes:
        if kind == "clock":
            clock.advance(arguments[0] * 10**9)
            window.tidy()
            plain.tidy()
        elif kind == "punctuate":
            if window.spec.slide.until:
                assert window.punctuate(*arguments) == plain.punctuate(*arguments)
        elif kind == "evict":
            assert window.bulk_evict(*arguments) == plain.bulk_evict(*arguments)
        else:
            rows = arguments[0] if kind == "bulk" else [tuple(arguments)]
            try:
                expected = plain.bulk_insert(batch_of(plain.spec, rows))
            except SashError:
                refused(write, window, kind, rows, error=SashError)
                continue  # nothing reaches anybody
            assert write(window, kind, rows) == expected
            latest = clock.now_ns() // 10**9 + 50 if window.spec.order.ahead else 2**62

            def taken(row, latest=latest):
                return row[1] <= latest

            for model in models.values() if any(map(taken, rows)) else ():
                model.bulk_insert(batch_of(model.spec, rows, taken))
    window.check_invariants()
    for each in window.derived.fed:
        same_answers(each, models[each.spec.name])
        mine, theirs = each.counts, models[each.spec.name].counts
        assert (mine.inserted, mine.late, mine.present) == (theirs.inserted, theirs.late, theirs.present)


def write(window, kind, rows):
    if kind == "bulk":
        return window.bulk_insert(batch_of(window.spec, rows))
    ((key, time, value),) = rows
    return window.insert(time, {"w": str(value), "v": value}, key if window.spec.keyed else None)


@a_share_of_examples(2)
@given(bulks=st.lists(rows_of, max_size=5))
def test_a_cascade_is_the_fold_of_all_that_was_written_in_its_time(bulks):
    """By hand, without a window: nothing of what was written is missing, and nothing is there twice."""
    window = tree_of("entries of a while", cascades=({**MINUTES, "slide": {}}, {**HOURS, "slide": {}}))
    written = {}
    for rows in bulks:
        window.bulk_insert(batch_of(window.spec, rows))
        for key, time, value in rows:
            written.setdefault(key, []).append((time, value))
    for name, width in (("minutes", 5), ("hours", 20)):
        found = window.find(name)
        assert found.counts.present == sum(map(len, written.values()))
        for key, entries in written.items():
            for start in range(0, 120, width):
                values = [value for time, value in entries if start <= time < start + width]
                answer = found.range_query(start, start, key)
                assert (answer.entries, answer.aggregates["low"]) == (len(values), min(values, default=None))


def test_partials_reach_cascades_as_partials():
    source, window = tree_of("panes", cascades=()), tree_of("panes")
    source.bulk_insert(batch_of(source.spec, [("a", 1, 5), ("b", 2, 3), ("a", 8, 1), ("a", 9, 5)]))
    models = {each.spec.name: alone(each, None) for each in window.derived.fed}
    for batch in source.entries(keys=ALL_KEYS):
        window.bulk_insert(batch)
    for each in window.derived.fed:
        model = models[each.spec.name]
        model.bulk_insert(batch_of(model.spec, [("a", 1, 5), ("b", 2, 3), ("a", 8, 1), ("a", 9, 5)]))
        same_answers(each, model)
    window.check_invariants()


def test_what_a_cascade_cannot_take_changes_nothing():
    window = tree_of("entries", max_keys=2)
    window.find("hours")._writer._max_keys = 1
    window.insert(1, {"w": "", "v": 1}, "a")
    with pytest.raises(ResourceExhausted, match="'hours'"):
        window.bulk_insert(batch_of(window.spec, [("a", 5, 1), ("b", 5, 1)]))
    assert [each.counts.present for each in window.family] == [1, 1, 1, 1]
    assert [each.keys.names() for each in window.family] == [["a"]] * 4
    window = tree_of("entries")
    window.insert(1, {"w": "", "v": 1}, "a")
    with pytest.raises(InvalidArgument):  # it has a pane of 5, and none of 20
        window.insert(-(2**63) + 4, {"w": "", "v": 1}, "b")
    assert [each.keys.names() for each in window.family] == [["a"]] * 4
    assert [each.counts.present for each in window.family] == [1, 1, 1, 1]
    window.check_invariants()


def test_a_window_that_feeds_others_is_dropped_after_them():
    window = tree_of()
    window.insert(1, {"w": "", "v": 1}, "a")
    refused(window.drop, "minutes", error=FailedPrecondition, match="'minutes' feeds another window")
    others = window.find("others")
    window.drop("others")
    assert [len(each.keys) for each in (others, *(rollup.window for rollup in others.derived.rollups))] == [0, 0]
    others = window.derive(others.spec)
    window.drop("hours")
    window.drop("minutes")
    assert [each.spec.name for each in window.derived.fed] == ["others"]
    window.insert(2, {"w": "", "v": 1}, "a")
    window.check_invariants()


UNFIT = {
    "another unit": ({}, {"time_unit": "ms"}, "time_unit"),
    "other keys": ({}, {"keys": ["k"]}, "keys"),
    "no keys": ({}, {"keyed": False}, "keyed"),
    "an unknown field": ({}, {"fields": {"v": "int64", "x": "int64"}}, "fields.x"),
    "a field of another type": ({}, {"fields": {"v": "float64"}}, "fields.v"),
    "one entry of a time": ({"order": {"equal_times": "last"}}, {}, "from.window"),
    "an identity": ({"identity": "w"}, {}, "from.window"),
    "panes of another length": ({"granularity": 3}, {}, "from.granularity"),
    "an aggregate that panes lack": ({"granularity": 5}, {"aggregates": {"s": {"function": "max"}}}, "aggregates.s"),
    "an aggregate that panes call otherwise": (
        {"granularity": 5},
        {"aggregates": {"sum": {"function": "max", "field": "v"}}},
        "aggregates.sum",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_window_that_cannot_feed_another_is_refused(case):
    theirs, mine, field = UNFIT[case]
    window = Window(WindowSpec.parse({**SOURCE, **theirs}))
    assert refused(window.derive, WindowSpec.parse({**MINUTES, **mine})).field == field
    refused(window.derive, WindowSpec.parse(HOURS), error=NotFound)
    assert not window.derived.fed


def test_the_spec_says_its_panes():
    spec = WindowSpec.parse(MINUTES)
    assert (spec.granularity_ticks, spec.source.window) == (5, "requests")
    assert WindowSpec.parse(spec.document()) == spec
    assert spec.document()["from"] == {"window": "requests", "granularity": "5"}


def test_a_long_bulk_reaches_a_cascade_of_one_key_in_order_of_panes():
    window = tree_of("one key")
    random = np.random.default_rng(3)
    rows = [("a", int(time), 1) for time in random.integers(0, 120, 500)]
    window.bulk_insert(batch_of(window.spec, rows))
    assert window.find("others").counts.present == 500
    window.check_invariants()


def test_an_aggregate_of_times_reads_those_of_the_entries():
    slope = {"aggregates": {"slope": {"function": "linear_slope", "field": "v"}}}
    window = tree_of("panes", cascades=())
    window = Window(WindowSpec.parse({**window.spec.document(), **slope}))
    window.derive(WindowSpec.parse({**MINUTES, **slope, "slide": {}}))
    hours = window.derive(WindowSpec.parse({**HOURS, **slope}))
    window.bulk_insert(batch_of(window.spec, [("a", time, 3 * time) for time in (1, 4, 9, 12, 17)]))
    assert hours.query("a")[0].aggregates["slope"] == pytest.approx(3.0)


def test_time_alone_evicts_from_a_window_that_is_fed():
    clock = ManualClock(0)
    source = {"name": "s", "time_unit": "s", "fields": {"v": "int64"}, "aggregates": {"n": {"function": "count"}}}
    window = Window(WindowSpec.parse(source), clock=clock)
    wall = {"from": {"window": "s", "granularity": 5}, "slide": {"max_age": 10, "clock": "wall"}}
    fed = window.derive(WindowSpec.parse({**source, "name": "fed", **wall}))
    window.insert(1, {"v": 1})
    assert (window.counts.present, fed.counts.present) == (1, 1)
    clock.advance(60 * 10**9)
    window.tidy()
    assert (window.counts.present, fed.counts.present) == (1, 0)
