"""Blocks in a tier: the same answers as from memory, and no more loads than are needed."""

import weakref

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sash_engine.errors import DataLoss, Unavailable
from sash_engine.forest import Layout
from sash_engine.monoids import Last, Min, Sum
from tests.support.cold_model import COLD_LAYOUTS, ColdLockstep, referred, storing
from tests.support.cooled import AGGREGATES, FIELDS, Cooled
from tests.support.forest_model import commuting_layout, histories, ordered_layout

BLOCKS = (1, 2, 3, 8)
BUDGETS = (0, 1, 1000)


@pytest.mark.parametrize("kind", COLD_LAYOUTS)
@pytest.mark.parametrize("block", BLOCKS)
@given(steps=histories(between=storing()), budget=st.sampled_from(BUDGETS), check_every=st.sampled_from([1, 4, 100]))
def test_any_history_answers_as_in_memory(kind, block, steps, budget, check_every):
    lockstep = ColdLockstep(COLD_LAYOUTS[kind](block), budget)
    for number, step in enumerate(steps, 1):
        lockstep.run([step], check_every=1 if number % check_every == 0 else 2)
        lockstep.trim()
    lockstep.check()
    lockstep.dump()
    lockstep.restore()
    lockstep.check()


@pytest.mark.parametrize("kind", COLD_LAYOUTS)
@given(steps=histories(), check_every=st.integers(1, 7), loads=st.integers(0, 2))
@example(  # the last sealed block is cut, and all of the tail but its end stays
    steps=[("bulk", []), ("bulk", []), ("bulk", [0, 0, 0, 0, 1]), ("evict_between", 0, 0)], check_every=1, loads=1
)
def test_whatever_cannot_be_loaded_changes_nothing(kind, steps, check_every, loads):
    """Every step is refused first, with nothing in memory that is stored."""
    lockstep = ColdLockstep(COLD_LAYOUTS[kind](3), 1)
    for number, step in enumerate(steps, 1):
        lockstep.refused(step, loads)
        if number % check_every == 0:
            lockstep.check()
        if number % 2:
            lockstep.cool()
    lockstep.check()


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("ordered", ("insert", -50)),
        ("ordered", ("bulk", [-90, 7, 7, 7, 80])),  # three blocks, and the tail
        ("ordered", ("bulk", [-50] + [0] * 30)),  # blocks between two halves of one
        ("commuting", ("insert", -50)),
        ("commuting", ("bulk", [-90] + [0] * 20 + [50, 60])),  # one of them is cut
        ("commuting", ("bulk", [-97, 50, 60])),  # one of them is the head
        ("ordered", ("bulk_evict", -50)),
        ("ordered", ("evict_while", 300)),
        ("ordered", ("range", -90, 80)),
        ("ordered", ("series", -90, 3, 5, 7)),
    ],
)
def test_a_refused_step_can_be_tried_again(kind, step):
    lockstep = ColdLockstep(COLD_LAYOUTS[kind](8), 0)
    lockstep.run([("bulk", [1] * 100), ("evict", 3), ("cool",)])
    assert lockstep.refused(step)
    lockstep.check()


@pytest.mark.parametrize("kind", COLD_LAYOUTS)
@given(steps=histories(length=15), more=histories(between=storing()))
def test_relayout_of_what_is_stored(kind, steps, more):
    lockstep = ColdLockstep(COLD_LAYOUTS[kind](2), 1)
    lockstep.run(steps, check_every=5)
    lockstep.cool()
    lockstep.relayout(commuting_layout(2))
    lockstep.check()
    lockstep.cool()
    lockstep.relayout(ordered_layout(2))
    lockstep.run(more, check_every=3)
    lockstep.check()


@pytest.mark.parametrize("kind", COLD_LAYOUTS)
@given(steps=histories(between=storing()))
def test_a_dropped_forest_leaves_nothing_behind(kind, steps):
    lockstep = ColdLockstep(COLD_LAYOUTS[kind](2), 3)
    lockstep.run(steps, check_every=100)
    lockstep.forest.drop()
    assert (len(lockstep.forest), lockstep.forest.newest) == (0, None)
    assert set(lockstep.cold.released) == set(lockstep.tier.blocks)
    assert (lockstep.cold.dirty, lockstep.cold.dirty_entries) == ({}, 0)
    lockstep.cold.check_invariants()
    lockstep.entries.clear()
    lockstep.check()


@pytest.mark.parametrize(
    ("start", "end", "loads"),
    [
        (105, 904, [[10, 90]]),  # two ends
        (100, 904, [[90]]),  # starts with a block
        (105, 899, [[10]]),  # ends with one
        (101, 102, [[10]]),  # within one
        (-5, 904, [[90]]),  # from before the oldest
        (105, 10**6, [[10]]),  # to behind the newest
        (-5, 10**6, []),  # the whole
        (2000, 3000, []),  # behind all
        (-9, -1, []),  # before all
    ],
)
def test_a_range_query_loads_its_ends_at_once(start, end, loads):
    cooled = Cooled()
    inside = np.arange(max(start, 0), min(end + 1, 1000)) * 1.0
    assert cooled.forest.range_query(start, end)[0] == len(inside)
    assert cooled.loads == loads
    assert cooled.forest.range_query(start, end)[1] == [inside.sum(), inside.max() if len(inside) else None]
    assert cooled.loads == loads, "it has them now"


def test_the_whole_and_what_comes_in_order_load_nothing():
    cooled = Cooled(1003)
    assert cooled.forest.query() == [502503.0, 1002.0]
    cooled.forest.insert(1003, (1.0,))
    cooled.forest.bulk_insert(np.arange(1004, 1100), [np.ones(96)])
    assert (cooled.forest.oldest, cooled.forest.newest) == (0, 1099)
    assert cooled.forest.query() == [502503.0 + 97, 1002.0]
    assert cooled.forest.range_query(1002, 1099)[0] == 98, "in the tail, as it was"
    assert cooled.loads == []


def test_evicting_loads_the_block_that_the_head_lands_in():
    cooled = Cooled()
    forest = cooled.forest
    assert forest.evict(105) == 105
    assert cooled.loads == []
    assert forest.query() == [sum(range(105, 1000)), 999.0]
    assert cooled.loads == [[10]]
    assert forest.evict(2) == 2
    assert forest.oldest == 107
    assert forest.query() == [sum(range(107, 1000)), 999.0]
    assert cooled.loads == [[10]]
    cooled.cool()
    assert forest.bulk_evict(304) == 198, "also from the middle of a block"
    assert cooled.loads == [[30]]
    assert forest.query() == [sum(range(305, 1000)), 999.0]
    assert forest.bulk_evict(399) == 95
    assert (forest.oldest, forest.bulk_evict(399), forest.bulk_evict(10)) == (400, 0, 0)
    assert cooled.loads == [[30]], "between two blocks"
    assert forest.evict_while(lambda entries, _: entries <= 155) == (155, 554)
    assert cooled.loads[1:] == [[40], [55]], "where it starts, as the first one is asked about, and where it lands"
    cooled.checked()


def test_a_series_loads_its_bounds_at_once_and_its_rows_at_once():
    cooled = Cooled()
    starts = np.array([105, 107, 411, 500])  # 105 107 109 ... 411 430 500 ... 590 ... 707   wide ones are dots
    stops = np.array([707, 109, 430, 590])
    entries, (total, largest) = cooled.forest.series(starts, stops)
    assert entries.tolist() == [602, 2, 19, 90]
    assert total.tolist() == [sum(range(a, b)) for a, b in zip(starts, stops, strict=True)]
    assert largest.tolist() == [b - 1.0 for b in stops]
    assert cooled.loads == [[10, 41, 70], list(range(42, 50))], "a time that a block starts with needs no look into it"
    cooled.cool()
    cooled.forest.evict(3)
    cooled.forest.series(np.array([-5]), np.array([2000]))
    assert cooled.loads == [[0]], "a wide one is folded"


def test_all_columns_come_at_once():
    cooled = Cooled(55)
    assert cooled.forest.columns()[0].tolist() == list(range(55))
    assert cooled.loads == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize(("first", "left"), [(5, [49, 49, 48, 45]), (15, [50, 49, 49, 45])])
def test_blocks_that_leave_with_deferred_rows_are_not_counted_any_more(first, left):
    """[...|...|...] newcomers in every second block; one block leaves, and then several"""
    cooled = Cooled()
    cooled.forest.bulk_insert(np.arange(first, 1000, 20), [np.full(50, 2.0)])
    for through, waiting in zip((9, 19, 29, 99), left, strict=True):
        cooled.forest.bulk_evict(through)
        assert cooled.cold.dirty_entries == waiting
        cooled.cold.check_invariants()
    assert cooled.loads == []


def test_deferred_rows_load_nothing_until_their_block_is_stored_or_read():
    """[...|...|...] newcomers in 50 of 100 blocks, again and again"""
    cooled = Cooled()
    late = np.arange(5, 1000, 20)
    for _ in range(3):
        cooled.forest.bulk_insert(late, [np.full(50, 2.0)])
    assert cooled.forest.query() == [499500.0 + 300, 999.0]
    assert cooled.loads == []
    assert cooled.cold.dirty_entries == 50 * 3, "what is in memory"
    assert cooled.cold.released == []
    assert cooled.forest.range_query(0, 5) == (9, [21.0, 5.0])
    assert cooled.loads == [[0]]
    assert cooled.cold.dirty_entries == 13 + 49 * 3
    assert cooled.cold.released == [0]
    blocks = cooled.forest.pending_blocks()
    assert cooled.loads == [[0], list(range(2, 100, 2))]
    assert sum(block.rows for block in blocks) == 50 * 13
    cooled.checked()
    cooled.cool()
    assert cooled.cold.dirty_entries == 0
    assert sorted(cooled.cold.released) == list(range(0, 100, 2))


def test_deferred_rows_that_are_stored_are_no_longer_in_memory():
    """A forest to which nothing more is written must not keep the last bulks for ever, beyond any cache's budget."""
    cooled = Cooled()
    bulks = []
    for first in (5, 6, 7):
        late, values = np.arange(first, 1000, 20), np.full(50, 2.0)
        cooled.forest.bulk_insert(late, [values])
        bulks += [weakref.ref(late), weakref.ref(values)]
        del late, values
    cooled.cool()
    assert all(bulk() is None for bulk in bulks)
    assert cooled.forest.range_query(0, 9) == (13, [51.0, 9.0])


def test_many_deferred_rows_do_not_load_either():
    """More notes than a block takes become one."""
    lockstep = ColdLockstep(Layout({"value": "int64"}, {"sum": (Sum("int64"), ["value"])}, 256), 0)
    lockstep.run([("bulk", [1] * 1000), ("cool",)])
    for i in range(150):
        lockstep.bulk([-1000 + 37 * i % 250, 500])
    assert lockstep.forest.query() == lockstep.answers(lockstep.entries)
    lockstep.tier.calls.clear()
    lockstep.check()
    assert lockstep.tier.calls[0] == [0]


def test_deferred_rows_load_the_head_and_what_will_be_cut():
    cooled = Cooled()
    cooled.forest.evict(3)
    late = np.concatenate((np.full(3, 5), np.full(15, 105), np.full(3, 205)))
    cooled.forest.bulk_insert(late, [np.zeros(21)])
    assert cooled.loads == [[0, 10]]
    assert sorted(cooled.cold.released) == [0, 10]
    assert set(cooled.tier.blocks) == referred(cooled.forest) | {0, 10}, "those behind have moved, with their ids"
    cooled.checked()


def test_splices_load_all_they_touch_at_once():
    ordered = {"last": (Last(), ["value"])}
    cooled = Cooled(aggregates=ordered)
    cooled.forest.bulk_insert(np.array([5, 105, 106, 505]), [np.zeros(4)])
    assert cooled.loads == [[0, 10, 50]]
    assert sorted(cooled.cold.released) == [0, 10, 50]
    cooled.forest.insert(507, (1.0,))
    cooled.forest.insert(607, (1.0,))
    assert cooled.loads == [[0, 10, 50], [60]]
    cooled.cool()
    cooled.forest.bulk_insert(np.full(8, 305), [np.zeros(8)])  # becomes a block of its own between two halves
    assert cooled.loads == [[30]]
    cooled.checked()


def test_replacing_loads_all_it_touches_at_once_and_writes_to_copies():
    cooled = Cooled()
    cooled.forest.replace(np.array([5, 107, 105]), [np.array([0.0, 7000.0, 0.0])])
    assert cooled.loads == [[0, 10]]
    assert cooled.forest.query() == [499500 - 5 - 107 - 105 + 7000.0, 7000.0]
    assert cooled.cold.released == [0, 10]
    cooled.tier.check()
    cooled.cool()
    assert cooled.forest.range_query(0, 109) == (110, [sum(range(110)) - 217 + 7000.0, 7000.0])
    cooled.checked()


def test_a_relayout_has_one_block_in_memory():
    cooled = Cooled(budget=10 * 16)
    used = []
    load = cooled.tier.load
    cooled.cold._load = lambda numbers: used.append(cooled.cache.used_bytes) or load(numbers)
    more = AGGREGATES | {"min": (Min(), ["value"]), "last": (Last(), ["value"])}
    cooled.forest.relayout(Layout(FIELDS, more, 10))
    assert cooled.loads == [[i] for i in range(100)]
    assert max(used) == 10 * 16, "before each load; with it one more"
    assert cooled.forest.query() == [499500.0, 999.0, 0.0, 999.0]
    cooled.cool()
    cooled.forest.relayout(Layout(FIELDS, AGGREGATES, 10))
    assert cooled.loads == [], "aggregates that go need nothing"


# -------------------------------------------------------------------- what goes wrong


def test_a_damaged_block_hurts_who_needs_its_rows():
    cooled = Cooled()
    forest = cooled.forest
    cooled.tier.damaged = {50}
    with pytest.raises(DataLoss, match="50"):
        forest.range_query(505, 700)
    with pytest.raises(DataLoss, match="50"):
        forest.columns()
    with pytest.raises(DataLoss, match="50"):
        forest.insert(505, (1.0,))
    with pytest.raises(DataLoss, match="50"):
        forest.bulk_insert(np.array([507, 507, 508, 1500]), [np.ones(4)])
    assert len(forest) == 1000
    assert forest.range_query(305, 704) == (400, [sum(range(305, 705)), 704.0])
    forest.bulk_insert(np.array([307, 702, 1500]), [np.ones(3)])
    assert forest.query() == [499503.0, 999.0]
    assert forest.evict(400) == 400
    assert forest.query()[1] == 999.0
    assert forest.bulk_evict(599) == 201
    assert forest.range_query(0, 10**6)[0] == len(forest)
    cooled.cool()
    cooled.forest.dump()
    assert 50 in cooled.cold.take_released()
    cooled.checked()


def test_a_block_with_other_rows_than_it_had_is_damaged():
    cooled = Cooled()
    cooled.tier.blocks[10] = [column[:9] for column in cooled.tier.blocks[10]]
    with pytest.raises(DataLoss, match="stored block 10 has 9 rows, not 10"):
        cooled.forest.range_query(105, 5000)


def test_while_the_tier_is_away_what_is_in_memory_answers():
    cooled = Cooled()
    cooled.forest.range_query(105, 904)
    cooled.tier.down = True
    assert cooled.forest.range_query(102, 907)[0] == 806
    assert cooled.forest.query() == [499500.0, 999.0]
    with pytest.raises(Unavailable):
        cooled.forest.range_query(102, 807)
    with pytest.raises(Unavailable):
        cooled.forest.series(np.array([3]), np.array([7]))
    cooled.forest.evict(15)
    with pytest.raises(Unavailable):
        cooled.forest.query()
    cooled.forest.evict(90)
    assert cooled.forest.query() == [sum(range(105, 1000)), 999.0]
    cooled.tier.down = False
    cooled.checked()
