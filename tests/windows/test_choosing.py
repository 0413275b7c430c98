"""`top` and `having` keep of the answers that are shown those for which they hold, exactly, and break ties by name."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Grouped, Having, Query, RangeQuery, SeriesQuery, Top
from sash_engine.windows.reading import choosing, group_folds, group_series
from sash_engine.windows.reading.choosing import Column
from sash_engine.windows.reading.costs import MAX_ANSWERS
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.labels import join
from tests.support.asking import answers_of, question_of
from tests.support.refused import refusal
from tests.support.windows import functions

COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EDGES = (0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63) + 1)
FLOATS = (0.0, 0.5, -1.5, 2.0**53, 1e300, float("inf"), float("-inf"), float("nan"))
AGGREGATES = functions(
    n="count", sum="sum v", fsum="sum x", most="max v", middle="median v", often="mode v", mean="mean v", xmost="max x"
)
DOCUMENT = {
    "name": "w",
    "time_unit": "none",
    "keys": ["a", "b"],
    "fields": {"v": "int64", "x": "float64"},
    "aggregates": AGGREGATES,
}
NAMES = [*AGGREGATES, "entries"]

keys_of = st.tuples(st.sampled_from("zyx"), st.sampled_from("qp")).map(join)
entries_of = st.lists(
    st.tuples(keys_of, st.integers(0, 9), st.sampled_from(EDGES), st.sampled_from(FLOATS)), max_size=14
)
values_of = st.one_of(
    st.sampled_from(EDGES), st.sampled_from([each for each in FLOATS if each == each]), st.integers(-(2**80), 2**80)
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(choosing, "_VALUES", 2)
    monkeypatch.setattr(choosing, "_OBJECTS", 2)


def spec_of(**more):
    return WindowSpec.parse({**DOCUMENT, **more})


def batch_of(spec, entries):
    keys, times, values, floats = zip(*entries, strict=True)
    return Batch.of(spec, times, {"v": values, "x": floats}, keys)


def window_of(entries, **more):
    window = Window(spec_of(**more), pages=(2, 4), block=4)
    if entries:
        window.bulk_insert(batch_of(window.spec, entries))
    return window


def told(answer, name):
    return answer.entries if name == "entries" else answer.aggregates[name]


def known(value):
    return value is not None and value == value


def kept(answers, having):
    """What the answers that are shown say."""
    return [
        answer
        for answer in answers
        if all(known(v := told(answer, each.aggregate)) and COMPARE[each.op](v, each.value) for each in having)
    ]


def firsts(answers, top, by):
    """The best answers. Of equal ones, the first key, or the first group: groups are in the order of `by`."""
    answers = [answer for answer in answers if known(told(answer, top.by))]
    sign = 1 if top.order == "asc" else -1
    named = sorted(answers, key=lambda answer: answer.key if by is None else [answer.parts[part] for part in by])
    return sorted(named, key=lambda answer: sign * told(answer, top.by))[: top.n]


@given(
    entries=entries_of,
    by=st.sampled_from([None, [], ["a"], ["b", "a"]]),
    lookback=st.sampled_from([None, 2, 30]),
    as_of=st.sampled_from([None, 3]),
    having=st.lists(
        st.builds(Having, st.sampled_from(NAMES), st.sampled_from(list(COMPARE)), values_of), min_size=1, max_size=2
    ),
    top=st.builds(Top, st.sampled_from(NAMES), st.integers(1, 4), st.sampled_from(["asc", "desc"])),
    granularity=st.sampled_from([None, "2"]),
)
def test_they_keep_what_the_answers_that_are_shown_say(entries, by, lookback, as_of, having, top, granularity):
    window = window_of(entries, **({"granularity": granularity} if granularity else {}))
    which = {"by": by} if by is not None else {"keys": ALL_KEYS}
    asked = {**which, "lookbacks": [] if lookback is None else [lookback], "as_of": as_of}
    shown = window.reader.query(question_of(Query, **asked))
    same = [str(answer) for answer in kept(shown, having)]
    assert [str(answer) for answer in window.reader.query(question_of(Query, having=having, **asked))] == same
    best = [str(answer) for answer in firsts(shown, top, by)]
    assert [str(answer) for answer in window.reader.query(question_of(Query, top=top, **asked))] == best
    both = [str(answer) for answer in firsts(kept(shown, having), top, by)]
    assert [str(answer) for answer in window.reader.query(question_of(Query, having=having, top=top, **asked))] == both
    if by is not None:
        ranges = answers_of(window.reader, RangeQuery(3, 5, selection=Grouped(by=by)))
        again = answers_of(window.reader, RangeQuery(3, 5, selection=Grouped(by=by, having=having, top=top)))
        assert [str(answer) for answer in again] == [str(answer) for answer in firsts(kept(ranges, having), top, by)]
        series = answers_of(window.reader, SeriesQuery(3, 6, 1, selection=Grouped(by=by, having=having, top=top)))
        assert [each.parts for each in series] == [each.parts for each in again]


def test_the_largest_top():
    window = window_of([("x|p", 9, 5, 1.0)])
    assert len(window.reader.query(Query(selection=Grouped(by=["a"], top=Top("sum", MAX_ANSWERS))))) == 1
    for n in (0, MAX_ANSWERS + 1):
        assert refusal(
            window.reader.query,
            Query(selection=Grouped(by=["a"], top=Top("sum", n))),
            match=rf"top\.n {n} is out of range",
        ) == ("top.n", f"1 to {MAX_ANSWERS}")


@given(st.lists(st.one_of(st.none(), st.booleans(), values_of, st.floats()), max_size=9), st.data())
def test_columns_lose_nothing(answers, data):
    column = Column.of(answers)
    assert column.known.tolist() == [known(answer) for answer in answers]
    same = [(a, b) for a, b, there in zip(answers, column.values.tolist(), column.known.tolist(), strict=True) if there]
    assert all(a == b for a, b in same)
    cut = data.draw(st.integers(0, len(answers)))
    joined = Column.joined([Column.of(answers[:cut]), Column.of(answers[cut:])])
    assert [(a, t) for a, t in zip(joined.values.tolist(), joined.known.tolist(), strict=True) if t] == [
        (a, t) for a, t in zip(column.values.tolist(), column.known.tolist(), strict=True) if t
    ]
    having = Having("x", data.draw(st.sampled_from(list(COMPARE))), data.draw(values_of))
    left = finished(choosing.passing([having], {"x": column}, len(answers)))
    expected = [i for i, each in enumerate(answers) if known(each) and COMPARE[having.op](each, having.value)]
    assert left.tolist() == expected


MEASURED = functions(sum="sum x", mean="mean x", spread="stddev x", tilt="skewness x", slope="linear_slope x")


@pytest.mark.parametrize("many", [5, 10_000])
@pytest.mark.parametrize("by", [None, [], ["a"], ["b"]])
def test_an_answer_is_the_same_to_the_last_bit_whichever_others_are_chosen(monkeypatch, many, by):
    for module, name, value in ((group_folds, "_KEYS", 16), (group_folds, "_ROWS", 24), (group_folds, "_MANY", many)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(group_series, "KEYS", 7)
    monkeypatch.setattr(choosing, "_VALUES", 3)
    spec = spec_of(aggregates=MEASURED)
    window = Window(spec, pages=(2, 16), block=8)
    random = np.random.default_rng(7)
    of = random.integers(0, 90, 900) ** 2 // 90  # some keys have many entries, and a store of their own
    keys = [f"a{i % 7}|b{i % 5}" if i < 30 else f"a{i % 9}|c{i}" for i in of.tolist()]
    values = random.normal(size=900) * 10.0 ** random.integers(-3, 7, 900)
    window.bulk_insert(Batch.of(spec, np.arange(900), {"v": of, "x": values}, keys))
    which = {"by": by} if by is not None else {"keys": ALL_KEYS}
    for more in ({}, {"lookbacks": [400]}, {"as_of": 600}):
        whole = {shown_of(each): str(each) for each in window.reader.query(question_of(Query, **which, **more))}
        for chosen_by in (
            *({"top": Top("mean", n, "asc")} for n in (1, 2, 5, 8)),
            {"having": [Having("sum", ">", 0)]},
            {"having": [Having("spread", "<", 1e5)], "aggregates": list(MEASURED)},
            {"limit": 3},
        ):
            some = window.reader.query(question_of(Query, **which, **more, **chosen_by))
            assert [str(each) for each in some] == [whole[shown_of(each)] for each in some]
    if by is not None:
        whole = {shown_of(each): values_of_series(each) for each in answers_of(window.reader, series_by(by))}
        for n in (1, 3, 8):
            some = answers_of(window.reader, series_by(by, top=Top("mean", n)))
            assert [values_of_series(each) for each in some] == [whole[shown_of(each)] for each in some]


def series_by(by, **more):
    return SeriesQuery(0, 900, 90, 180, selection=Grouped(by=by, **more))


def shown_of(answer):
    return tuple(answer.parts.items())


def values_of_series(series):
    return str({name: column.tolist() for name, column in series.aggregates.items()})


@pytest.mark.parametrize("value", [2**53 + 1, 2**53 + 3, -(2**53) - 1, -(2**53) - 3, 10**400, -(10**400), 0.5, -0.5])
@pytest.mark.parametrize("op", list(COMPARE))
def test_a_value_between_two_numbers_of_a_column_is_neither(op, value):
    floats = [float(2**53 + each) for each in (-1, 0, 2, 4)]
    for numbers in ([*floats, *(-each for each in floats)], [0, 1, -1, 2**53 + 1], [2**64 + 1, 0.5]):
        left = finished(choosing.passing([Having("x", op, value)], {"x": Column.of(numbers)}, len(numbers)))
        assert left.tolist() == [i for i, each in enumerate(numbers) if COMPARE[op](each, value)]
