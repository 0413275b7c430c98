"""Questions that name aggregates: the same answers, without those that are not named, which nobody folds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import Unsupported
from sash_engine.monoids import Monoid
from sash_engine.monoids.sketches import Quantile
from sash_engine.windows.questions import (
    ALL_KEYS,
    EntriesQuery,
    Grouped,
    Having,
    Query,
    RangeQuery,
    SeriesQuery,
    Top,
    selecting,
)
from sash_engine.windows.reading import reader
from sash_engine.windows.reading.reader import Reader
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.asking import answers_of, question_of
from tests.support.refused import refused
from tests.support.shelf import Shelf
from tests.support.stored import StorageServer
from tests.support.twins import a_share_of_examples
from tests.support.viewed import COMMON, SUMS, bulk, questions_about
from tests.support.windows import functions

AGGREGATES = SUMS | functions(total="sum v", mean="mean v", low="min v", spread="range v", users="distinct_count v")
KINDS = {
    "small keys and forests": {},
    "panes": {"granularity": 3},
    "rollups": {"rollups": [["a"], []]},
    "no keys": {"keys": None},
    "by age": {"slide": {"max_age": 30}},
}
keys_of = st.sampled_from(["x|y", "x|z", "q|y"])
rows_of = st.lists(st.tuples(keys_of, st.integers(0, 60), st.integers(-9, 9)), max_size=60)
shares_of = st.integers(0, 11).map(lambda first: slice(first, None, 12))
names_of = st.lists(st.sampled_from(list(AGGREGATES)), min_size=1, max_size=4)


def spec_of(kind, aggregates=AGGREGATES):
    document = {**COMMON, "name": "w", "time_unit": "none", "aggregates": aggregates} | KINDS[kind]
    return WindowSpec.parse({name: value for name, value in document.items() if value is not None})


def fill(window, rows):
    for a in range(0, len(rows), 9):
        window.bulk_insert(bulk(window.spec, rows[a : a + 9]))
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
    questions = [each for each in questions_about(spec) if not isinstance(each, EntriesQuery)]
    if not spec.keyed:
        return questions
    some = {"by": ["a"], "having": [Having("low", "<", 5)], "top": Top("sum", 2)}
    times = {"start": 5, "end": 40}
    return [
        *questions,
        *(question_of(Query, **some), question_of(RangeQuery, **times, **some)),
        question_of(SeriesQuery, **times, step=9, **some),
        Query(selection=Grouped(top=Top("mean", 3))),
    ]


def answer(window, question):
    """The answers of a question, and those of a page as a list."""
    return list(answers_of(window.reader, question))


def only(found, names):
    """An answer without the aggregates that are not named."""
    names = [name for name in found.aggregates if name in names]
    partials = found.partials and {name: found.partials[name] for name in names}
    return replace(found, aggregates={name: found.aggregates[name] for name in names}, partials=partials)


def same(window, names, share=slice(None)):
    for question in asked(window.spec)[share]:
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
    for window in with_a_view(kind, rows):
        same(window, names, share)


@a_share_of_examples(10)
@given(rows=rows_of, names=names_of, share=shares_of)
def test_blocks_and_large_partials_that_are_stored(rows, names, share):
    shelf = Shelf()
    window = window_of("no keys", [(key, i, value) for i, (key, _, value) in enumerate(rows)], cold=shelf.cold)
    shelf.store(window)
    same(window, names, share)


@pytest.mark.parametrize("question", [Query(), Query(lookbacks=[99]), RangeQuery(7, 140), SeriesQuery(0, 200, 50)])
def test_stored_partials_of_others_are_not_loaded(question):
    def misses(names):
        shelf = Shelf()
        window = window_of("no keys", [("x|y", i, i % 9) for i in range(200)], cold=shelf.cold)
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
    rows = [(("x|y", "x|z", "q|y")[i % 3], i, i % 17 - 8) for i in range(60)]
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
        answer(view, Query("x|y" if window.spec.keyed else None))


@pytest.mark.parametrize("kind", ["small keys and forests", "panes"])
def test_only_named_aggregates_must_be_commutative(kind):
    aggregates = {"sum": AGGREGATES["sum"], "first": {"function": "first", "field": "v"}}
    window = fill(Window(spec_of(kind, aggregates)), [("x|y", 1, 4), ("q|y", 2, 5)])
    (found,) = window.query(keys=ALL_KEYS, combine=True, aggregates=["sum"])
    assert found.aggregates == {"sum": 9}
    for names in ((), ["first"], ["first", "sum"]):
        with pytest.raises(Unsupported, match=r"first depends on the order.*; ask for other aggregates: sum$"):
            window.query(keys=ALL_KEYS, combine=True, aggregates=names)
    by = {"by": ["b"], "aggregates": ["sum"]}
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
    refused(getattr(window.reader, ask), selecting(question, aggregates="sum"), match="aggregates is a list of names")


def test_readers_of_some_aggregates_are_kept_and_their_number_is_bounded(monkeypatch):
    monkeypatch.setattr(reader, "_KEPT", 2)
    window = window_of("no keys", [("x|y", 1, 4)])
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
    window = fill(Window(spec_of("no keys", aggregates)), [("x|y", i, i) for i in range(9)])
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
