"""Every algorithm by name, what each says it can do, and times for those that know none."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators import ALGORITHMS, Capability, InOrder, Timed, TimedInOrder, create
from sash_engine.errors import FailedPrecondition, InvalidArgument, Unsupported
from sash_engine.monoids import Collect, Max, Sum, Variance
from tests.support.aggregator_lockstep import WITNESSES, AggregatorLockstep

IN_ORDER = sorted(name for name, algorithm in ALGORITHMS.items() if issubclass(algorithm, InOrder))

FIRST_IN_FIRST_OUT = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 3)),
        st.tuples(st.just("insert"), st.integers(0, 3)),
        st.tuples(st.just("evict"), st.none()),
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@given(history=FIRST_IN_FIRST_OUT, witness=st.sampled_from(sorted(WITNESSES)))
def test_every_algorithm_serves_timed_windows(name, history, witness):
    """In order, with equal times: each insert is so many ticks after the youngest, none included."""
    if ALGORITHMS[name].inverts:
        witness = "sum"
    pair = AggregatorLockstep(lambda monoid: create(name, monoid), WITNESSES[witness]())
    now = 0
    for operation, argument in history:
        if operation == "insert":
            now += argument
            pair.insert(now)
        else:
            pair.evict()


@pytest.mark.parametrize("name", IN_ORDER)
def test_in_order_windows_refuse_what_they_cannot_do(name):
    window = create(name, Sum("int64"))
    for time in (1, 5, 9):
        window.insert(time, time)
    refused = {
        "takes entries in order of time only": lambda: window.insert(8, 1),
        "evicts the oldest entry only": lambda: window.evict(5),
        "inserts one entry at a time": lambda: window.bulk_insert([(10, 1)]),
        "evicts one entry at a time": lambda: window.bulk_evict(5),
        "answers over its whole window only": lambda: window.range_query(1, 5),
    }
    for why, call in refused.items():
        with pytest.raises(Unsupported, match=f"{window.algorithm} {why}"):
            call()
        window.check_invariants()
        assert (window.query(), len(window), window.oldest, window.youngest) == (15, 3, 1, 9)
    window.evict(1)  # the oldest, named
    assert window.oldest == 5


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_empty_window_answers_and_refuses(name):
    window = create(name, Collect("int64") if not ALGORITHMS[name].inverts else Sum("int64"))
    for _ in range(2):
        assert (window.query() or [], len(window), window.oldest, window.youngest) == ([], 0, None, None)
        if Capability.RANGE_QUERY in window.capabilities:
            assert window.range_query(-5, 5) == []
        for time in (None, 0) if Capability.EVICT_ANYWHERE in window.capabilities else (None,):
            with pytest.raises(FailedPrecondition):
                window.evict(time)
        window.insert(1, 1)
        window.evict()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_call_that_raises_changes_nothing(name):
    class Picky(Sum):
        def lift(self, value):
            if value < 0:
                raise ValueError("negative")
            return value

    window = create(name, Picky("int64"))
    window.insert(1, 1)
    with pytest.raises(ValueError, match="negative"):
        window.insert(2, -1)
    if Capability.EVICT_ANYWHERE in window.capabilities:
        with pytest.raises(FailedPrecondition, match="time 7") as error:
            window.evict(7)
        assert error.value.field == "time"
    else:
        with pytest.raises(Unsupported, match="time 0 comes before the youngest entry's 1") as error:
            window.insert(0, 1)
        assert (error.value.field, error.value.limit) == ("time", "1")
    if Capability.BULK_INSERT in window.capabilities:
        with pytest.raises(ValueError, match="negative"):
            window.bulk_insert([(1, 5), (3, -1)])
    window.check_invariants()
    assert (window.query(), len(window)) == (1, 1)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(IN_ORDER)))
@pytest.mark.parametrize("parameters", [{}, {"min_arity": 2}, {"chunk": 2}], ids=str)
def test_floats_are_grouped_alike_however_a_fold_came_about(name, parameters):
    """An append that extends a finger's total must round as recomputing it does: `check_invariants` compares."""
    if not set(parameters) <= set(inspect.signature(ALGORITHMS[name].__init__).parameters):
        return
    window = create(name, Variance(), **parameters)
    for time in range(150):
        window.insert(time - time % 4 // 3, 1 / (time + 3))
        if time % 3 == 0:
            window.evict()
        window.check_invariants()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_capabilities_say_which_members_have_a_meaning(name):
    """A flag is set exactly where a class, not the refusing base, defines the member."""
    algorithm = ALGORITHMS[name]
    if not issubclass(algorithm, Timed):
        assert algorithm.capabilities == Capability(0)
        return
    members = {
        Capability.BULK_INSERT: "bulk_insert",
        Capability.BULK_EVICT: "bulk_evict",
        Capability.RANGE_QUERY: "range_query",
    }
    for capability, member in members.items():
        defined = getattr(algorithm, member) is not getattr(Timed, member)
        assert (capability in algorithm.capabilities) == defined
    assert Capability.TIMED in algorithm.capabilities


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(IN_ORDER)))
def test_timed_windows_do_what_their_capabilities_say_and_refuse_the_rest(name):
    window = create(name, Sum("int64"))
    for time in (1, 5, 9):
        window.insert(time, time)
    calls = [
        (Capability.INSERT_ANYWHERE, lambda: window.insert(7, 7)),
        (Capability.EVICT_ANYWHERE, lambda: window.evict(5)),
        (Capability.BULK_INSERT, lambda: window.bulk_insert([(11, 11), (10, 10)])),
        (Capability.RANGE_QUERY, lambda: window.range_query(5, 9)),
        (Capability.BULK_EVICT, lambda: window.bulk_evict(6)),
    ]
    for capability, call in calls:
        if capability in window.capabilities:
            call()
        else:
            before = (window.query(), len(window))
            with pytest.raises(Unsupported):
                call()
            assert (window.query(), len(window)) == before
        window.check_invariants()


def test_unknown_algorithms_and_parameters_are_refused_by_name():
    with pytest.raises(InvalidArgument, match=r"known are .*daba_lite") as error:
        create("daba_heavy", Sum())
    assert error.value.field == "algorithm"
    with pytest.raises(InvalidArgument, match="takes no parameters") as error:
        create("daba", Sum(), min_arity=4)
    assert error.value.field == "min_arity"
    with pytest.raises(InvalidArgument, match="min_arity"):
        create("fiba", Sum(), min_arity=1)
    with pytest.raises(Unsupported, match="no exact inverse"):
        create("subtract_on_evict", Max())
    assert create("fiba", Sum(), min_arity=2).min_arity == 2


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_names_are_those_of_the_classes_and_their_files(name):
    algorithm = ALGORITHMS[name]
    assert algorithm.algorithm == name
    assert algorithm.__doc__
    assert "Source:" in inspect.getmodule(algorithm).__doc__


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_timed_window_of_an_in_order_algorithm_goes_by_its_name(name):
    window = create(name, Sum("int64"))
    assert isinstance(window, TimedInOrder)
    assert window.algorithm == name
    with pytest.raises(FailedPrecondition, match="empty"):
        window.evict()
