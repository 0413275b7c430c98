"""Lookbacks of groups: from every way to ask, the fold over what the window has of the time that they go back to."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability.records.commands import BulkInsert, Punctuate
from sash_engine.aggregators.recalc import Recalc
from sash_engine.clock import ManualClock
from sash_engine.monoids import Sum
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Grouped, Having, Query, Top, Where
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.labels import join, split
from tests.support.sharded import in_process, single
from tests.support.twins import a_share_of_examples

PARTS = ("a", "b")
DOCUMENT = {
    "name": "w",
    "time_unit": "s",
    "keys": list(PARTS),
    "fields": {"v": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum", "field": "v"}},
}
UNTIL = {"until": "punctuation"}
SLIDES = {
    "all, until": UNTIL,
    "age, until": {"max_age": 12, **UNTIL},
    "steps, until": {"max_age": 12, "every": 5, **UNTIL},
    "age": {"max_age": 12},
    "count": {"max_count": 3},
    "sessions": {"max_gap": 6},
    "predicate": {"when": "old.n > 4"},
    "wall": {"max_age": 12, "clock": "wall"},
}
ROLLS = ("all", "all, until", "age, until", "steps, until", "age", "wall")

keys_of = st.tuples(st.sampled_from("xyz"), st.sampled_from("pq")).map(join)
times_of = st.integers(-20, 40)
steps_of = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.tuples(keys_of, times_of), min_size=1, max_size=9)),
        st.tuples(st.just("write"), st.lists(st.tuples(keys_of, times_of), min_size=1, max_size=9)),
        st.tuples(st.just("punctuate"), times_of),
    ),
    max_size=6,
)


def window_of(slide, rollups, clock):
    document = {**DOCUMENT, "slide": SLIDES[slide]}
    if rollups and slide in ROLLS:
        document["rollups"] = [["a"], []]
    return Window(WindowSpec.parse(document), pages=(2, 4), block=4, clock=clock)


def play(window, history):
    """Entry i has the value 2^i, so that a sum says which entries it has."""
    sent, final = 0, None
    for step, what in history:
        if step == "write":
            values = [1 << sent + i for i in range(len(what))]
            window.bulk_insert(Batch.of(window.spec, [t for _, t in what], {"v": values}, [key for key, _ in what]))
            sent += len(what)
        elif window.spec.slide.until:
            window.punctuate(what)
            final = what if final is None else max(final, what)
    return final


def entries_of(window):
    for batch in window.entries(keys=ALL_KEYS):
        for code, time, value in zip(batch.keys.codes, batch.times.tolist(), batch.columns["v"].tolist(), strict=True):
            yield split(batch.keys.dictionary[code], 2), time, value


def groups_by_fold(window, by, lookback, as_of, final):
    """group -> where its lookback ends, and the fold over it; None ends no lookback."""
    places = [PARTS.index(name) for name in by]
    folds, nows = {}, {}
    for name in window.keys.names():
        group, now = tuple(split(name, 2)[place] for place in places), window.keys.now_of[window.keys.find(name)]
        nows[group] = max(nows.get(group, now), now)
    for key, time, value in entries_of(window):
        folds.setdefault(tuple(key[place] for place in places), Recalc(Sum("int64"), equal_times="keep")).insert(
            time, value
        )
    out = {}
    for group, fold in sorted(folds.items()):
        wall = window.spec.slide.clock == "wall"
        now = end = as_of if as_of is not None else final if window.spec.slide.until else nows[group]
        if wall and as_of is None:
            now, end = 40, max(40, nows[group])
        out[group] = (None, None, 0)
        if now is not None:
            out[group] = (now - lookback + 1, end, fold.range_query(now - lookback + 1, end))
    return out


def told(answer):
    return answer.start, answer.end, answer.aggregates["sum"]


@a_share_of_examples(2)
@given(
    slide=st.sampled_from(list(SLIDES)),
    history=steps_of,
    by=st.sampled_from([["a"], ["b"], ["b", "a"], ["a", "b"], []]),
    lookbacks=st.lists(st.sampled_from([1, 4, 9, 30, 90]), min_size=1, max_size=2, unique=True),
    as_of=st.sampled_from([None, None, 7]),
)
def test_groups_rollups_and_keys_go_back_from_the_same_now(slide, history, by, lookbacks, as_of):
    clock = ManualClock(40 * 10**9)
    plain, rolled = window_of(slide, False, clock), window_of(slide, True, clock)
    final = play(plain, history)
    assert play(rolled, history) == final
    more = {"lookbacks": lookbacks, "as_of": as_of}
    expected = [groups_by_fold(plain, by, lookback, as_of, final) for lookback in lookbacks]
    groups = list(expected[0])
    for window in (plain, rolled):
        found = window.reader.query(Query(selection=Grouped(by=by), **more))
        assert [tuple(each.parts.values()) for each in found[:: len(lookbacks)]] == groups
        for place, by_fold in enumerate(expected):
            assert [told(each) for each in found[place :: len(lookbacks)]] == list(by_fold.values())
        some = window.reader.query(Query(selection=Grouped(by=by, having=[Having("sum", ">", 0)]), **more))
        left = [group for group in groups if expected[0][group][2] > 0]
        assert [tuple(each.parts.values()) for each in some[:: len(lookbacks)]] == left
        best = window.reader.query(Query(selection=Grouped(by=by, top=Top("sum", 2)), **more))
        first = sorted(groups, key=lambda group: -expected[0][group][2])[:2]
        assert [tuple(each.parts.values()) for each in best[:: len(lookbacks)]] == first
        (whole, *_) = window.reader.query(Query(keys=ALL_KEYS, combine=True, **more))
        if by == [] and groups:
            assert told(whole) == expected[0][()]
        for question in (
            Query(keys=ALL_KEYS, selection=Grouped(where=[Where("a", "=~", [".*"])]), **more),
            Query(keys=ALL_KEYS, selection=Grouped(having=[Having("n", ">=", 0)]), **more),
        ):
            assert window.reader.query(question) == window.reader.query(Query(keys=ALL_KEYS, **more))


@a_share_of_examples(4)
@given(history=steps_of, by=st.sampled_from([["a"], ["b"], ["b", "a"], []]), lookback=st.sampled_from([1, 4, 30]))
@pytest.mark.parametrize("slide", ["all, until", "age, until"])
def test_shards_go_back_from_the_same_now(slide, history, by, lookback):
    spec = WindowSpec.parse({**DOCUMENT, "slide": SLIDES[slide]})

    async def ask(plane):
        await plane.create(spec)
        sent = 0
        for step, what in history:
            if step == "write":
                values = [1 << sent + i for i in range(len(what))]
                keys = [key for key, _ in what]
                await plane.write("w", BulkInsert(Batch.of(spec, [time for _, time in what], {"v": values}, keys)))
                sent += len(what)
            elif spec.slide.until:
                await plane.write("w", Punctuate(what))
        questions = (
            Query(lookbacks=[lookback, 7], selection=Grouped(by=by)),
            Query(lookbacks=[lookback], selection=Grouped(by=by, top=Top("sum", 2))),
            Query(lookbacks=[lookback], selection=Grouped(by=by, having=[Having("n", "<", 2)])),
            Query(lookbacks=[lookback], selection=Grouped(by=by, limit=2)),
            Query(keys=ALL_KEYS, combine=True, lookbacks=[lookback, 7]),
        )
        return [await plane.ask("w", question) for question in questions]

    async def both():
        clock = ManualClock(0)
        assert await ask(in_process(3, clock)) == await ask(single(clock))

    asyncio.run(both())


def test_a_rollup_that_lacks_what_a_final_lookback_goes_back_to_is_not_asked():
    """The group lost what is up to 5 when a key was evicted by hand; the lookback ends at 10, and not at 39."""
    window = window_of("all, until", True, ManualClock(0))
    keys = ["x|p", "x|q", "x|q", "x|q", "x|p"]
    window.bulk_insert(Batch.of(window.spec, [3, 4, 9, 39, 5], {"v": [1, 2, 4, 8, 16]}, keys))
    window.punctuate(10)
    window.bulk_evict(5, "x|p")
    (answer,) = window.reader.query(Query(lookbacks=[8], selection=Grouped(by=["a"])))
    assert told(answer) == (3, 10, 6)
