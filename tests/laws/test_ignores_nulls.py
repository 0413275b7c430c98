"""An aggregate over rows with nulls is the aggregate over the rows without, and obeys the laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Collect, IgnoresNulls, Mean, laws
from tests.support.aggregates import every_case, label, samples
from tests.support.profile import THOROUGH

FEW = settings(max_examples=max(settings().max_examples // 6, 10))
TOLERANCES = {"skewness": 1e-7, "kurtosis": 1e-6, "linear_slope": 1e-7, "relative_variation": 1e-7}
ALL = every_case()
CASES = ALL if THOROUGH else list({type(each): each for each in ALL}.values())
"""What wraps them knows nothing of their parameters: one of each aggregate is enough."""


def with_marks(draw, inner, values):
    marks = st.lists(st.booleans(), min_size=len(values[0]), max_size=len(values[0]))
    return [np.array(draw(marks), np.bool_) for _ in range(len(inner.types))]


@pytest.mark.parametrize("inner", CASES, ids=label)
@FEW
@given(data=st.data())
def test_laws(inner, data):
    values = list(data.draw(samples(inner)))
    wrapped, tolerance = IgnoresNulls(inner, len(values)), TOLERANCES.get(inner.function)
    marks = with_marks(data.draw, inner, values)
    laws.check(wrapped, [*values, *marks], tolerance=tolerance)
    there = np.logical_and.reduce(marks)
    kept = inner.lower(inner.reduce([column[there] for column in values]))
    nothing = None if inner.function in ("sum", "decayed_sum") else inner.lower(inner.identity)
    found = wrapped.lower(wrapped.reduce([*values, *marks]))
    assert laws.close(kept if there.any() else nothing, found, tolerance or 1e-9)


@pytest.mark.parametrize("inner", CASES, ids=label)
@FEW
@given(data=st.data())
def test_partials_that_are_true_are_plausible_and_others_are_not(inner, data):
    values = list(data.draw(samples(inner)))
    n = len(values[0])
    if not n:
        return
    wrapped, marks = IgnoresNulls(inner, len(values)), with_marks(data.draw, inner, values)
    total = wrapped.reduce([*values, *marks])
    packed = wrapped.pack([total])
    assert not wrapped.implausible(packed, np.array([n])).any()
    assert wrapped.implausible(wrapped.pack([total]), np.array([max(total[0] - 1, 0)])).all() == (total[0] > 0)


def test_bytes_that_are_no_partial_are_refused():
    for wrapped in (IgnoresNulls(Mean(), 1), IgnoresNulls(Collect(), 1)):
        for data in (b"", b"\1", (0).to_bytes(8, "little") + b"[]", (-1).to_bytes(8, "little", signed=True) + b"[1]"):
            with pytest.raises(InvalidArgument):
                wrapped.decode(data)


@pytest.mark.parametrize("inner", CASES, ids=label)
def test_what_the_engine_asks_of_an_aggregate_is_what_the_inner_one_says(inner):
    wrapped = IgnoresNulls(inner, 1)
    for name in ("commutative", "exact", "answer", "schema", "large", "external", "values_per_entry"):
        assert getattr(wrapped, name) == getattr(inner, name), name
    assert wrapped.sparse_suffixes == inner.sparse_suffixes


def test_partials_that_cannot_be_are_implausible():
    """Fewer than no values, more values than entries, and a partial that the inner aggregate refuses."""
    for wrapped in (IgnoresNulls(Mean(), 1), IgnoresNulls(Collect(), 1)):
        value = (3.5,) if wrapped.fixed else ((1.0, 2.0),)
        found = [(-1, *(value if not wrapped.fixed else (-1, *value))), wrapped.identity]
        found += [(rows, *((inside, *value) if wrapped.fixed else value)) for rows, inside in ((2, 2), (4, 4))]
        assert wrapped.implausible(wrapped.pack(found), np.full(4, 3)).tolist() == [True, False, False, True]
    wrong = IgnoresNulls(Mean(), 1).pack([(2, 3, 3.5), (2, 2, 3.5)])
    assert IgnoresNulls(Mean(), 1).implausible(wrong, np.array([3, 3])).tolist() == [True, False]


def test_what_was_stored_is_restored_without_the_checks_of_what_is_sent(monkeypatch):
    inner = Collect()
    wrapped, partial = IgnoresNulls(inner, 1), (2, (1.0, 2.0))
    monkeypatch.setattr(inner, "restore", lambda data: ("restored", data))
    assert wrapped.restore(wrapped.encode(partial)) == (2, ("restored", inner.encode(partial[1])))
