"""The laws themselves: an aggregate that is wrong in one place is caught, by the law that says so."""

import numpy as np
import pytest

from sash_engine.monoids import M4, Collect, Count, Max, Mean, Sum, Variance, laws
from sash_engine.monoids.laws import LAWS, LawBroken
from tests.support.aggregates import column

INTS = [np.array([3, 1, 4, 1, 5, 9, 2])]


class WrongAnswerType(Max):
    def lower(self, partial):
        return None if partial is None else str(partial)


class WrongSchema(Max):
    @property
    def schema(self):
        return ["float64"]


class WrongItems(Collect):
    @property
    def schema(self):
        return ["string"]


class WrongMembers(M4):
    @property
    def schema(self):
        return {**super().schema, "first": {"value": "float64", "time": "int64"}}


class LargeNumbers(Max):
    large = True


class WrongIdentity(Collect):
    identity = (0,)


class Difference(Sum):
    def combine(self, older, newer):
        return older - newer


class NotCommutative(Collect):
    commutative = True


class NoInverse(Max):
    invertible = True


class WrongInverse(Count):
    def uncombine(self, total, older):
        return total - older + 1


class UnflaggedInverse(Count):
    invertible = False


class SwappedReduce(Collect):
    def reduce(self, values):
        return tuple(values[0][::-1].tolist())


class ReduceOfNothing(Max):
    def reduce(self, values):
        return super().reduce(values) or 0


class LostLastSegment(Sum):
    def reduce_segments(self, values, starts):
        found = super().reduce_segments(values, starts)[0].copy()
        found[-1] -= values[0][-1]
        return (found,)


class OneSegmentTooFew(Max):
    def reduce_segments(self, values, starts):
        return (super().reduce_segments(values, starts)[0][:-1],)


class FloatSegments(Max):
    def reduce_segments(self, values, starts):
        return (super().reduce_segments(values, starts)[0].astype(np.float64),)


class WrongLift(Count):
    def lift_columns(self, values):
        return (np.arange(len(values[0])),)


class PrefixScan(Collect):
    def scan_suffix(self, values):
        return [tuple(values[0][: i + 1].tolist()) for i in range(len(values[0]))]


class SwappedPairs(Collect):
    def combine_columns(self, older, newer):
        return (newer[0] + older[0],)


class GreedyPairs(Sum):
    def combine_columns(self, older, newer):
        older[0][...] = older[0] + newer[0]
        return older


class FoldForgetsTheOddOne(Sum):
    def fold(self, partials):
        return sum(partials[0][: len(partials[0]) & ~1].tolist())


class WrongLowerColumns(Mean):
    def lower_columns(self, partials):
        return partials[1] / (partials[0] + 1)


class PutElsewhere(Max):
    def put(self, partials, index, partial):
        partials[0][0] = partial


class TakerOfTheFirst(Max):
    def taker(self, partials):
        return lambda index: partials[0].item(0)


class PutterToTheFirst(Variance):
    def putter(self, partials):
        return lambda index, partial: self.put(partials, 0, partial)


class LossyCoding(Sum):
    def encode(self, partial):
        return super().encode(partial % 4)


class GreedyCombine(Collect):
    """Partials are lists, and the older one grows."""

    identity = None

    def lift(self, value):
        return [value]

    def combine(self, older, newer):
        if older is None or newer is None:
            return newer if older is None else older
        older += newer
        return older

    def lower(self, partial):
        return partial

    def reduce(self, values):
        return values[0].tolist() or None


class GreedyReduce(Max):
    def reduce(self, values):
        values[0].sort()
        return super().reduce(values)


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (WrongAnswerType, "definition"),
        (WrongSchema, "definition"),
        (WrongItems, "definition"),
        (LargeNumbers, "definition"),
        (WrongIdentity, "identity"),
        (Difference, "identity"),
        (Difference, "associativity"),
        (NotCommutative, "commutativity"),
        (NoInverse, "inverse"),
        (WrongInverse, "inverse"),
        (UnflaggedInverse, "inverse"),
        (SwappedReduce, "reduction"),
        (ReduceOfNothing, "reduction"),
        (GreedyReduce, "reduction"),
        (LostLastSegment, "segments"),
        (OneSegmentTooFew, "segments"),
        (FloatSegments, "segments"),
        (WrongLift, "lifting"),
        (PrefixScan, "suffixes"),
        (SwappedPairs, "pairing"),
        (GreedyPairs, "pairing"),
        (FoldForgetsTheOddOne, "folding"),
        (WrongLowerColumns, "lowering"),
        (PutElsewhere, "packing"),
        (TakerOfTheFirst, "packing"),
        (PutterToTheFirst, "packing"),
        (LossyCoding, "coding"),
        (GreedyCombine, "definition"),
    ],
)
def test_caught(wrong, law):
    monoid = wrong("int64")
    with pytest.raises(LawBroken) as caught:
        laws.check(monoid, [column.copy() for column in INTS], laws=[law])
    assert caught.value.law == law
    assert caught.value.monoid is monoid
    assert wrong.__name__ in str(caught.value)


def test_every_law_catches_something():
    marks = next(mark for mark in test_caught.pytestmark if mark.name == "parametrize")
    assert {law for _, law in marks.args[1]} == set(LAWS)


def test_the_whole_check_finds_it_too():
    with pytest.raises(LawBroken, match="breaks suffixes"):
        laws.check(PrefixScan("string"), [column("string", ["a", "b"])])


def test_members_of_an_answer_must_be_those_of_the_schema():
    with pytest.raises(LawBroken, match="schema"):
        laws.check(WrongMembers("int64"), [*INTS, np.arange(len(INTS[0]))])


def test_tolerance():
    class Rounded(Sum):
        def reduce(self, values):
            return super().reduce(values) * (1 + 1e-6)

    values = [np.array([1.0, 2.0])]
    laws.check(Rounded(), values, tolerance=1e-5)
    with pytest.raises(LawBroken, match="expected"):
        laws.check(Rounded(), values)


@pytest.mark.parametrize(
    ("a", "b", "is_close"),
    [
        (1.0, 1, True),
        (True, 1, False),
        ((1, 2.0), [1, 2.0], True),
        (float("nan"), float("nan"), True),
        (float("inf"), 1e308, False),
        (float("inf"), float("-inf"), False),
        (0.0, -0.0, True),
        (None, 0.0, False),
        ("a", "b", False),
        ({"a": 1.0}, {"a": 1.0 + 1e-13}, True),
        ({"a": 1.0}, {"b": 1.0}, False),
    ],
)
def test_close(a, b, is_close):
    assert laws.close(a, b, 1e-12) is is_close
