"""Questions that name aggregates: the same answers, without those that are not named, which nobody folds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument, Unsupported
from sash_engine.monoids import Monoid
from sash_engine.monoids.sketches import Quantile
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import (
    ALL_KEYS,
    Grouped,
    Having,
    Query,
    RangeQuery,
    SeriesQuery,
    Top,
    Where,
    selecting,
)
from sash_engine.windows.reading import reader
from sash_engine.windows.reading.reader import Reader
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.labels import join
from tests.support.asking import question_of
from tests.support.refused import refused
from tests.support.shelf import Shelf
from tests.support.stored import StorageServer
from tests.support.twins import a_share_of_examples

AGGREGATES = {
    "n": {"function": "count"},
    "sum": {"function": "sum", "field": "v"},
    "total": {"function": "sum", "field": "v"},
    "mean": {"function": "mean", "field": "v"},
    "low": {"function": "min", "field": "v"},
    "spread": {"function": "range", "field": "v"},
    "users": {"function": "distinct_count", "field": "v"},
}
KINDS = {
    "small keys and forests": {},
    "panes": {"granularity": 3},
    "rollups": {"rollups": [["airport"], []]},
    "no keys": {"keys": None},
    "by age": {"slide": {"max_age": 30}},
}
rows_of = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 60), st.integers(-9, 9)), max_size=60
)
shares_of = st.integers(0, 5).map(lambda first: slice(first, None, 6))
names_of = st.lists(st.sampled_from(list(AGGREGATES)), min_size=1, max_size=4)


def spec_of(kind, aggregates=AGGREGATES):
    document = {"name": "w", "time_unit": "none", "keys": ["airport", "carrier"], "fields": {"v": "int64"}}
    document |= {"aggregates": aggregates} | KINDS[kind]
    return WindowSpec.parse({name: value for name, value in document.items() if value is not None})


def fill(window, rows):
    for a in range(0, len(rows), 9):
        some = rows[a : a + 9]
        keys = [join(row[:2]) for row in some] if window.spec.keyed else None
        times, values = [row[2] for row in some], {"v": [row[3] for row in some]}
        window.bulk_insert(Batch.of(window.spec, times, values, keys))
    return window


def window_of(kind, rows, **more):
    return fill(Window(spec_of(kind), pages=(2, 4), block=4, clock=ManualClock(), **more), rows)


def with_a_view(kind, rows):
    """A window with a view of its youngest entries, and more aggregates than any question names."""
    window = window_of(kind, rows[: len(rows) // 2])
    document = {"name": "view", "of": "w", "slide": {"max_age": 20}, "aggregates": dict(AGGREGATES)}
    if kind != "panes":
        document["aggregates"]["p50"] = {"function": "quantile", "field": "v", "q": 0.5}
    view = window.derive(completed(WindowSpec.parse(document), window.spec))
    fill(window, rows[len(rows) // 2 :])
    return window, view


def asked(spec):
    """Questions of all kinds."""
    times = {"start": 5, "end": 40}
    if not spec.keyed:
        yield from (Query(), Query(lookbacks=[7, 40]), Query(as_of=30), Query(as_of=30, lookbacks=[9]))
        yield from (RangeQuery(**times), SeriesQuery(**times, step=7, width=9))
        yield from (Query(partials=True), RangeQuery(**times, partials=True))
        yield from (SeriesQuery(**times, step=7, partials=True), SeriesQuery(**times, step="", gap=2))
        return
    key = join(("a", "x"))
    for which in ({"key": key}, {"keys": [key, join(("b", "y"))]}, {"keys": ALL_KEYS}):
        yield from (Query(**which), Query(**which, lookbacks=[7, 40]), Query(**which, as_of=30, partials=True))
        yield from (RangeQuery(**times, **which), SeriesQuery(**times, step=7, **which))
        if "keys" in which:
            yield from (Query(**which, combine=True), Query(**which, combine=True, lookbacks=[9], partials=True))
    yield SeriesQuery(**times, step="", gap=2, key=key)
    for by in ([], ["airport"], ["carrier", "airport"]):
        yield from (
            Query(selection=Grouped(by=by)),
            Query(lookbacks=[9, 30], partials=True, selection=Grouped(by=by)),
            Query(selection=Grouped(by=by, limit=1)),
        )
        yield from (
            RangeQuery(partials=True, selection=Grouped(by=by), **times),
            SeriesQuery(step=7, selection=Grouped(by=by), **times),
        )
        some = {"by": by, "having": [Having("low", "<", 5)], "top": Top("sum", 2)}
        yield from (question_of(Query, **some), question_of(RangeQuery, **times, **some))
        yield question_of(SeriesQuery, **times, step=9, **some)
    yield from (
        Query(selection=Grouped(where=[Where("airport", "=", ["a"])])),
        Query(selection=Grouped(top=Top("mean", 3))),
        Query(selection=Grouped(having=[Having("n", ">", 2)])),
    )


def answer(window, question):
    """The answers of a question, and those of a page as a list."""
    reader = window.reader
    if isinstance(question, Query):
        assert str(finished(reader.query_steps(question))) == str(reader.query(question))
        return reader.query(question)
    if question.selection.is_grouped:
        groups = reader.range_groups if isinstance(question, RangeQuery) else reader.series_groups
        return list(finished(groups(question)))
    return [reader.range_query(question) if isinstance(question, RangeQuery) else reader.series(question)]


def only(found, names):
    """An answer without the aggregates that are not named."""
    names = [name for name in found.aggregates if name in names]
    partials = found.partials and {name: found.partials[name] for name in names}
    return replace(found, aggregates={name: found.aggregates[name] for name in names}, partials=partials)


def same(window, names, share=slice(None)):
    for question in list(asked(window.spec))[share]:
        expected = [only(each, names) for each in answer(window, question)]
        found = answer(window, selecting(question, aggregates=names))
        assert [str(each) for each in found] == [str(each) for each in expected], question
        assert all(list(each.aggregates) == [name for name in AGGREGATES if name in names] for each in found)


@pytest.mark.parametrize("kind", list(KINDS))
@a_share_of_examples(20)
@given(rows=rows_of, names=names_of, share=shares_of)
def test_the_answers_are_those_of_a_question_about_all(kind, rows, names, share):
    same(window_of(kind, rows), names, share)


@pytest.mark.parametrize("kind", ["small keys and forests", "panes", "no keys", "by age"])
@a_share_of_examples(20)
@given(rows=rows_of, names=names_of, share=shares_of)
def test_a_window_and_its_view(kind, rows, names, share):
    """Both fold their own aggregates, and of these those that are named."""
    window, view = with_a_view(kind, rows)
    same(window, names, share)
    same(view, names, share)


@a_share_of_examples(10)
@given(rows=rows_of, names=names_of, share=shares_of)
def test_blocks_and_large_partials_that_are_stored(rows, names, share):
    shelf = Shelf()
    window = window_of("no keys", [(*row[:2], i, row[3]) for i, row in enumerate(rows)], cold=shelf.cold)
    shelf.store(window)
    same(window, names, share)


@pytest.mark.parametrize("question", [Query(), Query(lookbacks=[99]), RangeQuery(7, 140), SeriesQuery(0, 200, 50)])
def test_stored_partials_of_others_are_not_loaded(question):
    def misses(names):
        shelf = Shelf()
        window = window_of("no keys", [("a", "x", i, i % 9) for i in range(200)], cold=shelf.cold)
        window.query()  # makes the nodes
        shelf.store(window)
        window, shelf = shelf.reopened(shelf.parts(window), clock=ManualClock())
        before = shelf.cold.cache.misses
        answer(window, selecting(question, aggregates=names))
        return shelf.cold.cache.misses - before

    assert misses(["sum"]) < misses(["users"]) <= misses([])


class Folded(Exception):
    """An aggregate was folded that nobody asked for."""


def forbid(monkeypatch, monoid):
    def refuse(*_):
        raise Folded(monoid)

    for name in ("lift", "combine", "lower", "reduce", "reduce_segments", "combine_columns", "fold", "lower_columns"):
        monkeypatch.setattr(monoid, name, refuse)


@pytest.mark.parametrize("kind", ["small keys and forests", "no keys", "by age"])
def test_no_other_aggregate_is_folded(kind, monkeypatch):
    rows = [("ab"[i % 2], "xy"[i // 2 % 2], i, i % 17 - 8) for i in range(60)]
    window, view = with_a_view(kind, rows)
    questions = [selecting(question, aggregates=["sum"]) for question in asked(window.spec)]
    monkeypatch.undo()
    forbid(monkeypatch, Quantile)
    for question in questions:
        answer(window, question)
        answer(view, question)
    for question in asked(window.spec):
        answer(window, question)  # it has no quantile; its view has
    with pytest.raises(Folded):
        answer(view, Query(key=join(("a", "x")) if window.spec.keyed else None))


@pytest.mark.parametrize("kind", ["small keys and forests", "panes"])
def test_only_named_aggregates_must_be_commutative(kind):
    aggregates = {"sum": AGGREGATES["sum"], "first": {"function": "first", "field": "v"}}
    window = fill(Window(spec_of(kind, aggregates)), [("a", "x", 1, 4), ("b", "x", 2, 5)])
    (found,) = window.query(keys=ALL_KEYS, combine=True, aggregates=["sum"])
    assert found.aggregates == {"sum": 9}
    for names in ((), ["first"], ["first", "sum"]):
        with pytest.raises(Unsupported, match=r"first depends on the order.*; ask for other aggregates: sum$"):
            window.query(keys=ALL_KEYS, combine=True, aggregates=names)
    by = {"by": ["carrier"], "aggregates": ["sum"]}
    assert [each.aggregates for each in window.reader.query(question_of(Query, **by))] == [{"sum": 9}]
    with pytest.raises(Unsupported, match="first depends on the order of entries"):  # it is compared
        window.reader.query(question_of(Query, having=[Having("first", ">", 0)], **by))


@pytest.mark.parametrize(
    "ask", ["query", "query_steps", "is_quick", "range_query", "range_steps", "series", "range_groups"]
)
def test_an_unknown_name_is_refused_with_those_that_there_are(ask):
    window = window_of("small keys and forests", [])
    question = {
        "r": RangeQuery(1, 9, selection=Grouped(by=[] if "groups" in ask else None)),
        "s": SeriesQuery(1, 9, 2),
    }.get(ask[0], Query())
    caught = refused(getattr(window.reader, ask), selecting(question, aggregates=["sum", "sums"]))
    assert caught.field == "aggregates"
    assert str(caught) == (
        "aggregates: window 'w' has no aggregate 'sums'; did you mean 'sum'? It has n, sum, total, mean, low, spread, "
        "users"
    )
    with pytest.raises(InvalidArgument, match="aggregates is a list of names"):
        getattr(window.reader, ask)(selecting(question, aggregates="sum"))


def test_readers_of_some_aggregates_are_kept_and_their_number_is_bounded(monkeypatch):
    monkeypatch.setattr(reader, "_KEPT", 2)
    window = window_of("no keys", [("a", "x", 1, 4)])
    made = []
    monkeypatch.setattr(reader, "Reader", lambda *given: made.append(given[7]) or Reader(*given))
    for names in (["sum", "n"], ["n", "sum", "n"], list(AGGREGATES), ["low"], ["n", "sum"], ["mean"], ["n", "sum"]):
        window.query(aggregates=names)
    assert made == [("n", "sum"), ("low",), ("mean",), ("n", "sum")]


async def test_a_service_keeps_them(monkeypatch):
    storage = await StorageServer().start()
    await storage.create(spec_of("no keys"))
    made = []
    monkeypatch.setattr(reader, "Reader", lambda *given: made.append(given[7]) or Reader(*given))
    for _ in range(3):
        storage.find("w").query(aggregates=["sum"])
    assert made == [("sum",)]
    await storage.stop()


def test_a_limit_of_memory_holds_for_readers_that_are_there_already():
    aggregates = {"sum": AGGREGATES["sum"], "all": {"function": "collect", "field": "v"}}
    window = fill(Window(spec_of("no keys", aggregates)), [("a", "x", i, i) for i in range(9)])
    window.query(aggregates=["all"])
    needed = []
    window.reader.limit_memory(needed.append)
    window.query(aggregates=["sum"])
    assert needed == []
    window.query(aggregates=["all"])
    assert needed


def test_monoids_have_the_methods_that_are_forbidden_here():
    assert issubclass(Quantile, Monoid)
    with pytest.MonkeyPatch.context() as monkeypatch:
        forbid(monkeypatch, Quantile)
