"""Slide predicates: what compiles, what is refused, and what holds."""

import pytest

from sash_engine.monoids import Collect, Correlation, Count, Max, Mean, Sum
from sash_engine.windows.spec.predicate import MAX_SUMS, Predicate
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.refused import refusal, refused

AGGREGATES = {"sum": Sum(), "n": Count(), "max": Max(), "mean": Mean(), "all": Collect(), "r": Correlation()}
AGGREGATES["big"] = Sum("int64")


HOLDS = [
    ("total.sum - old.sum > 10.0", {"sum": 17.0}, {"sum": 3.0}, {"sum": 7.0}),
    (
        "total.entries - old.entries >= 3 && total.n > 3 && size(old.all) >= 0",
        {"entries": 5, "n": 5},
        {"entries": 2, "all": []},
        {"entries": 3, "all": []},
    ),
    ("total.r > old.r", {"r": 0.95}, {"r": 0.9}, {"r": None}),  # equal entries have no correlation
    ("old.max < total.max", {"max": 2.0}, {"max": 1.0}, {"max": None}),
    *[("total.big - 5 > old.big", {"big": total}, {"big": 7}, {"big": total}) for total in (2**63 - 1, 2**63, 2**70)],
    ("old.all[1] > 0.0", {}, {"all": [1.0, 1.0]}, {"all": [1.0]}),  # an index beyond the end
    ("6 / (old.n - 1) > 0", {}, {"n": 3}, {"n": 1}),  # by zero
    ("old.n * 3000000000000000000 > 0", {}, {"n": 3}, {"n": 4}),  # beyond int64
    ("int(old.max) > 0", {}, {"max": 1.0}, {"max": float("inf")}),
    ("old.mean > 0.0", {}, {"mean": 1.0}, {"mean": None}),
    ("old.n > 0", {}, {"n": 3}, {}),
]


@pytest.mark.parametrize(("source", "total", "old", "odd"), HOLDS)
def test_what_holds_and_what_does_not(source, total, old, odd):
    """It is evaluated when the write has been applied: whatever it raises must not come out."""
    predicate = Predicate(source, AGGREGATES)
    assert predicate.holds(total, old)
    assert not predicate.holds(total, odd)


def test_a_write_is_answered_where_the_condition_cannot_be_evaluated():
    """The second value of one: the first entry alone has none."""
    spec = {"name": "w", "aggregates": {"all": {"function": "collect"}}, "slide": {"when": "old.all[1] > 100.0"}}
    window = Window(WindowSpec.parse(spec))
    for time in range(3):
        assert window.insert(time, {"value": 1.0}, None).inserted == 1
    (answer,) = window.query(None, (), None)
    assert answer.aggregates == {"all": [1.0, 1.0, 1.0]}
    window.check_invariants()


def test_entries_are_not_an_aggregate():
    assert refused(Predicate, "old.entries > 5", {"entries": Sum()}).field == "aggregates.entries"


MACROS = "no macros (all, exists, exists_one, filter, map) and no matches"


@pytest.mark.parametrize(
    "source",
    [
        "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0].all(total, " * 8 + "true" + ")" * 8,
        "total.all.exists(old, old > 5.0)",
        "size(total.all.filter(total, true)) > 1",
        "size(total.all.map (total, 1)) > 1",
        "[1]. // why\n all // not\n (total, true)",
        "[1].exists_one(total, true)",
        "'a'.matches('(a{1000}){100}')",
    ],
)
def test_what_may_take_forever_is_refused_before_it_runs(source):
    assert refusal(Predicate, source, AGGREGATES) == ("slide.when", MACROS)


@pytest.mark.parametrize("long", [Collect(), Max("string")], ids=["list", "text"])
def test_many_additions_are_refused_where_an_answer_may_be_long(long):
    source = "total.sum" + " + 1.0" * (MAX_SUMS + 1) + " > 0.0"
    assert refusal(Predicate, source, {"sum": Sum(), "long": long}) == ("slide.when", f"{MAX_SUMS} additions")
    assert Predicate(source, {"sum": Sum()})


def test_an_aggregate_may_be_called_as_a_macro():
    assert Predicate("size(old.all) > 0 && old['map'] > 0.0", AGGREGATES | {"map": Sum()})


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("total.sum >", "compile"),
        ("", "compile"),
        ("total.median > 1.0", "no 'median'"),
        ("old['p95'] > 1.0", "no 'p95'"),
        ("true || total.nothing > 1", "no 'nothing'"),
        ("sum > 1.0", "not 'sum'"),
        ("total.sum", "no condition"),
        ("total.sum + 1 > 2.0", "evaluated"),
        ("total.all > 1", "evaluated"),
        ("total.all[9] > 1.0", "evaluated"),
        ("total.n / 0 > 1", "evaluated"),
        ("true" + " && true" * 200, "too long"),
    ],
)
def test_a_bad_expression_is_refused(source, says):
    assert refused(Predicate, source, AGGREGATES, match=says).field == "slide.when"
