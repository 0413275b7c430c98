"""Deferred rows while they wait: they are handed out part by part, and whoever asks sees them wherever they are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sash_engine
from sash_engine.forest import Forest, Layout, inbox
from sash_engine.forest.block import Block
from sash_engine.forest.inbox import Inbox
from sash_engine.monoids import Sum
from tests.support.cold_model import ColdLockstep, storing
from tests.support.forest_model import LAYOUTS, ForestLockstep, histories


class Replacing(ForestLockstep):
    """With the step ("replace", -9): the first entry of some ten ticks from now - 9 on gets another value."""

    def replace(self, after):
        firsts = {}
        for i, (time, _) in enumerate(self.entries):
            firsts.setdefault(time, i)
        times = [time for time in firsts if self.now + after <= time < self.now + after + 10]
        values = list(range(self.arrivals, self.arrivals + len(times)))
        self.forest.replace(np.array(times, np.int64), [np.array(values, np.int64)])
        for time, value in zip(times, values, strict=True):
            self.entries[firsts[time]] = time, value
        self.arrivals += len(times)

    def other(self, kind):
        self.relayout(LAYOUTS[kind](self.layout.block))


class Memory(Replacing):
    """All in memory."""


class Stored(Replacing, ColdLockstep):
    """Two blocks in memory."""

    def __init__(self, layout):
        super().__init__(layout, budget=2)


@pytest.fixture
def small(monkeypatch):
    """Four bulks are merged, and two blocks get their notes with each of those behind."""
    monkeypatch.setattr(inbox, "_RUNS", 4)
    monkeypatch.setattr(inbox, "_SHARE", 2)


def late(lockstep, k):
    """Two rows, far from each other and from those of other k."""
    lockstep.bulk([-790 + 50 * (k % 7), 400])


def filled(kind, bulks, block=4):
    """400 entries, 2 apart, and late bulks that nobody has read."""
    lockstep = kind(LAYOUTS["commuting"](block))
    lockstep.run([("bulk", [2] * 400)])
    if kind is Stored:
        lockstep.cool()
    for k in range(bulks):
        late(lockstep, k)
    return lockstep


def noted(lockstep):
    blocks = lockstep.forest._directory._blocks
    return sum(len(block.pending or ()) for block in blocks if isinstance(block, Block))


def half_way(lockstep):
    waiting = lockstep.forest._directory._inbox
    return waiting is not None and waiting._merged is not None and 0 < waiting._given < len(waiting._merged.positions)


@pytest.mark.parametrize("kind", [Memory, Stored])
def test_a_bulk_pays_for_few_blocks(small, kind):
    lockstep, before, shares, parts = filled(kind, 0, block=16), 0, [], 0
    for k in range(40):
        late(lockstep, k)
        after = noted(lockstep)
        shares.append(after - before)
        before, parts = after, parts + half_way(lockstep)
    assert shares[:6] == [0, 0, 0, 0, 0, 2], "four wait, the fifth merges them, and then they go two by two"
    assert max(shares) == 2
    assert sum(shares) > 60
    assert parts > 10
    lockstep.check()


def test_many_rows_take_as_many_blocks_along(small):
    lockstep = filled(Memory, 5)
    lockstep.bulk([-700] + [50] * 5)
    assert noted(lockstep) == 6
    lockstep.check()


STEPS = [
    [("evict", 5)],
    [("evict", 90)],
    [("bulk_evict", -700)],
    [("bulk_evict", -200)],
    [("bulk_evict", 0)],
    [("range", -790, 700)],
    [("range", -790, 3), ("range", -390, 3), ("range", -741, 1)],
    [("series", -800, 40, 20, 30)],
    [("replace", -395), ("replace", -794)],
    [("other", "commuting")],
    [("other", "ordered"), ("bulk", [-600, 50, 50])],
    [("bulk", [-601] + [0] * 20)],
    [("bulk", [-600, 4, 4, 4]), ("bulk", [-600, 200])],
    [("insert", -790)] * 9,
    [("evict_while", 900)],
]
STORING = [
    [("store", 3), ("land", None)],
    [("cool",), ("range", -790, 700)],
    [("dump",), ("bulk", [-600, 100]), ("restore",)],
    [("dump",), ("restore",)],
    [("refused", ("range", -790, 400))],
    [("refused", ("bulk", [-601] + [0] * 20))],
]


@pytest.mark.parametrize("then", [0, 3, 9])
@pytest.mark.parametrize(
    ("kind", "steps"), [(kind, steps) for kind in (Memory, Stored) for steps in STEPS] + [(Stored, s) for s in STORING]
)
def test_while_a_hand_out_is_half_way(small, kind, steps, then):
    lockstep = filled(kind, 6)
    assert half_way(lockstep)
    lockstep.run(steps, check_every=99)
    if lockstep.entries:
        lockstep.range(-1000, 990)
    for k in range(then):
        late(lockstep, k)
    lockstep.check()


@pytest.mark.parametrize("kind", [Memory, Stored])
@given(
    steps=histories(span=350, bulk=6, between=st.tuples(st.just("bulk"), st.lists(st.integers(-200, 200), max_size=4))),
    stores=st.lists(storing(), max_size=3),
    runs=st.sampled_from([1, 2, 5]),
    share=st.integers(1, 3),
    check_every=st.sampled_from([9, 40]),
)
def test_any_history_answers_as_the_fold_does_however_little_goes_at_a_time(
    kind, steps, stores, runs, share, check_every
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inbox, "_RUNS", runs)
        patch.setattr(inbox, "_SHARE", share)
        lockstep = filled(kind, 6)
        for i, step in enumerate(stores if kind is Stored else ()):
            steps.insert(i * 7, step)
        lockstep.run(steps, check_every)
        lockstep.check()


def rows(*times):
    return [np.array(times, np.int64)]


def put(box, positions, head=0):
    """One row for each of some blocks; its time is the position. Returns who got notes before."""
    given = [position for position, _ in box.due(head, len(positions))]
    box.add(rows(*positions), np.array(positions), np.arange(len(positions) + 1))
    return given


def test_notes_come_in_order_of_arrival_and_once(small):
    """Six runs: 0..3 are merged, block 3 and the next get their notes of that, and what is read has its rows first."""
    box, given = Inbox(), []

    def values(notes):
        return [value for columns, a, b in notes for value in columns[1][a:b].tolist()]

    for number in range(6):
        given.append([(position, values([note])) for position, note in box.due(0, 1)])
        columns = [np.array([7, 7 + number % 4]), np.array([number, number])]
        box.add(columns, np.array([3, 5 + number % 4]), np.array([0, 1, 2]))
    assert given == [[], [], [], [], [], [(3, [0, 1, 2, 3]), (5, [0])]]
    assert values(box.take(6)) == [1, 5]
    assert values(box.take(5)) == [4]
    assert [(p, values([note])) for p, note in box.all(0)] == [(7, [2]), (8, [3]), (3, [4, 5])]
    assert [values(box.take(position)) for position in range(10)] == [[]] * 10
    assert list(box.all(0)) == []


def test_what_could_not_be_noted_is_given_again(small):
    box = Inbox()
    for _ in range(4):
        put(box, [3, 5])
    put(box, [9])
    giving = box.due(0, 1)
    assert next(giving)[0] == 3
    giving.close()
    assert [position for position, _ in box.due(0, 1)] == [3, 5]


def test_all_that_was_read_is_below_the_head(small):
    """9 has been given, and the runs behind have rows of 1 only, which was read and is dropped"""
    box = Inbox()
    for _ in range(5):
        put(box, [1, 9])
    put(box, [1])
    assert len(box.take(1)) == 2
    assert list(box.all(head=12)) == []
    assert (box._merged, box._runs, box._taken) == (None, [], {})


def test_dropped_blocks_get_no_notes_and_take_nobodys_turn(small):
    box = Inbox()
    for _ in range(5):
        put(box, [3, 5, 9, 12])
    assert put(box, [9], head=5) == [5, 9]
    assert [position for position, _ in box.all(head=12)] == [12, 12]


def test_the_newest_block_was_read_and_got_no_more(small):
    box = Inbox()
    for _ in range(5):
        put(box, [1, 9] if box.newest < 0 else [1])
    assert len(box.take(9)) == 1
    assert [position for position, _ in box.all(head=0)] == [1, 1]


def test_reading_blocks_without_rows_leaves_little(monkeypatch):
    monkeypatch.setattr(inbox, "_KNOWN", 5)
    box = Inbox()
    put(box, [10, 20])
    for _ in range(2):
        assert sum(len(box.take(position)) for position in range(100)) in (2, 0)
    assert set(box._taken) == {10, 20}
    assert len(box._without) <= 5
    put(box, [10, 11, 99])
    assert [len(box.take(position)) for position in (10, 11, 99, 98, 20)] == [1, 1, 1, 0, 0]


@pytest.mark.skipif(sash_engine.compiled(), reason="functions of compiled modules cannot be replaced")
@pytest.mark.parametrize("kind", [Memory, Stored])
@pytest.mark.parametrize("bulk", [[-790, 300], [-601] + [0] * 20, [-601] + [0] * 5])
def test_no_row_is_lost_where_memory_runs_out(small, monkeypatch, kind, bulk):
    """A merge that fails has changed nothing, whether it is time for it or rows move on; the bulk can come again."""
    lockstep = filled(kind, 4)

    def too_much(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(inbox, "starts_of_runs", too_much)
        with pytest.raises(MemoryError):
            lockstep.bulk(bulk)
    assert lockstep.forest.query() == lockstep.answers(lockstep.entries)
    columns = [column.tolist() for column in lockstep.forest.columns()]
    assert list(zip(*columns, strict=True)) == lockstep.entries
    lockstep.bulk(bulk)
    lockstep.check()


@pytest.mark.parametrize("entries", [8, 700])
@pytest.mark.parametrize(("start", "end"), [(2, 5), (2, 3), (4, 7)])
def test_the_sum_of_negative_zeros_is_one(entries, start, end):
    """[-0 -0][-0 -0][-0 -0] the fold of whole blocks begins with the first of them, paired or not"""
    forest = Forest(Layout({"value": "float64"}, {"sum": (Sum(), ["value"])}, 2))
    forest.bulk_insert(np.arange(entries), [np.full(entries, -0.0)])
    forest.query()
    _, (total,) = forest.range_query(start, end)
    assert math.copysign(1, total) == -1
