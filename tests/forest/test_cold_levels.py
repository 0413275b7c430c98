"""Large partials in a tier: sketches and collections answer as from memory, and a window of them is not kept in it."""

import numpy as np
import pytest

from sash_engine.errors import DataLoss, Unavailable
from sash_engine.forest import Cache, Cold, Forest, Layout, external
from sash_engine.forest.external import ExternalPartials
from sash_engine.monoids import (
    Bloom,
    Collect,
    CollectDistinct,
    DistinctCount,
    First,
    FrequentItems,
    Histogram,
    Max,
    Min,
    Quantile,
    Sum,
)
from sash_engine.monoids.base import object_array
from sash_engine.monoids.pane import Pane
from tests.support.aggregates import LargeRootMeanSquare, RootMeanSquare
from tests.support.cold_model import Tier, referred

FIELDS = {"value": "int64"}
SKETCHES = {
    "users": (DistinctCount("int64", lg_k=6), ["value"]),
    "frequent": (FrequentItems("int64", limit=3), ["value"]),
    "median": (Quantile("int64"), ["value"]),  # of less than k entries in all, so that it is exact
    "sum": (Sum("int64"), ["value"]),
}


class Beside:
    """A cold forest and one in memory, which are told and asked the same."""

    def __init__(self, aggregates, block, budget):
        self.layout = Layout(FIELDS, aggregates, block)
        self.tier, self.cache = Tier(), Cache(budget)
        self.memory = Forest(self.layout)
        self.cold = Cold(self.tier.load, self.cache)
        self.forest = Forest(self.layout, self.cold)

    def both(self, method, *args):
        mine = getattr(self.forest, method)(*args)
        theirs = getattr(self.memory, method)(*args)
        self.cache.trim()
        if method == "series":
            mine, theirs = ([entries.tolist(), [c.tolist() for c in columns]] for entries, columns in (mine, theirs))
        assert mine == theirs
        return mine

    def land(self):
        """Store all, and have it in memory."""
        blocks = self.forest.pending_blocks()
        self.cold.landed([(block, self.tier.store(block)) for block in blocks])
        self.cache.trim()

    def cool(self):
        """Store all; nothing of it is in memory, and loads count from here."""
        self.land()
        budget, self.cache.budget_bytes = self.cache.budget_bytes, 0
        self.cache.trim()
        self.cache.budget_bytes = budget
        self.tier.calls.clear()

    def reopen(self):
        self.cool()
        image = self.forest.dump()
        released = self.cold.take_released()
        assert set(self.tier.blocks) == set(image.numbers) | set(released)
        self.tier.delete(released)
        self.cold = Cold(self.tier.load, self.cache)
        self.forest = Forest.restore(self.layout, self.cold, image)
        assert self.tier.calls == [], "neither loads anything"

    def check(self):
        self.both("query")
        lowered = lambda monoid, a, b: monoid.lower(a) == monoid.lower(b)  # noqa: E731
        self.forest.check_invariants(lowered)
        self.tier.check()
        assert set(self.tier.blocks) == referred(self.forest) | set(self.cold.released)


def test_what_is_large_is_kept_in_the_tier_and_what_is_small_is_not():
    small = [Sum("int64"), Min("string"), Max("string"), First("string"), Sum("float64"), Pane(Sum("int64"))]
    small += [RootMeanSquare(), Pane(RootMeanSquare())]
    large = [Collect("int64"), DistinctCount("int64"), Quantile(), FrequentItems("string"), Pane(DistinctCount())]
    large += [CollectDistinct(), Histogram(bounds=[0]), Bloom(), LargeRootMeanSquare(), Pane(LargeRootMeanSquare())]
    cold = Cold(None, Cache(0))
    for monoid in small + large:
        layout = Layout({"value": "string"}, {"a": (monoid, ["value"])})
        (seen,) = Forest(layout, cold)._directory.monoids
        # A compiled class shares the cache of isinstance with its base, `Monoid`, which then is wrong about others.
        assert (type(seen) is ExternalPartials) == (monoid in large)
        (seen,) = Forest(layout)._directory.monoids
        assert seen is monoid, "in memory nothing changes"


# -------------------------------------------------------------------- what is loaded

COLLECT = {"all": (Collect("int64"), ["value"])}


def filled(n=640, block=10, aggregates=COLLECT):
    """Entries 0..n, one a tick, all stored and nothing in memory."""
    beside = Beside(aggregates, block, 10**9)
    beside.both("bulk_insert", np.arange(n), [np.arange(n)])
    beside.cool()
    return beside


def kinds(beside):
    """What each load since brought: how many blocks, and how many partials."""
    partials = [[len(beside.tier.blocks[i]) == 1 for i in call] for call in beside.tier.calls]
    return [(call.count(False), call.count(True)) for call in partials]


def test_nothing_large_is_in_memory_once_it_is_stored():
    beside = filled()
    for i, level in enumerate(beside.forest._levels._levels):
        cells, ids = level.columns[0]
        assert (ids[: level.tail] >= 0).all(), f"level {i}"
        assert not any(cells[: level.tail]), f"level {i}"
    assert len(beside.tier.blocks) == 64 + 127
    assert (beside.cache.used_bytes, beside.cold.dirty) == (0, {})


@pytest.mark.parametrize(
    ("start", "end", "loads"),
    [
        (105, 524, [(2, 5)]),  # 11, 12..15, 16..31, 32..47, 48..51
        (100, 529, [(0, 6)]),  # 10..11, and to 52
        (105, 106, [(1, 0)]),
        (320, 639, [(0, 1)]),  # the newer half is one node
        (-9, 999, [(0, 33)]),  # the whole: 32 blocks that will be evicted next, and one node for the rest
        (990, 999, []),
    ],
)
def test_a_range_query_loads_ends_and_nodes_at_once(start, end, loads):
    beside = filled()
    beside.both("range_query", start, end)
    assert kinds(beside) == loads
    beside.both("range_query", start, end)
    assert kinds(beside) == loads, "it has them now"


def test_the_whole_of_a_restored_window_comes_at_once_with_the_head_that_is_half_evicted():
    beside = filled()
    beside.both("evict", 3)
    beside.reopen()
    beside.both("query")
    assert len(kinds(beside)) == 1
    assert kinds(beside)[0][0] == 1
    beside.both("query")
    assert len(kinds(beside)) == 1


def test_a_series_loads_the_nodes_of_all_its_wide_ranges_at_once():
    beside = filled()
    beside.both("series", np.array([0, 105, 300]), np.array([200, 305, 500]))
    assert kinds(beside) == [(2, 0), (0, 11)], "the blocks with bounds in them, and the nodes of all"


USERS = {"users": (DistinctCount("int64"), ["value"])}


@pytest.mark.parametrize(
    ("aggregates", "change", "loads"),
    [
        (COLLECT, ("insert", 105, (7,)), (1, 6)),  # its block, and one sibling on each level
        # Deferred: two partials and no block; on each level two siblings, until they have one parent.
        (USERS, ("bulk_insert", np.array([105, 405]), [np.array([-1, -2])]), (0, 2 + 2 + 2 * 4)),
        (
            COLLECT,
            ("replace", np.array([105, 115, 405]), [np.zeros(3, np.int64)]),
            (3, 9),
        ),  # on five levels the siblings
    ],
)
def test_a_change_loads_at_once_what_its_ancestors_are_made_of(aggregates, change, loads):
    beside = filled(aggregates=aggregates)
    beside.both(*change)
    assert kinds(beside) == [loads]
    if change[0] == "insert":
        assert len(beside.cold.released) == 1 + 7, "the block, its partial and those above it"
    beside.check()


def test_in_order_writes_load_nothing_as_long_as_the_ends_of_levels_are_cached():
    beside = filled()
    beside.both("query")
    beside.tier.calls.clear()
    for time in range(640, 700):
        beside.both("insert", time, (time,))
        if time % 20 == 0:
            beside.land()
    assert kinds(beside) == []
    beside.cool()
    beside.both("bulk_insert", np.arange(700, 900), [np.arange(200)])
    beside.forest.pending_blocks()
    assert len(kinds(beside)) <= 1, "else those that new nodes are made of come at once"
    beside.check()


# -------------------------------------------------------------------- what is released


def test_evicted_nodes_leave_the_tier_with_the_next_dump():
    beside = filled()
    beside.both("evict", 400)
    beside.reopen()
    assert len(beside.tier.blocks) == 24 + (24 + 12 + 6 + 3 + 1)
    beside.check()


def test_a_cut_moves_ids_and_makes_the_nodes_behind_it_anew():
    beside = filled()
    before = set(beside.tier.blocks)
    beside.both("bulk_insert", np.full(12, 105), [np.zeros(12, np.int64)])
    blocks = [call for call in kinds(beside) if call[0]]
    assert blocks == [(1, 0)]
    kept = beside.forest._directory.ids(11, 67)[0]
    assert np.count_nonzero(kept >= 0) == 53, "partials of blocks behind are stored as they were"
    assert referred(beside.forest) < before
    beside.check()
    beside.reopen()
    beside.check()


def test_new_blocks_behind_those_that_moved_back_release_nothing_of_them():
    """They come where blocks were before, whose partials are stored, and in use at another place."""
    beside = filled()
    beside.both("evict_between", 100, 149)
    beside.check()
    beside.both("bulk_insert", np.arange(1000, 1030), [np.zeros(30, np.int64)])
    beside.check()
    beside.reopen()
    beside.check()


def test_a_dropped_forest_releases_all_and_is_forgotten():
    beside = filled()
    beside.both("insert", 105, (7,))
    beside.both("query")
    assert beside.forest.pending_blocks(), "there is something to store"
    beside.forest.drop()
    assert set(beside.cold.released) == set(beside.tier.blocks)
    assert beside.cold.dirty == {}


def test_other_aggregates_keep_what_they_have_in_common():
    beside = filled(aggregates=COLLECT | USERS)
    users = set(beside.forest._directory.ids(0, 64)[1].tolist())
    collected = set(beside.forest._directory.ids(0, 64)[0].tolist())
    beside.layout = Layout(FIELDS, {"sum": (Sum("int64"), ["value"]), **COLLECT}, 10)
    beside.both("relayout", beside.layout)
    assert users <= set(beside.cold.released)
    assert not collected & set(beside.cold.released)
    beside.check()
    beside.layout = Layout(FIELDS, {name: SKETCHES[name] for name in ("users", "frequent")}, 10)
    beside.cool()
    beside.both("relayout", beside.layout)
    assert list(beside.cold.dirty), "there is something to store, though no block is"
    assert beside.cold.dirty_entries == 0
    assert collected <= set(beside.cold.released)
    beside.reopen()
    beside.check()


# -------------------------------------------------------------------- an aggregate that is large no more, or now


def with_rms(cls):
    return {"users": (DistinctCount("int64"), ["value"]), "rms": (cls("int64"), ["value"])}


def restored_as(beside, cls):
    """The forest restored from an image, where another version of a package says how large its partials are."""
    beside.cool()
    image = beside.forest.dump()
    beside.tier.delete(beside.cold.take_released())
    beside.layout = Layout(FIELDS, with_rms(cls), 10)
    beside.cold = Cold(beside.tier.load, beside.cache)
    beside.forest = Forest.restore(beside.layout, beside.cold, image)
    return image


@pytest.mark.parametrize("per_trip", [7, 4096])
def test_an_aggregate_that_is_large_no_more_is_read_into_memory(monkeypatch, per_trip):
    monkeypatch.setattr(external, "_PARTIALS_PER_TRIP", per_trip)
    beside = filled(aggregates=with_rms(LargeRootMeanSquare))
    beside.both("evict", 55)
    beside.both("query")
    image = restored_as(beside, RootMeanSquare)
    blocks = len(image.ids)
    sizes = [len(call) for call in beside.tier.calls]
    assert (sum(sizes), max(sizes)) == (blocks, min(per_trip, blocks)), "its partials of blocks; no more"
    users, rms = image.nodes.values()
    assert beside.cold.released == rms.tolist()
    assert set(users.tolist()) <= referred(beside.forest)
    beside.check()
    beside.both("range_query", 105, 524)
    beside.reopen()
    assert not set(beside.tier.blocks) & set(rms.tolist())
    beside.check()


def test_an_aggregate_that_is_large_now_is_stored_with_the_next_image():
    beside = filled(aggregates=with_rms(RootMeanSquare))
    beside.both("evict", 55)
    beside.both("query")
    before = set(beside.tier.blocks)
    restored_as(beside, LargeRootMeanSquare)
    assert beside.tier.calls == []
    assert list(beside.cold.dirty), "there is something to store, though no block is"
    beside.check()
    beside.both("range_query", 105, 524)
    beside.reopen()
    users, rms = beside.forest.dump().nodes.values()
    assert len(rms) == len(users)
    assert set(rms.tolist()) == set(beside.tier.blocks) - before
    beside.check()


def test_a_damaged_partial_of_an_aggregate_that_is_large_no_more_is_named():
    beside = filled(aggregates=with_rms(LargeRootMeanSquare))
    number = beside.forest._directory.ids(11, 12)[1].item()
    beside.tier.blocks[number] = [object_array([b"no JSON"])]
    with pytest.raises(DataLoss, match=f"stored partial {number} cannot be read"):
        restored_as(beside, RootMeanSquare)


# -------------------------------------------------------------------- what goes wrong


def test_a_damaged_partial_hurts_who_needs_it():
    beside = filled()
    number = beside.forest._directory.ids(11, 12)[0].item()
    beside.tier.blocks[number] = [object_array([b"no JSON"])]
    with pytest.raises(DataLoss, match=f"stored partial {number} cannot be read"):
        beside.forest.range_query(105, 524)
    beside.both("range_query", 100, 109)
    beside.both("range_query", 115, 524)
    beside.both("bulk_evict", 119)
    beside.both("query")
    beside.reopen()
    assert number not in beside.tier.blocks


def test_a_question_that_could_not_be_answered_can_be_asked_again():
    beside = filled()
    beside.reopen()
    for _ in range(3):
        beside.both("evict", 7)
        beside.cool()
        beside.tier.down = True
        with pytest.raises(Unavailable):
            beside.forest.query()
        with pytest.raises(Unavailable):
            beside.forest.range_query(305, 524)
        beside.tier.down = False
        beside.both("query")
        beside.both("range_query", 305, 524)
    beside.check()
