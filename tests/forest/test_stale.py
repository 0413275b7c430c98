"""Removals and corrections whose folding waits for a question: against the model, with few questions in between."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.forest import block as blocks
from sash_engine.forest import levels
from tests.support.cold_model import ColdLockstep
from tests.support.forest_model import LAYOUTS, ForestLockstep, histories
from tests.support.twins import a_share_of_examples

STORING = st.one_of(
    st.tuples(st.just("store"), st.sampled_from([1, None])),
    st.tuples(st.just("land"), st.sampled_from([1, None])),
    st.just(("trim",)),
    st.just(("dump",)),
    st.just(("restore",)),
)


def filled(kind="commuting", entries=160, block=16, cold=False):
    layout = LAYOUTS[kind](block)
    lockstep = ColdLockstep(layout, budget=2) if cold else ForestLockstep(layout)
    lockstep.run([("bulk", [1] * entries)])
    return lockstep


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(("most", "gone"), [(1, 64), (3, 2), (1_024, 64)])
@a_share_of_examples(3)
@given(steps=histories(span=90, bulk=20), check_every=st.sampled_from([3, 8, 50]))
def test_any_history_answers_as_the_fold_does(kind, most, gone, steps, check_every):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "_STALE", most)
        patch.setattr(levels, "_FEW", min(most, 4))
        patch.setattr(levels, "_ROWS", 24)
        patch.setattr(blocks, "_GONE", gone)
        lockstep = filled(kind, block=8)
        lockstep.run(steps, check_every)
        lockstep.check()


@pytest.mark.parametrize("kind", LAYOUTS)
@a_share_of_examples(2)
@given(steps=histories(span=90, bulk=20, between=STORING), check_every=st.sampled_from([3, 8, 50]))
def test_any_history_in_a_tier_answers_as_the_fold_does(kind, steps, check_every):
    lockstep = filled(kind, block=8, cold=True)
    lockstep.run(steps, check_every)
    lockstep.check()


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("step", ["remove", "correct"])
def test_a_change_folds_nothing_until_a_partial_is_read(step, cold):
    lockstep = filled(cold=cold)
    if cold:
        lockstep.cool()
    lockstep.range(-90, 60)  # levels are there
    lockstep.run([(step, [20, 22, 90])], check_every=9)
    directory, forest = lockstep.forest._directory, lockstep.forest
    assert directory.stale == {1, 5}
    directory.check_invariants(0)
    forest._levels.check_counts()
    assert len(forest) == len(lockstep.entries)
    assert forest.bulk_evict(3) == 3
    del lockstep.entries[:3]
    assert directory.stale == {1, 5}
    lockstep.range(-90, 60)
    assert not directory.stale
    lockstep.check()


@pytest.mark.parametrize("cold", [False, True])
def test_folding_many_blocks_leaves_rows_that_are_gone_in_them_until_they_are_read(cold):
    lockstep = filled(cold=cold)
    directory, forest = lockstep.forest._directory, lockstep.forest
    for _ in range(2):  # the second time rows are looked for in blocks that have lost some
        lockstep.run([("remove", [20, 22, 37, 53, 70, 90])], check_every=9)
        assert len(directory.stale) > 3
        assert forest.query() == lockstep.answers(lockstep.entries)
        assert not directory.stale
    assert any(len(directory.unsettled(position).gone or []) > 1 for position in range(10))
    lockstep.run([("correct", [20, 21, 22, 36, 37, 52, 53, 69, 70, 90])], check_every=9)
    assert any(directory.unsettled(position).gone for position in range(10))
    assert len(forest.columns()[0]) == len(lockstep.entries)
    assert not any(directory.unsettled(position).gone for position in range(10))
    lockstep.check()


def test_the_removal_that_brings_too_many_stale_blocks_folds_them(monkeypatch):
    monkeypatch.setattr(levels, "_STALE", 4)
    lockstep = filled()
    for block in range(1, 5):
        lockstep.run([("remove", [16 * block + 3 - (block - 1)])], check_every=9)
    assert lockstep.forest._directory.stale == {1, 2, 3, 4}
    lockstep.run([("remove", [16 * 5 + 3 - 4])], check_every=9)
    assert not lockstep.forest._directory.stale
    lockstep.check()


def test_a_block_that_loses_many_rows_takes_them_out(monkeypatch):
    """What is noted is bounded: rows that are gone leave the columns in time, and the block is still folded once."""
    monkeypatch.setattr(blocks, "_GONE", 3)
    lockstep = filled()
    lockstep.run([("remove", [18, 19, 20, 21])], check_every=9)
    directory = lockstep.forest._directory
    block = directory._blocks[1]
    assert (block.gone, block.rows, directory.stale) == (None, 12, {1})
    lockstep.check()


def test_first_and_last_rows_and_small_blocks_do_not_wait():
    """[16..31] [32..47]   the times of a block are those of rows that are there, and a small block is joined"""
    lockstep = filled()
    directory = lockstep.forest._directory
    lockstep.run([("remove", [16]), ("remove", [30])], check_every=9)
    assert directory._blocks[1].gone is None
    assert (directory.first(1), directory.last(1)) == (lockstep.entries[16][0], lockstep.entries[29][0])
    lockstep.run([("remove", list(range(17, 33)))], check_every=9)
    assert directory.count(1) == 14, "the rest went to the next block"
    lockstep.check()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_block_that_becomes_small_in_its_middle_does_not_wait(at_once):
    """[16 .. 31] [32 .. 33 44 .. 47]   its first and last row stay, and it goes together with the next block"""
    lockstep = filled()
    directory = lockstep.forest._directory
    lockstep.run([("remove", list(range(34, 44)))], check_every=9)
    steps = [("remove", list(range(17, 30)))] if at_once else [("remove", [17])] * 13
    lockstep.run(steps, check_every=99)
    assert [directory.count(position) for position in (0, 1, 2)] == [16, 9, 16]
    lockstep.check()


@pytest.mark.parametrize(("gone", "counts"), [(6, [10, 16]), (4, [12, 16])])
def test_the_head_is_small_or_empty_without_its_evicted_rows(gone, counts):
    """[0 .. 9 evicted | 10 .. 15] [16 .. 19 26 .. 31]"""
    lockstep = filled()
    lockstep.run([("remove", list(range(20, 26))), ("evict", 10), ("remove", list(range(gone)))], check_every=9)
    directory = lockstep.forest._directory
    assert [directory.count(directory.head + i) for i in (0, 1)] == counts
    lockstep.check()


def test_a_stale_block_that_goes_with_others_is_forgotten():
    """[0..15][16..31][32..47][48..63]…   blocks 1 and 3 lose all rows, some of which had left before"""
    lockstep = filled()
    lockstep.range(-90, 60)
    lockstep.run([("remove", [52, 105])], check_every=9)
    assert lockstep.forest._directory.stale == {3, 6}
    lockstep.run([("remove", [*range(16, 32), *range(48, 63)])], check_every=9)
    assert lockstep.forest._directory.stale == {4}
    lockstep.check()


@pytest.mark.parametrize(
    ("drop", "left"), [(("evict_between", -110, 40), {1, 4, 5}), (("bulk", [-110] + [0] * 12), {1, 8, 9})]
)
def test_blocks_that_move_stay_stale(drop, left):
    """[0..15][16..31]…   a range leaves from blocks 3 to 5, or a run comes into 3: those behind move"""
    lockstep = filled()
    lockstep.range(-90, 60)
    lockstep.run([("remove", [20, 105, 120])], check_every=9)
    assert lockstep.forest._directory.stale == {1, 6, 7}
    lockstep.run([drop], check_every=9)
    assert lockstep.forest._directory.stale == left
    lockstep.check()


def test_other_aggregates_are_computed_of_what_is_left():
    lockstep = filled()
    lockstep.run([("remove", [20, 22, 90]), ("correct", [40])], check_every=9)
    assert lockstep.forest._directory.stale
    lockstep.relayout(LAYOUTS["ordered"](16))
    lockstep.check()


def test_rows_captured_before_a_removal_stay():
    lockstep = filled()
    (first, second), entries = lockstep.forest.capture(17, 48), lockstep.entries[16:48]
    lockstep.run([("remove", [20, 40])])
    captured = [np.concatenate([np.asarray(s.columns[i])[s.first : s.stop] for s in (first, second)]) for i in (0, 1)]
    assert list(zip(*(column.tolist() for column in captured), strict=True)) == entries


@pytest.mark.parametrize("step", ["remove", "correct"])
def test_an_image_has_the_folds_of_what_is_there(step):
    """Stale blocks are folded before they are stored: afterwards that would load them again."""
    lockstep = filled(cold=True)
    lockstep.cool()
    lockstep.run([(step, [20, 22, 90])], check_every=9)
    assert lockstep.forest._directory.stale
    lockstep.dump()
    lockstep.land(None)
    lockstep.restore()
    lockstep.check()


@pytest.mark.parametrize("left", [60, 0])
def test_an_image_is_made_after_stale_blocks_were_evicted(left):
    """A removal makes block 1 stale, an eviction drops it, and no block is left that has to be stored."""
    lockstep = filled(cold=True)
    lockstep.cool()
    lockstep.run([("remove", [20, 22])], check_every=9)
    evicted = len(lockstep.entries) - left
    assert lockstep.forest.evict(evicted) == evicted
    del lockstep.entries[:evicted]
    directory = lockstep.forest._directory
    assert (directory.stale, directory.dirty) == ({1}, 0)
    lockstep.dump()
    lockstep.restore()
    lockstep.check()
