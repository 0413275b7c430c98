"""Random and exhaustive histories against a sorted list, at block sizes around every edge."""

import itertools
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sash_engine.aggregators.recalc import Recalc
from sash_engine.forest import Layout, inbox
from sash_engine.monoids import Collect, Max, Min, Range
from tests.support.cold_model import ColdLockstep
from tests.support.forest_model import LAYOUTS, ForestLockstep, histories

BLOCKS = (1, 2, 3, 8, 1024)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("block", BLOCKS)
@given(steps=histories())
def test_any_history_answers_as_the_fold_does(kind, block, steps):
    ForestLockstep(LAYOUTS[kind](block)).run(steps)


@pytest.mark.parametrize("block", [2, 8])
@given(steps=histories())
@example(steps=[("insert", 0), ("insert", 0), ("correct", [0])])
def test_agrees_with_recalculation(block, steps):
    """The oracle that ships: another model than the one beside this test, so that both are checked."""
    lockstep = ForestLockstep(LAYOUTS["ordered"](block))
    oracle = Recalc(Collect("int64"), equal_times="keep")
    for step in steps:
        before = lockstep.arrivals
        lockstep.run([step])
        arrived = [(time, value) for time, value in lockstep.entries if value >= before]
        oracle.bulk_insert(sorted(arrived, key=lambda entry: entry[1]))
        if step[0] in ("evict_between", "remove", "correct"):
            # As if the entries had never come, or had come as they are now. A corrected one stays in its place.
            oracle = Recalc(Collect("int64"), equal_times="keep")
            oracle.bulk_insert(lockstep.entries)
        oracle.evict_count(len(oracle) - len(lockstep.entries))
        assert lockstep.forest.query()[0] == oracle.query()
        if oracle.oldest is not None:
            middle = (oracle.oldest + oracle.youngest) // 2
            assert lockstep.forest.range_query(middle, middle + 5)[1][0] == oracle.range_query(middle, middle + 5)


SHORT = [
    ("insert", 1),
    ("insert", -1),
    ("bulk", [-1, 1, 1]),
    ("bulk", [1, 0, 0, 1]),
    ("evict", 1),
    ("evict", 2),
    ("bulk_evict", -1),
    ("evict_between", -1, 0),
    ("remove", [1]),
    ("correct", [1]),
]


PROFILE = os.environ.get("SASH_PROFILE")
DEEP = 3 if PROFILE == "coverage" else 4
"""Ten times as many histories as of one step fewer."""
ONE_OF = 1 if PROFILE in ("coverage", "soak") else 7
"""Of those of four steps. Each three steps are there still: at the beginning as well as at the end."""


@pytest.mark.parametrize(
    ("kind", "block", "depth"),
    [("ordered", 1, 4 if PROFILE == "soak" else 3), ("ordered", 2, DEEP), ("commuting", 2, DEEP)],
)
def test_all_short_histories(kind, block, depth):
    for steps in itertools.islice(itertools.product(SHORT, repeat=depth), 0, None, ONE_OF if depth == 4 else 1):
        lockstep = ForestLockstep(LAYOUTS[kind](block))
        lockstep.run([*steps, ("range", -1, 1), ("series", -2, 3, 1, 2)], check_every=3)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("size", [1023, 1024, 1025, 2047, 2048, 2049, 3100])
def test_around_the_real_block_size(kind, size):
    """In order, behind, spread out, and evicted to the middle of a block."""
    lockstep = ForestLockstep(LAYOUTS[kind](1024))
    lockstep.run(
        [
            ("bulk", [1] * size),
            ("insert", -5),
            ("evict", size // 2),
            ("bulk", [-size // 3] + [1] * 700),
            ("range", -size // 2, size // 3),
            ("series", -size // 2, 50, 7, 300),
            ("evict_between", -size // 3, 40),
            ("correct", list(range(0, size // 2, 5))),
            ("remove", list(range(0, size // 2, 3))),
            ("bulk", [-size] + [size // 100] * 99),
            ("bulk_evict", -size // 4),
            ("insert", 1),
            ("evict", 1),
        ]
    )


NAMED = {
    "a block that keeps receiving is cut": (
        8,
        [("bulk", [1] * 80), ("evict", 3), *[("insert", -60)] * 60, ("bulk", [-78] + [0] * 50), ("range", -70, 20)],
    ),
    "late bulks over many blocks, again and again": (
        8,
        [("bulk", [1] * 400), ("evict", 11)]
        + [s for k in range(12) for s in (("bulk", [-399 + k] + [3] * 130), ("range", -300, 200), ("evict", 5))],
    ),
    # Evicting more than is paired leaves levels without live nodes; what comes next starts behind a gap.
    "a jump over all that levels hold": (
        1,
        [
            step
            for n in (1, 5, 8, 13, 40)
            for step in (("bulk", [1] * n), ("range", -n, n - 1), ("evict", n - 1), ("bulk", [1] * n), ("range", -n, n))
        ],
    ),
}


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("name", NAMED)
def test_named_histories(kind, name):
    block, steps = NAMED[name]
    ForestLockstep(LAYOUTS[kind](block)).run(steps)


@pytest.mark.parametrize("bulks", [2, 3, 70, 150])
def test_splices_pile_up_until_somebody_reads(bulks):
    """[....2..1.][.1..2...][..2...1.]   notes on each block, in the order of arrival, not of time"""
    lockstep = ForestLockstep(LAYOUTS["commuting"](256))
    lockstep.run([("bulk", [1] * 2000), ("evict", 100)], check_every=9)
    for k in range(bulks):
        start = -1900 + 97 * (k * k % 7)
        lockstep.run([("bulk", [start] + [300, 100, 0] * 3)], check_every=9)
    assert lockstep.forest.query() == lockstep.answers(lockstep.entries)
    lockstep.check()


@pytest.mark.parametrize("runs", [1, 2, 5])
@pytest.mark.parametrize("kind", LAYOUTS)
@given(steps=histories(span=60, bulk=20), check_every=st.sampled_from([1, 5, 40]))
def test_deferred_bulks_wait_together(kind, runs, steps, check_every):
    """However many bulks wait before they are handed out, and whoever reads inside a block meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inbox, "_RUNS", runs)
        for lockstep in (ForestLockstep(LAYOUTS[kind](4)), ColdLockstep(LAYOUTS[kind](4), budget=2)):
            lockstep.run([("bulk", [1] * 60)])
            lockstep.run(steps, check_every)
            lockstep.check()


def test_what_waits_goes_where_its_block_goes():
    """[..][..][..][..]  bulks wait; a block that is read takes its rows; a run moves others on"""
    lockstep = ForestLockstep(LAYOUTS["commuting"](8))
    lockstep.run([("bulk", [2] * 160), ("evict", 3)])
    directory = lockstep.forest._directory
    for later in (4, 0, 2):
        lockstep.bulk([-301 + later] + [31] * 9)
    assert directory._inbox is not None
    lockstep.range(-270, 9)
    lockstep.bulk([-301] + [31] * 9)
    lockstep.range(-270, 9)
    lockstep.evict(20)
    lockstep.bulk([1] * 40)  # evicted blocks are freed with it
    assert directory._inbox is not None
    lockstep.bulk([-239] + [0] * 15)
    assert directory._inbox is None
    lockstep.check()


def test_what_waits_for_evicted_blocks_goes_with_them():
    lockstep = ForestLockstep(LAYOUTS["commuting"](8))
    lockstep.run([("bulk", [2] * 160)])
    directory = lockstep.forest._directory
    lockstep.bulk([-301] + [31] * 4)
    lockstep.bulk_evict(-300)
    assert directory._inbox is not None
    lockstep.bulk_evict(-100)
    assert directory._inbox is None
    lockstep.check()


class Numbers(ForestLockstep):
    """Aggregates that are numbers of a fixed width, of which whole rows of nodes are combined at once."""

    def __init__(self, block):
        super().__init__(Layout({"value": "int64"}, {"max": (Max("int64"), ["value"]), **SPREAD}, block))

    def answers(self, entries):
        values = [value for _, value in entries]
        return [max(values, default=None), min(values, default=None), max(values) - min(values) if values else None]


SPREAD = {"min": (Min("int64"), ["value"]), "range": (Range("int64"), ["value"])}


@pytest.mark.parametrize("block", [1, 2, 3])
@given(steps=histories(span=90, bulk=60))
def test_numbers_answer_as_the_fold_does(block, steps):
    lockstep = Numbers(block)
    lockstep.run([("bulk", [1] * 120), ("evict", 13)])
    lockstep.run([step for step in steps if step[0] != "evict_while"])


@pytest.mark.parametrize("block", [1, 2, 5])
@pytest.mark.parametrize("before", [0, 1, 5, 37])
def test_a_bulk_over_every_second_block_and_more(block, before):
    """Nodes between the first and the last block of a bulk are all combined anew, but those that straddle the head."""
    lockstep = Numbers(block)
    lockstep.run([("bulk", [2] * 300), ("evict", before)])
    for start, step in ((-599, 4), (-300, 3), (-480, 10), (-61, 2)):
        lockstep.run([("bulk", [start] + [step] * 50), ("evict", 7), ("range", -500, 300), ("bulk", [1] * 9)])
