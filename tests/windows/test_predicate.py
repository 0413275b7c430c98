"""Slide predicates: what compiles, what is refused, and what holds."""

import pytest

from sash.errors import InvalidArgument
from sash.monoids import Collect, Count, Max, Mean, Sum
from sash.windows.predicate import Predicate

AGGREGATES = {"sum": Sum(), "n": Count(), "max": Max(), "mean": Mean(), "all": Collect()}


def test_the_prefix_may_leave_while_the_rest_is_enough():
    predicate = Predicate("total.sum - old.sum > 10.0", AGGREGATES)
    assert predicate.holds({"sum": 17.0}, {"sum": 3.0})
    assert not predicate.holds({"sum": 17.0}, {"sum": 7.0})


def test_whole_numbers_and_entries_are_there():
    predicate = Predicate("total.entries - old.entries >= 3 && total.n > 3 && size(old.all) >= 0", AGGREGATES)
    assert predicate.holds({"entries": 5, "n": 5}, {"entries": 2, "all": []})


def test_what_cannot_be_evaluated_does_not_hold():
    predicate = Predicate("old.max < total.max", AGGREGATES)
    assert not predicate.holds({"max": None}, {"max": None})
    assert not predicate.holds({}, {})


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
        ("true" + " && true" * 200, "too long"),
    ],
)
def test_a_bad_expression_is_refused(source, says):
    with pytest.raises(InvalidArgument, match=says) as caught:
        Predicate(source, AGGREGATES)
    assert caught.value.field == "slide.when"
