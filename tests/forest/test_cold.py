"""Blocks in a tier: the same answers as from memory, and no more loads than are needed."""

import contextlib
import sys
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sash_engine.errors import DataLoss, Unavailable
from sash_engine.forest import Cache, Cold, Forest, ForestImage, Layout
from sash_engine.monoids import Collect, Count, Last, Max, Min, Sum
from tests.support.cold_model import COLD_LAYOUTS, ColdLockstep, Tier, referred, storing
from tests.support.collector import no_collection
from tests.support.cooled import AGGREGATES, FIELDS, Cooled, forest_of
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


# -------------------------------------------------------------------- the cache


def test_the_cache_forgets_what_was_not_used_for_longest():
    cooled = Cooled(budget=3 * 160)
    for start in (105, 205, 305):
        cooled.forest.range_query(start, start + 1)
    cooled.forest.range_query(105, 106)
    cooled.forest.range_query(405, 406)
    assert (cooled.cache.used_bytes, len(cooled.cache)) == (4 * 160, 4)
    cooled.cache.trim()
    assert (cooled.cache.used_bytes, len(cooled.cache)) == (3 * 160, 3)
    cooled.tier.calls.clear()
    for start in (105, 305, 405):
        cooled.forest.range_query(start, start + 1)
    assert cooled.loads == []
    cooled.forest.range_query(205, 206)
    assert cooled.loads == [[20]]


def test_hits_and_misses_are_blocks_that_were_at_hand_and_that_were_not():
    cooled = Cooled()
    assert (cooled.cache.hits, cooled.cache.misses) == (0, 0)
    cooled.forest.range_query(105, 905)
    assert cooled.cache.misses == 2
    hits = cooled.cache.hits
    cooled.forest.columns()
    assert cooled.cache.misses == 100
    assert cooled.cache.hits >= hits + 2


def test_windows_share_a_budget_and_no_blocks():
    one = Cooled(40, budget=2 * 160)
    tier = Tier()
    cold = Cold(tier.load, one.cache)
    other = Forest(Layout(FIELDS, AGGREGATES, 10), cold)
    other.bulk_insert(np.arange(40), [np.full(40, 2.0)])
    cold.landed([(block, tier.store(block)) for block in other.pending_blocks()])
    assert one.cache.used_bytes == 4 * 160
    one.forest.range_query(5, 6)
    one.cache.trim()
    assert one.cache.used_bytes == 2 * 160
    assert other.range_query(5, 6) == (2, [4.0, 2.0])
    assert one.forest.range_query(5, 6) == (2, [11.0, 6.0])
    other.drop()
    one.cache.check_invariants()
    one.cache.trim()
    assert one.loads == [[0]]


def test_a_window_that_is_gone_leaves_the_cache():
    one = Cooled(40)
    cold = Cold(one.tier.load, one.cache)
    other = Forest(Layout(FIELDS, AGGREGATES, 10), cold)
    other.bulk_insert(np.arange(100), [np.ones(100)])
    flying = [(block, one.tier.store(block)) for block in other.pending_blocks(8)]
    cold.landed(flying[:6])
    one.forest.range_query(5, 15)
    assert len(one.cache) == 8
    cold.forget()
    cold.landed(flying[6:])
    assert (len(one.cache), one.cache.used_bytes) == (2, 320)
    one.checked()


def test_strings_count_once_a_block():
    tier, cache = Tier(), Cache(10**6)
    cold = Cold(tier.load, cache)
    forest = forest_of({"newest": (Last("string"), ["name"])}, cold, name="string")
    names = np.array(["a" * 1000, "b" * 10, "a" * 1000, "b" * 10], object)
    forest.bulk_insert(np.arange(4), [names])
    (block,) = forest.pending_blocks()
    expected = 4 * 16 + sys.getsizeof("a" * 1000) + sys.getsizeof("b" * 10)
    assert block.nbytes == expected
    cold.landed([(block, tier.store(block))])
    assert cache.used_bytes == expected


def test_a_block_that_stays_does_not_keep_the_bulk_it_came_with():
    tier, cache = Tier(), Cache(10**6)
    cold = Cold(tier.load, cache)
    forest = forest_of(AGGREGATES, cold)
    forest.bulk_insert(np.arange(4000), [np.ones(4000)])
    cold.landed([(block, tier.store(block)) for block in forest.pending_blocks()])
    block = cold.block(500)
    assert [column.base for column in block.columns] == [None, None]
    assert forest.range_query(2001, 2002) == (2, [2.0, 1.0])


# -------------------------------------------------------------------- ids


def test_an_edit_in_flight_releases_the_id_and_lands_as_nothing():
    cooled = Cooled(40)
    cooled.forest.insert(15, (1.0,))
    (block,) = cooled.forest.pending_blocks()
    number = cooled.tier.store(block)
    assert (block.stored, number, cooled.cold.dirty_entries) == (4, 4, 0)
    cooled.forest.insert(15, (2.0,))
    cooled.forest.insert(15, (3.0,))
    assert cooled.cold.released == [1, 4]
    cooled.cold.landed([(block, number)])
    assert len(cooled.cache) == 0, "nobody wants it any more"
    assert cooled.tier.blocks[4][0].tolist() == [10, 11, 12, 13, 14, 15, 15, 16, 17, 18, 19]
    cooled.tier.check()
    cooled.checked()


def test_what_is_in_flight_stays_in_memory():
    tier, cache = Tier(), Cache(0)
    cold = Cold(tier.load, cache)
    forest = Forest(Layout(FIELDS, AGGREGATES, 10), cold)
    forest.bulk_insert(np.arange(100), [np.ones(100)])
    assert cold.dirty_entries == 100
    flying = [(block, tier.store(block)) for block in forest.pending_blocks(6)]
    assert (len(flying), cold.dirty_entries, len(cold.dirty)) == (6, 40, 1)
    cache.trim()
    tier.down = True
    assert forest.range_query(5, 94)[0] == 90
    cold.landed(flying[:2])
    cache.trim()
    assert forest.range_query(25, 94)[0] == 70
    with pytest.raises(Unavailable):
        forest.range_query(5, 94)
    assert [len(owner.pending_blocks()) for owner in cold.dirty] == [4]


def test_an_id_is_given_once():
    cooled = Cooled(40)
    cooled.forest.insert(15, (1.0,))
    (block,) = cooled.forest.pending_blocks()
    block.stored = 17
    with pytest.raises(AssertionError, match="stored as 17 already"):
        block.stored = 18
    assert cooled.forest.pending_blocks() == [], "it has one"


def test_evicted_blocks_release_their_ids_bit_by_bit():
    cooled = Cooled()
    cooled.forest.range_query(5, 15)
    cooled.forest.evict(990)
    assert cooled.cold.released == []
    for i in range(1000, 1020):
        cooled.forest.insert(i, (1.0,))
    assert 0 < len(cooled.cold.released) < 20
    assert len(cooled.cache) == 0, "what is evicted is not cached"
    assert cooled.forest.sweep(5)
    cooled.cool()
    image = cooled.forest.dump()
    assert sorted(cooled.cold.take_released()) == list(range(99))
    assert image.ids.tolist() == [99, 100, 101]


def test_evicted_blocks_that_owe_a_look_release_what_they_would_have_looked_at():
    cooled = Cooled(100)
    cooled.forest.bulk_insert(np.array([5, 25, 95]), [np.zeros(3)])
    cooled.forest.evict(60)
    while cooled.forest.sweep():
        pass
    assert sorted(cooled.cold.released) == [0, 1, 2, 3, 4]
    cooled.forest.drop()
    assert sorted(cooled.cold.released) == list(range(10))
    assert cooled.loads == []
    cooled.cold.check_invariants()


@contextlib.contextmanager
def counted_calls():
    """The calls of functions, Python's and C's, that are made within."""
    calls = []

    def note(frame, event, argument):
        if event in ("call", "c_call"):
            calls.append(event)

    before = sys.getprofile()
    with no_collection():
        sys.setprofile(note)
        try:
            yield calls
        finally:
            sys.setprofile(before)


def test_a_bulk_evict_does_not_wait_for_its_ids():
    """2^25 entries of which none is in memory: dropping 2^23 costs what dropping one costs, give or take a look-up."""
    k = 2**15
    first = np.arange(k) * 1024
    image = ForestImage(
        head=0,
        skip=0,
        newest=k * 1024 - 1,
        ids=np.arange(k),
        first=first,
        last=first + 1023,
        counts=np.full(k, 1024),
        partials=[(np.full(k, 1024.0),)],
        tail=[np.empty(0, np.int64), np.empty(0)],
        room=8,
    )
    cold = Cold(lambda numbers: pytest.fail(f"{numbers} were loaded"), Cache(0))
    tracemalloc.start()
    forest = Forest.restore(Layout(FIELDS, {"sum": (Sum(), ["value"])}), cold, image)
    assert forest.query() == [2.0**25]
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < 160 * k, "bytes per block"
    for i in range(3):
        with counted_calls() as calls:
            assert (forest.evict(2**23) if i % 2 else forest.bulk_evict((i + 1) * 2**23 - 1)) == 2**23
        assert len(calls) < k // 32, "of the thousands of blocks, it looks at few"
        assert forest.query() == [2.0**23 * (3 - i)]
    assert cold.released == []
    assert len(forest.dump().ids) == k // 4
    assert cold.take_released() == list(range(k // 4 * 3))


# -------------------------------------------------------------------- images


@pytest.mark.parametrize("entries", [0, 1, 3, 4, 5, 41])
@pytest.mark.parametrize("evicted", [0, 1, 3, 6])
def test_an_image_is_the_forest_at_any_fill(entries, evicted):
    tier = Tier()
    cold = Cold(tier.load, Cache(0))
    aggregates = {"all": (Collect("string"), ["name"]), "newest": (Max("int64"), ["time"])}
    forest = forest_of(aggregates, cold, name="string")
    for i in range(entries):
        forest.insert(i // 2, (f"n{i}",))
    forest.evict(evicted)
    cold.landed([(block, tier.store(block)) for block in forest.pending_blocks()])
    image = forest.dump()
    answers = forest.query()
    copies = [Forest.restore(forest._layout, Cold(tier.load, Cache(0)), image) for _ in range(2)]
    forest.bulk_insert(np.array([0, 1, 99]), [np.array(["x", "y", "z"], object)])
    for copy in copies:
        assert (copy.query(), len(copy), image.entries) == (answers, max(entries - evicted, 0), len(copy))
        copy.bulk_insert(np.array([0, 1, 99]), [np.array(["x", "y", "z"], object)])
        assert copy.query() == forest.query()
        assert (copy.oldest, copy.newest) == (forest.oldest, forest.newest)
        copy.check_invariants()


@given(steps=histories(length=12), more=histories(bulk=5, between=st.tuples(st.just("evict"), st.just(1))))
def test_a_restored_forest_seals_and_grows_as_the_dumped_one(steps, more):
    """Replayed writes meet the same blocks as they did: what is dumped later is the same, but for the ids."""
    one = ColdLockstep(commuting_layout(16), 0)
    one.run(steps, check_every=100)
    one.dump()
    other = ColdLockstep(one.layout, 0)
    other.forest = Forest.restore(one.layout, Cold(one.tier.load, one.cache), one._saved[0])
    other.entries, other.arrivals, other.now = one.entries[:], one.arrivals, one.now
    found = []
    for lockstep in (one, other):
        lockstep.run(more, check_every=100)
        for block in lockstep.forest.pending_blocks():
            one.tier.store(block)
        image = lockstep.forest.dump()
        rows = [column.tolist() for column in (image.first, image.last, image.counts, *image.tail)]
        found.append((image.head, image.skip, image.newest, image.room, rows))
    assert found[0] == found[1]


def test_floats_round_as_they_did():
    """Blocks are paired as before, whatever was evicted before: range queries agree to the last bit."""
    cooled = Cooled(0)
    random = np.random.default_rng(5)
    cooled.forest.bulk_insert(np.arange(5000), [random.normal(size=5000) * 1e9])
    cooled.forest.evict(1234)
    cooled.cool()
    copy = Forest.restore(cooled.forest._layout, cooled.cold, cooled.forest.dump())
    for start, end in random.integers(1200, 5000, (50, 2)).tolist():
        assert copy.range_query(start, end) == cooled.forest.range_query(start, end)


def test_entries_that_are_only_counted():
    cooled = Cooled(100, aggregates={"n": (Count(), ["time"])})
    cooled.forest.insert(15, (1.0,))
    cooled.forest.evict(3)
    cooled.cool()
    copy = Forest.restore(cooled.forest._layout, cooled.cold, cooled.forest.dump())
    assert (copy.query(), copy.range_query(10, 19)) == ([98], (11, [11]))


def test_a_dump_needs_all_blocks_stored():
    forest = forest_of(AGGREGATES, Cold(Tier().load, Cache(0)))
    forest.bulk_insert(np.arange(10), [np.ones(10)])
    with pytest.raises(AssertionError, match="10 entries are in blocks that are not stored"):
        forest.dump()
    assert Forest(Layout(FIELDS, AGGREGATES)).pending_blocks() == []
