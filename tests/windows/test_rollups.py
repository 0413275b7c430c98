"""Rollups: the answers are those of a window without them, and of a fold over the entries that are there."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import SashError
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch, PartialBatch
from sash_engine.windows.derived import derived
from sash_engine.windows.questions import ALL_KEYS, Grouped, Having, Query, RangeQuery, SeriesQuery, Top, Where
from sash_engine.windows.spec.window import TICK_MIN, WindowSpec
from sash_engine.windows.window import Window
from sash_wire.labels import join
from tests.support.asking import answers_of
from tests.support.refused import refused
from tests.support.twins import a_share_of_examples
from tests.support.viewed import same_write
from tests.support.windows import functions

PARTS = ("airport", "carrier", "kind")
VALUES = (("JFK", "LGA", "J|K", ""), ("AA", "\\"), ("x", "y"))
AGGREGATES = functions(
    n="count",
    sum="sum v",
    low="min v",
    tops="max_count v",
    mean="mean v",
    hist={"function": "histogram", "field": "v", "bounds": [-3, 3]},
)
ROLLUPS = [["carrier"], ["kind", "airport"], []]
SLIDES = {
    "none": {},
    "age": {"slide": {"max_age": 12}},
    "steps": {"slide": {"max_age": 12, "every": 5}},
    "wall": {"slide": {"max_age": 12, "clock": "wall"}, "time_unit": "s"},
    "until": {"slide": {"max_age": 12, "until": "punctuation"}},
    "panes": {"slide": {"max_age": 12}, "granularity": 3},
    "panes on wall time": {"slide": {"max_age": 12, "clock": "wall"}, "granularity": 4, "time_unit": "s"},
}
DOCUMENT = {"name": "w", "time_unit": "none", "fields": {"v": "int64"}, "aggregates": AGGREGATES}

keys_of = st.tuples(*map(st.sampled_from, VALUES)).map(join)
times_of = st.integers(0, 40)
rows_of = st.lists(st.tuples(keys_of, times_of, st.integers(-9, 9)), max_size=12)
one_or_all = st.one_of(st.none(), keys_of)
writes_of = st.lists(
    st.one_of(
        st.tuples(st.just("bulk"), rows_of),
        st.tuples(st.just("bulk"), rows_of),
        st.tuples(st.just("insert"), keys_of, times_of, st.integers(-9, 9)),
        st.tuples(st.just("evict"), times_of, one_or_all),
        st.tuples(st.just("range"), times_of, st.integers(0, 9), one_or_all),
        st.tuples(st.just("wrong"), times_of, st.integers(0, 30), one_or_all),
        st.tuples(st.just("punctuate"), times_of),
        st.tuples(st.just("clock"), st.integers(1, 9)),
        st.tuples(st.just("aggregates")),
    ),
    max_size=10,
)
wheres_of = st.lists(
    st.sampled_from(
        [
            Where("carrier", "=", ["AA"]),
            Where("airport", "in", ["JFK", "J|K"]),
            Where("airport", "!=", [""]),
            Where("kind", "=~", ["[a-x]"]),
        ]
    ),
    max_size=2,
)
bys_of = st.one_of(
    st.sampled_from([["carrier"], ["airport", "kind"], []]), st.lists(st.sampled_from(PARTS), unique=True)
)


def window_of(slide="none", with_rollups=True, clock=None):
    document = {**DOCUMENT, "keys": list(PARTS), **copy.deepcopy(SLIDES[slide])}
    if with_rollups:
        document["rollups"] = ROLLUPS
    return Window(WindowSpec.parse(document), pages=(2, 4), block=4, clock=clock)


def ask(window, question):
    try:
        found = answers_of(window.reader, question)
    except SashError as error:
        return type(error), error.message, error.field
    return [str(answer) for answer in found], getattr(found, "position", None)


@a_share_of_examples(3)
@given(
    slide=st.sampled_from(list(SLIDES)),
    writes=writes_of,
    where=wheres_of,
    by=bys_of,
    lookback=st.sampled_from([None, 1, 5, 12, 30]),
    as_of=st.sampled_from([None, None, 25]),
    start=st.integers(0, 30),
    small=st.booleans(),
)
def test_answers_are_those_without_rollups(slide, writes, where, by, lookback, as_of, start, small):
    clocks = ManualClock(0), ManualClock(0)
    window, plain = window_of(slide, True, clocks[0]), window_of(slide, False, clocks[1])
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(derived, "_ROWS", 3)
            patch.setattr(derived, "_NAMES", 2)
        for each in writes:
            same_write((window, plain), clocks, *each)
    lookbacks = [] if lookback is None else [lookback, 4]
    for question in (
        Query(lookbacks=lookbacks, as_of=as_of, selection=Grouped(where=where, by=by)),
        Query(lookbacks=lookbacks, selection=Grouped(where=where, by=by, limit=1)),
        Query(lookbacks=lookbacks, partials=True, selection=Grouped(where=where, by=by)),
        Query(lookbacks=lookbacks, selection=Grouped(by=by, top=Top("sum", 2), having=[Having("n", ">", 1)])),
        Query(lookbacks=lookbacks, nows={"AA": 35, "\\0": 41}, selection=Grouped(by=by)),
        Query(keys=ALL_KEYS, combine=True, lookbacks=lookbacks, as_of=as_of, selection=Grouped(where=where)),
        Query(combine=True, selection=Grouped(where=where)),
        Query(lookbacks=lookbacks, selection=Grouped(where=where)),
        RangeQuery(start, start + 9, selection=Grouped(where=where, by=by)),
        RangeQuery(start, start + 9, keys=ALL_KEYS, selection=Grouped(where=where)),
        SeriesQuery(start, start + 9, 2, 4, selection=Grouped(where=where, by=by)),
        SeriesQuery(start, start + 9, 2, 4, keys=ALL_KEYS, selection=Grouped(where=where)),
        SeriesQuery(start, start + 9, 2, 4, selection=Grouped(by=by, top=Top("sum", 1))),
        Query(selection=Grouped(by=[*by, "nothing"])),
        RangeQuery(start, start - 1, selection=Grouped(by=by)),
    ):
        assert ask(window, question) == ask(plain, question), question
    window.check_invariants()
    assert window.info().counts == plain.info().counts


def filled(slide="age", n=30, **more):
    window = window_of(slide, **more)
    for i in range(n):
        window.insert(i, {"v": i}, join([f"a{i % 3}", f"c{i % 2}", "x"]))
    return window


@pytest.fixture
def asked(monkeypatch):
    """How many keys the questions of a test fold, at most."""
    from sash_engine.windows.reading import group_folds

    counts, whole = [], group_folds.fold_groups

    def counted(keys, layout, numbers, *more, **named):
        counts.append(len(numbers))
        return whole(keys, layout, numbers, *more, **named)

    for module in ("group_reader", "group_folds"):
        monkeypatch.setattr(f"sash_engine.windows.reading.{module}.fold_groups", counted)
    return counts


def filled_with(window, keys):
    window.bulk_insert(Batch.of(window.spec, [i // 100 for i in range(len(keys))], {"v": range(len(keys))}, keys))
    return window


@pytest.mark.parametrize("slide", ["none", "age", "panes"])
def test_questions_by_the_parts_of_a_rollup_fold_its_groups(slide, asked):
    """A thousand keys in two groups: a question by the group looks at two."""
    keys = [f"a{i}|c{i % 2}|x" for i in range(1000)]
    window, plain = filled_with(window_of(slide), keys), filled_with(window_of(slide, False), keys)
    for question in (
        Query(lookbacks=[5], selection=Grouped(by=["carrier"])),
        Query(selection=Grouped(by=["carrier"])),
        Query(selection=Grouped(by=["carrier"], where=[Where("carrier", "=", ["c1"])])),
        Query(keys=ALL_KEYS, combine=True, lookbacks=[3]),
        RangeQuery(2, 7, selection=Grouped(by=["carrier"])),
        RangeQuery(2, 7, keys=ALL_KEYS),
        RangeQuery(2, 7, selection=Grouped(where=[Where("carrier", "=", ["c1"])])),
        SeriesQuery(2, 7, 1, selection=Grouped(where=[Where("carrier", "=", ["c1"])])),
    ):
        asked.clear()
        ask(window, question)
        assert max(asked, default=0) <= 2, question
    for question in (
        RangeQuery(2, 7),
        SeriesQuery(2, 7, 1),
        Query(),
        RangeQuery(2, 7, keys=keys[:3], selection=Grouped(by=["carrier"])),
    ):
        assert ask(window, question) == ask(plain, question), "they name no group of a rollup"
    asked.clear()
    ask(window, Query(selection=Grouped(by=["airport"])))
    assert max(asked) == 1000, "no rollup has the airport alone, and the one with the kind has as many groups"


def test_a_key_that_lags_is_folded_where_a_question_goes_back_behind_the_horizon(asked):
    window = filled()
    window.insert(2, {"v": 100}, "late|c0|x")
    (c0, _) = window.reader.query(Query(selection=Grouped(by=["carrier"])))
    assert c0.aggregates["sum"] >= 100, "the entry has left the group's rollup, and is there"
    assert max(asked) > 2
    asked.clear()
    (c0, _) = window.reader.query(Query(lookbacks=[12], selection=Grouped(by=["carrier"])))
    assert (c0.aggregates["sum"] < 200, max(asked)) == (True, 2)


def test_an_entry_at_the_horizon_is_in_the_answer():
    """now 30, max_age 12: the group has what is newer than 18, and a key that lags has an entry of 18."""
    window = window_of("age")
    window.insert(18, {"v": 100}, "late|c0|x")
    window.insert(30, {"v": 1}, "a0|c0|x")
    for start, expected in ((18, 101), (19, 1)):
        (c0,) = ask_for(window, RangeQuery(start, 30, selection=Grouped(by=["carrier"])))
        assert c0.aggregates["sum"] == expected
    (c0,) = window.reader.query(Query(lookbacks=[13], selection=Grouped(by=["carrier"])))
    assert c0.aggregates["sum"] == 101


def test_a_group_that_has_older_entries_only_is_listed():
    """As `an entry at the horizon`, and the newest entry is evicted by hand."""
    window = window_of("age")
    window.insert(18, {"v": 100}, "late|c0|x")
    window.insert(30, {"v": 1}, "a0|c0|x")
    assert window.evict_range(30, 30) == 1
    (c0,) = window.reader.query(Query(lookbacks=[5], selection=Grouped(by=["carrier"])))
    assert (c0.parts, c0.entries) == ({"carrier": "c0"}, 0)


def test_a_group_goes_back_to_the_marks_of_its_keys():
    window = window_of("none")
    window.insert(10, {"v": 1}, "a0|c0|x")
    window.insert(30, {"v": 2}, "a1|c0|x")
    assert window.evict_range(25, 35, reset_mark=True) == 1
    (c0,) = window.reader.query(Query(lookbacks=[15], selection=Grouped(by=["carrier"])))
    assert (c0.end, c0.entries) == (10, 1)
    window.check_invariants()


def test_a_lookback_may_begin_before_all_time():
    window = window_of("none")
    for time, key in ((TICK_MIN + 2, "b"), (TICK_MIN + 3, "a"), (TICK_MIN + 4, "b")):
        window.insert(time, {"v": 1}, f"{key}|c0|x")
    window.bulk_evict(TICK_MIN + 3, "a|c0|x")
    (c0,) = window.reader.query(Query(lookbacks=[13], selection=Grouped(by=["carrier"])))
    assert c0.entries == 2


def ask_for(window, question):
    return finished(window.reader.range_groups(question))


def test_an_eviction_of_one_key_moves_the_horizon_of_its_groups(asked):
    window = filled("none")
    assert window.bulk_evict(2**62, "a0|c0|x") == 5
    for lookback, folded in ((2, 2), (30, 6)):
        window.reader.query(Query(lookbacks=[lookback], selection=Grouped(by=["carrier"])))
        assert max(asked) == folded
        asked.clear()
    window.insert(24, {"v": 1}, "a1|c0|x")  # at the horizon: the key has it, and the group has not
    window.insert(40, {"v": 1}, "a0|c0|x")
    window.check_invariants()


def test_partials_that_are_written_reach_the_rollups():
    window = window_of("panes")
    plain = window_of("panes", with_rollups=False)
    for each in (window, plain):
        source = window_of("panes", with_rollups=False)
        source.bulk_insert(
            Batch.of(source.spec, [1, 2, 9, 9], {"v": [1, 2, 3, 4]}, ["a|c|x", "b|c|x", "a|c|x", "a|d|x"])
        )
        for batch in source.entries(keys=ALL_KEYS):
            assert isinstance(batch, PartialBatch)
            each.bulk_insert(batch)
    assert ask(window, Query(selection=Grouped(by=["carrier"]))) == ask(plain, Query(selection=Grouped(by=["carrier"])))
    window.check_invariants()


def test_one_text_keys_have_a_rollup_of_all():
    spec = WindowSpec.parse({**DOCUMENT, "keyed": True, "rollups": [[]]})
    window = Window(spec)
    window.bulk_insert(Batch.of(spec, range(4), {"v": range(4)}, ["a", "b", "a", "b"]))
    (answer,) = window.reader.query(Query(selection=Grouped(by=[])))
    assert (answer.key, answer.parts, answer.entries) == (None, {}, 4)


def test_an_aggregate_that_depends_on_the_order_cannot_be_added():
    window = filled()
    refused(window.add_aggregates, {"f": {"function": "first", "field": "v"}}, match="order of entries")
    window.check_invariants()
