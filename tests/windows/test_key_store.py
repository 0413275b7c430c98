"""Forests and small keys: whatever happens to the store of a key, it answers with the fold.

A store is beside its model, a list of entries. The suite is the same for all stores.
`Collect` is the witness of order: its partials do not commute.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import Unavailable, Unsupported
from tests.support.forest_model import histories
from tests.support.refused import refused
from tests.support.store_lockstep import KINDS, OF_VALUES, TIERED, WIDER, lockstep

MORE = st.one_of(
    st.sampled_from([("sweep",), ("read",), ("cool",), ("cool",), ("restart",)]),
    st.tuples(st.just("capture"), st.integers(-20, 2), st.integers(-3, 20)),
)


@pytest.mark.parametrize("kind", KINDS)
@given(history=histories(span=12, bulk=20, length=25, between=MORE))
def test_any_history_is_answered_with_the_fold(kind, history):
    beside = lockstep(kind)
    beside.run(history)
    beside.read()


def filled(kind, times=range(40)):
    beside = lockstep(kind)
    beside.bulk([times[0], *np.diff(times).tolist()])
    beside.check()
    return beside


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_store_has_nothing_in_memory_or_in_the_tier(kind):
    beside = filled(kind)
    beside.cool()
    stored = set(beside.tier.blocks)
    beside.forest.drop()
    assert (len(beside.forest), beside.forest.oldest, beside.forest.newest) == (0, None, None)
    assert not beside.forest.sweep()
    if kind in TIERED:
        assert stored
        assert set(beside.cold.take_released()) == stored


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [[0], [39], [3, 4, 5], [0, 17, 38, 39], []])
def test_replaced_rows_have_the_new_values(kind, times):
    beside = filled(kind)
    values = np.arange(1000, 1000 + len(times))
    at, columns = beside.columns(np.array(times, np.int64), values)
    if len(at):
        beside.forest.replace(at, columns)
    for time, value in zip(times, values.tolist(), strict=True):
        beside.entries[time] = time, value
    beside.check()
    beside.run([("insert", 0), ("insert", 1), ("evict", 2), ("range", -20, 10)])


@pytest.mark.parametrize("kind", OF_VALUES)
def test_new_aggregates_are_computed_from_the_entries(kind):
    beside = filled(kind)
    beside.cool()
    beside.forest.relayout(WIDER)
    assert beside.forest.query() == [list(range(40)), 40, sum(range(40)), 39]
    assert beside.forest.range_query(3, 5) == (3, [[3, 4, 5], 3, 12, 5])


@pytest.mark.parametrize("kind", ["panes", "tiered panes"])
def test_without_values_there_are_no_new_aggregates(kind):
    beside = filled(kind)
    refused(beside.forest.relayout, WIDER, error=Unsupported)
    beside.check()


@pytest.mark.parametrize("kind", TIERED)
@pytest.mark.parametrize(
    "step",
    [
        ("bulk_evict", -15),
        ("evict_between", -30, 13),
        ("evict_while", 200),
        ("range", -30, 13),
        ("series", -30, 3, 5, 4),
        ("insert", -22),
        ("bulk", [-30, 9, 9, 30]),
        ("capture", -30, 13),
    ],
)
def test_a_store_that_cannot_load_is_as_it_was(kind, step):
    beside = filled(kind)
    beside.cool()
    beside.tier.down = True
    refused(getattr(beside, step[0]), *step[1:], error=Unavailable)
    beside.tier.down = False
    beside.check()
    getattr(beside, step[0])(*step[1:])
    beside.check()


@pytest.mark.parametrize("step", ["remove", "correct"])
def test_single_entries_change_only_once_they_are_loaded(step):
    beside = filled("tiered forest")
    beside.cool()
    times, values = (np.array(each) for each in zip(*beside.entries[:30:3], strict=True))
    beside.tier.down = True
    more = [] if step == "remove" else [[values + 1000]]
    refused(getattr(beside.forest, step), times, 1, values.tolist(), *more, error=Unavailable)
    beside.tier.down = False
    beside.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [-1, 0, 13, 100])
def test_captured_rows_stay_as_they_were(kind, width):
    beside = filled(kind)
    beside.cool()
    for after in (-50, -39, -30, -1, 0):
        beside.capture(after, width)
    beside.run([("insert", 0), ("bulk", [0, 1, 1]), ("evict", 20), ("read",)])


@pytest.mark.parametrize("kind", TIERED)
def test_captured_blocks_in_flight_need_no_tier(kind):
    """They may be released before the tier has them, and are never written then."""
    beside = filled(kind)
    for block in beside.forest.pending_blocks():
        block.stored = beside.tier.next = beside.tier.next + 1
    beside.capture(0, -1)
    beside.evict(40)
    beside.sweep()
    beside.read()


@pytest.mark.parametrize("kind", KINDS)
def test_a_predicate_is_asked_about_entries_and_rows_leave_whole(kind):
    beside = lockstep(kind)
    beside.run([("bulk", [0, 0, 1, 1, 0, 0, 1]), ("evict_while", 3), ("evict_while", 2**40), ("insert", 1)])
    assert len(beside.entries) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_leaves_from_the_middle_is_counted_in_entries(kind):
    beside = lockstep(kind)
    beside.run([("bulk", [0, 0, 1, 1, 0, 0, 1, 0]), ("evict_between", -2, 1), ("bulk_evict", -3), ("insert", 0)])
    assert len(beside.by_row(beside.entries)) == (1 if beside.panes else 3)


@pytest.mark.parametrize("kind", KINDS)
def test_evicting_up_to_a_time_before_all_loads_and_evicts_nothing(kind):
    beside = filled(kind)
    beside.cool()
    beside.run([("bulk_evict", -40)])
    beside.tier.down = True
    beside.forest.load_evicted(-1)
    assert beside.forest.bulk_evict(-1) == 0
    beside.tier.down = False
    beside.check()


@pytest.mark.parametrize("kind", TIERED)
@pytest.mark.parametrize("step", [("bulk_evict", -20), ("bulk_evict", -30), ("evict_between", -36, 15)])
def test_what_leaves_after_other_rows_of_its_block_is_loaded_before(kind, step):
    beside = filled(kind)
    beside.run([("bulk", [-38, 4, 4, 4]), ("evict", 3)])
    beside.cool()
    beside.run([step, ("insert", 1)])
