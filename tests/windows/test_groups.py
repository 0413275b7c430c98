"""Questions that select keys by their parts and group them: the answers are those of a fold over all entries."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument, Unsupported
from sash_engine.forest import series as forest_series
from sash_engine.monoids import Sum
from sash_engine.monoids.pane import Pane
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.keys import label_table
from sash_engine.windows.keys.pages import Pages
from sash_engine.windows.questions import (
    ALL_KEYS,
    EntriesQuery,
    Grouped,
    Query,
    RangeQuery,
    SeriesQuery,
    Top,
    Where,
)
from sash_engine.windows.reading import conditions as finding
from sash_engine.windows.reading import group_folds, group_reader, group_series, key_finder, labels
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.labels import join, split
from tests.support.refused import refused
from tests.support.twins import a_share_of_examples, alike
from tests.support.viewed import COMMON, SUMS, bulk, same_write, write, writes_until
from tests.support.windows import functions
from tests.windows.test_rollups import ask

PARTS = ("airport", "carrier", "kind")
AIRPORTS, CARRIERS, KINDS = ("JFK", "LGA", "J|K", ""), ("AA", "B6", "\\", "ä\n"), ("x", "y")
AGGREGATES = functions(
    n="count",
    sum="sum v",
    low="min v",
    mean="mean v",
    users="distinct_count v",
    hist={"function": "histogram", "field": "v", "bounds": [-3, 3]},
    tops="max_count v",
)
keys_of = st.tuples(st.sampled_from(AIRPORTS), st.sampled_from(CARRIERS), st.sampled_from(KINDS))
entries_of = st.lists(st.tuples(keys_of, st.integers(0, 60), st.integers(-9, 9)), max_size=60)
operators = st.sampled_from(["=", "!=", "in", "not in", "=~", "!~"])


@st.composite
def conditions(draw):
    part = draw(st.sampled_from(PARTS))
    values = dict(zip(PARTS, (AIRPORTS, CARRIERS, KINDS), strict=True))[part]
    op = draw(operators)
    if op in ("=~", "!~"):
        return Where(part, op, [draw(st.sampled_from(["", "J.*", ".", "[A-L]+", ".*|nothing", "x|AA", "(?s).*\n"]))])
    if op in ("=", "!="):
        return Where(part, op, [draw(st.sampled_from([*values, "none"]))])
    return Where(part, op, draw(st.lists(st.sampled_from([*values, "none"]), max_size=3)))


def spec_of(parts=PARTS, **more):
    return WindowSpec.parse(
        {
            "name": "w",
            "time_unit": "none",
            "keys": list(parts),
            "fields": {"v": "int64"},
            "aggregates": AGGREGATES,
            **more,
        }
    )


def window_of(entries, pages=(2, 4), **more):
    """A window whose keys leave shared pages at four entries."""
    window = Window(spec_of(**more), pages=pages, block=4)
    for a in range(0, len(entries), 7):
        some = entries[a : a + 7]
        window.bulk_insert(
            Batch.of(
                window.spec,
                [time for _, time, _ in some],
                {"v": [value for *_, value in some]},
                [join(key) for key, *_ in some],
            )
        )
    return window


def holds(condition, key):
    value = dict(zip(PARTS, key, strict=True))[condition.part]
    if condition.op in ("=~", "!~"):
        return (re.fullmatch(condition.values[0], value, re.DOTALL) is not None) is (condition.op == "=~")
    return (value in condition.values) is (condition.op in ("=", "in"))


def aggregates_of(values):
    return {
        "n": len(values),
        "sum": sum(values) if values else 0,
        "low": min(values, default=None),
        "mean": sum(values) / len(values) if values else None,
        "users": len(set(values)),
        "hist": [sum(v < -3 for v in values), sum(-3 <= v < 3 for v in values), sum(v >= 3 for v in values)],
        "tops": values.count(max(values)) if values else 0,
    }


def close(found, expected):
    assert {name: found[name] for name in ("n", "sum", "low")} == {name: expected[name] for name in ("n", "sum", "low")}
    assert found["mean"] == pytest.approx(expected["mean"])
    assert found["users"] == pytest.approx(expected["users"])
    assert (found["tops"] or 0) == expected["tops"]
    assert (found["hist"] or {"counts": [0, 0, 0]})["counts"] == expected["hist"]


def groups_by_hand(entries, where, by):
    """group -> its entries, in the order of the groups' values."""
    groups = {}
    for key, time, value in entries:
        if all(holds(condition, key) for condition in where):
            labelled = dict(zip(PARTS, key, strict=True))
            groups.setdefault(tuple(labelled[name] for name in by), []).append((time, value))
    return dict(sorted(groups.items()))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    for module, name in (
        (group_folds, "_KEYS"),
        (group_folds, "_ROWS"),
        (group_folds, "_MANY"),
        (group_reader, "_KEYS"),
        (group_reader, "_ANSWERS"),
        (finding, "_NUMBERS"),
        (finding, "_TEXTS"),
        (finding, "_VALUES"),
        (labels, "_NUMBERS"),
        (labels, "_TEXTS"),
        (label_table, "_VALUES"),
        (key_finder, "_NAMES"),
        (group_series, "KEYS"),
        (group_series, "_ROWS"),
        (group_series, "_ROWS_OF_FOREST"),
        (forest_series, "_COLUMNS"),
    ):
        monkeypatch.setattr(module, name, 3)


questions = {
    "where": st.lists(conditions(), max_size=2),
    "by": st.lists(st.sampled_from(PARTS), unique=True),
}


@given(
    entries=entries_of,
    lookback=st.sampled_from([None, 5, 40]),
    as_of=st.sampled_from([None, 30]),
    granule=st.sampled_from([None, 3]),
    **questions,
)
def test_groups_are_the_fold_of_their_entries(entries, where, by, lookback, as_of, granule):
    window = window_of(entries, granularity=granule)
    entries = [(key, time - time % (granule or 1), value) for key, time, value in entries]
    asked = Query(lookbacks=[] if lookback is None else [lookback], as_of=as_of, selection=Grouped(where=where, by=by))
    found = window.reader.query(asked)
    expected = groups_by_hand(entries, where, by)
    assert [tuple(answer.parts.values()) for answer in found] == list(expected)
    for answer, rows in zip(found, expected.values(), strict=True):
        now = max(time for time, _ in rows) if as_of is None else as_of
        inside = [(t, v) for t, v in rows if t <= now and (lookback is None or t > now - lookback)]
        assert list(answer.parts) == list(by)
        assert answer.entries == len(inside)
        close(answer.aggregates, aggregates_of([value for _, value in inside]))
        if lookback is None and inside:
            assert (answer.start, answer.end) == (min(inside)[0], now)
        elif lookback is not None:
            assert (answer.start, answer.end) == (now - lookback + 1, now)
        assert answer.key == (join([answer.parts[name] for name in PARTS]) if set(by) == set(PARTS) else None)
    window.check_invariants(alike)


@given(entries=entries_of, where=questions["where"])
def test_conditions_alone_answer_for_each_key_as_naming_it_does(entries, where):
    window = window_of(entries)
    names = [name for name in window.keys.names() if all(holds(each, split(name, 3)) for each in where)]
    for more in ({}, {"lookbacks": [7, 30]}, {"as_of": 20}, {"partials": True, "as_of": 40}):
        named = window.reader.query(Query(keys=names, **more)) if names else []
        selected = window.reader.query(Query(keys=ALL_KEYS, selection=Grouped(where=where), **more))
        assert [str(answer) for answer in selected] == [str(answer) for answer in named]
    assert window.key_names("", 100, 0, where) == (names, None)
    rows = sum(len(batch.times) for batch in window.reader.entries(EntriesQuery(where=where, keys=ALL_KEYS)))
    assert rows == sum(all(holds(each, key) for each in where) for key, *_ in entries)


@given(entries=entries_of, start=st.integers(-5, 40), wide=st.integers(1, 40), **questions)
def test_ranges_and_series_of_groups(entries, where, by, start, wide):
    window = window_of(entries)
    expected = groups_by_hand(entries, where, by)
    found = finished(window.reader.range_groups(RangeQuery(start, start + wide, selection=Grouped(where=where, by=by))))
    assert [tuple(answer.parts.values()) for answer in found] == list(expected)
    for answer, rows in zip(found, expected.values(), strict=True):
        close(answer.aggregates, aggregates_of([v for t, v in rows if start <= t <= start + wide]))
    series = finished(
        window.reader.series_groups(SeriesQuery(start, start + 30, 7, wide, selection=Grouped(where=where, by=by)))
    )
    assert [tuple(each.parts.values()) for each in series] == list(expected)
    for each, rows in zip(series, expected.values(), strict=True):
        for i, at in enumerate(each.times.tolist()):
            values = [v for t, v in rows if at <= t < at + wide]
            assert each.entries[i] == len(values)
            close({name: column[i] for name, column in each.aggregates.items()}, aggregates_of(values))
    if where:
        one = window.reader.range_query(RangeQuery(start, start + wide, selection=Grouped(where=where)))
        values = [v for rows in expected.values() for t, v in rows if start <= t <= start + wide]
        close(one.aggregates, aggregates_of(values))


@given(
    entries=entries_of,
    by=st.one_of(st.none(), questions["by"]),
    limit=st.integers(1, 4),
    names=st.permutations(range(9)),
)
def test_pages_together_are_all_answers(entries, by, limit, names):
    window = window_of(entries)
    there = window.keys.names()
    keys = [there[i] for i in names if i < len(there)] or ALL_KEYS
    every = window.reader.query(
        Query(keys=sorted(keys, key=there.index) if keys is not ALL_KEYS else keys, selection=Grouped(by=by))
    )
    found, position = [], ""
    while True:
        page = window.reader.query(Query(keys=keys, selection=Grouped(by=by, limit=limit, position=position)))
        assert len(page) <= limit
        found += page
        if page.position is None:
            break
        position = page.position
    assert [str(answer) for answer in found] == [str(answer) for answer in every]


def filled(keys, **more):
    """A window with an entry of each key."""
    window = Window(spec_of(**more))
    window.bulk_insert(Batch.of(window.spec, range(len(keys)), {"v": range(len(keys))}, keys))
    return window


def test_a_step_asks_a_regular_expression_for_a_bounded_time():
    """Where the expression takes RE2's slow way and the values are long, a step is a few of them."""
    long, short = ["ab" * 200] * 300, ["AA"] * 300
    steps = [sum(1 for _ in finding._fitting("(a|b)*a(a|b){20}c", values)) for values in (long, short)]
    assert (steps[0] > 40, steps[1] < 4) == (True, True)


def test_a_long_regular_expression_is_asked_about_one_value_in_a_step():
    values = ["ab" * 250] * 40
    assert finding.pattern("(?:[ab]?){800}c").programsize > 1_000
    assert sum(1 for _ in finding._fitting("(?:[ab]?){800}c", values)) >= len(values) - 1


def test_labels_of_forgotten_keys_are_forgotten():
    """Numbers of keys are used again; and after many keys have gone, their values leave memory."""
    clock = ManualClock()
    window = Window(spec_of(time_unit="s", idle_expiry="1s"), clock=clock)
    for step in range(8):
        keys = [f"k{step}-{i}|c|x" for i in range(1000)]
        window.bulk_insert(Batch.of(window.spec, [step] * 1000, {"v": [1] * 1000}, keys))
        (answer,) = window.reader.query(Query(selection=Grouped(by=["carrier"])))
        assert answer.entries == 1000
        window.check_invariants(alike)
        clock.advance(2 * 10**9)
        window.tidy()
    assert len(window.labels._table.labels[0].values) < 4000


def test_too_much_is_refused():
    window = filled(["a|b|c"])
    many = Where("airport", "=~", ["a"])
    for where in ([many] * 17, [Where("airport", "=", ["a"])] * 65, [Where("airport", "in", ["a"] * 100_001)]):
        told = refused(window.reader.query, Query(selection=Grouped(where=where)))
        assert (told.field, told.limit is not None) == ("where", True)
    for text in ("x" * 1025, "((a{0,30}){0,30}){0,9}", "(?:ab{500}){2}b{999}", "(", r"\pL{300}"):
        with pytest.raises(InvalidArgument, match="regular expression"):
            window.reader.query(Query(selection=Grouped(where=[Where("airport", "=~", [text])])))


def test_aggregates_that_need_the_order_of_entries_answer_by_all_parts_only():
    aggregates = {"all": {"function": "collect", "field": "v"}}
    window = Window(spec_of(aggregates=aggregates), pages=(2, 4), block=4)
    times, values = [5, 1, 9, 3, 7, 2, 8], [1, 2, 3, 4, 5, 6, 7]
    for key in ("a|b|c", "a|b|d"):
        n = 7 if key.endswith("c") else 3
        window.bulk_insert(Batch.of(window.spec, times[:n], {"v": values[:n]}, [key] * n))
    every = Query(selection=Grouped(by=["kind", "airport", "carrier"]))
    assert [answer.aggregates["all"] for answer in window.reader.query(every)] == [[2, 6, 4, 1, 5, 7, 3], [2, 1, 3]]
    series = finished(window.reader.series_groups(SeriesQuery(0, 10, 5, 10, selection=Grouped(by=list(PARTS)))))
    assert [each.aggregates["all"].tolist() for each in series] == [
        [[2, 6, 4, 1, 5, 7, 3], [1, 5, 7, 3]],
        [[2, 1, 3], [1, 3]],
    ]
    for by in ([], ["airport"], ["airport", "carrier"]):
        with pytest.raises(Unsupported, match=r"depends on the order.* keys together$"):
            window.reader.query(Query(selection=Grouped(by=by)))


def test_keys_that_are_one_text_are_labelled_by_it():
    document = spec_of().document()
    del document["keys"]
    window = Window(WindowSpec.parse(document))
    window.bulk_insert(Batch.of(window.spec, [1, 2, 3], {"v": [1, 2, 3]}, ["user-2", "user-1", "admin"]))
    found = window.reader.query(Query(selection=Grouped(where=[Where("key", "=~", ["user-.*"])], by=["key"])))
    assert [(answer.key, answer.parts) for answer in found] == [
        ("user-1", {"key": "user-1"}),
        ("user-2", {"key": "user-2"}),
    ]
    for where in (Where("key", "!=", ["admin"]), Where("key", "in", ["user-1", "user-2"]), Where("key", "!~", ["a.*"])):
        assert [answer.key for answer in window.reader.query(Query(selection=Grouped(where=[where])))] == [
            "user-2",
            "user-1",
        ]
    assert [answer.entries for answer in window.reader.query(Query(selection=Grouped(by=[])))] == [3]
    refused(window.reader.query, Query(selection=Grouped(by=["airport"])), match="they have key")


def test_a_series_of_several_keys_over_a_time_in_which_a_large_one_has_nothing():
    document = {"name": "w", "time_unit": "s", "keyed": True, "aggregates": {"sum": {"function": "sum"}}}
    window = Window(WindowSpec.parse(document))
    for key, first in (("a", 0), ("b", 20_000)):
        times = range(first, first + 10_000)
        window.bulk_insert(Batch.of(window.spec, times, {"value": [1.0] * 10_000}, [key] * 10_000))
    assert window.series(29_990, 30_010, 10, keys=ALL_KEYS).aggregates["sum"].tolist() == [10.0, 0.0]
    assert window.series(40_000, 40_010, 10, keys=ALL_KEYS).aggregates["sum"].tolist() == [0.0]


def test_series_of_groups_with_large_keys():
    """Keys with a forest of many blocks give panes, each to its own group."""
    window = Window(spec_of(), block=4)
    keys = [f"{airport}|AA|{kind}" for airport in ("a", "b", "c") for kind in "xy"]
    for i, key in enumerate(keys):
        window.bulk_insert(Batch.of(window.spec, range(90), {"v": [i] * 90}, [key] * 90))
    found = finished(window.reader.series_groups(SeriesQuery(0, 90, 45, selection=Grouped(by=["airport"]))))
    sums = [each.aggregates["sum"].tolist() for each in found]
    assert sums == [[45, 45], [225, 225], [405, 405]]


# ---------------------------------------------------------------- totals of keys that are kept between questions


NUMBERS = {
    **SUMS,
    "mean": {"function": "mean", "field": "v"},
    "max": {"function": "max", "field": "v"},
}
SPEC = {**COMMON, "name": "w", "fields": {"v": "float64", "w": "string"}, "aggregates": NUMBERS}
KEPT = {
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
@given(kind=st.sampled_from(list(KEPT)), writes=writes_until(30), pages=st.sampled_from([(2, 4), (4, 64)]))
def test_answers_are_those_of_a_window_that_keeps_none(kind, writes, pages):
    clocks = ManualClock(0), ManualClock(0)
    spec = WindowSpec.parse({**SPEC, **KEPT[kind]})
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
