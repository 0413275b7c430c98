"""What only the Reactive Aggregator has: evictions anywhere, batches, prefixes and suffixes, resize and compaction."""

from __future__ import annotations

from itertools import combinations
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators import Reactive
from sash_engine.aggregators.counting import Counting
from sash_engine.errors import FailedPrecondition
from sash_engine.monoids import Collect, Sum


class Pair:
    """A Reactive Aggregator over Collect beside a list of numbers, which are its values too."""

    def __init__(self):
        self.window = Reactive(Collect("int64"))
        self.numbers = []
        self.next = 0

    def change(self, evict=(), insert=0):
        new = range(self.next, self.next + insert)
        self.window.change(evict=evict, insert=new)
        self.next += insert
        self.numbers = [number for number in self.numbers if number not in evict] + list(new)
        self.check()

    def check(self):
        window, numbers = self.window, self.numbers
        window.check_invariants()
        assert window.numbers == window.query() == numbers
        assert len(window) == len(numbers)

    def check_parts(self):
        for number in range(-1, self.next + 1):
            assert self.window.prefix(number) == [other for other in self.numbers if other <= number]
            assert self.window.suffix(number) == [other for other in self.numbers if other >= number]


@pytest.mark.parametrize("start", range(9))
@pytest.mark.parametrize("size", range(9))
def test_every_set_of_evictions_from_every_place_in_the_buffer(start, size):
    """Windows of `size` entries that begin at slot `start`, so wrapped around or not; any of them leave at once."""
    for count in range(size + 1):
        for gone in combinations(range(start, start + size), count):
            pair = Pair()
            pair.window.change(insert=range(8))
            pair.numbers, pair.next = list(range(8)), 8
            pair.change(insert=max(0, start + size - 8), evict=range(min(start, 8)))
            pair.change(evict=[number for number in pair.numbers if not start <= number < start + size])
            pair.change(evict=gone)
            pair.check_parts()
            pair.change(insert=3)


@given(
    history=st.lists(
        st.tuples(st.sets(st.integers(0, 40), max_size=12), st.integers(0, 12), st.booleans()), max_size=15
    )
)
def test_random_batches(history):
    """Each: which entries leave, by their place from the oldest (or the youngest) on, and how many come."""
    pair = Pair()
    for places, insert, from_the_end in history:
        numbers = pair.numbers[::-1] if from_the_end else pair.numbers
        pair.change([numbers[place] for place in places if place < len(numbers)], insert)
        pair.check_parts()


def test_an_entry_that_is_not_there_changes_nothing():
    window = Reactive(Sum("int64"))
    window.change(insert=[1, 2, 3, 4])
    window.evict_entry(2)
    for absent in ([2], [0, 2], [1, 1], [4], [-1]):
        with pytest.raises(FailedPrecondition, match="no entry with the number") as error:
            window.change(evict=absent, insert=[100])
        assert error.value.field == "number"
        window.check_invariants()
        assert (window.numbers, window.query()) == ([0, 1, 3], 7)
    window.insert(5)
    assert window.numbers == [0, 1, 3, 4]


def test_the_buffer_is_inverted_and_comes_back():
    window = Reactive(Collect("int64"))
    window.change(insert=range(6))
    seen = []
    for value in range(6, 22):
        window.evict()
        window.insert(value)
        seen.append(window.inverted)
        assert window.query() == list(range(value - 5, value + 1))
    assert window.capacity == 8
    assert seen == [False, False, True, True, True, True, True, False] * 2


def test_the_buffer_is_compacted_before_it_grows():
    """Holes in the middle are used again: a window of 9 live entries among many that left never outgrows 16 slots."""
    pair = Pair()
    pair.change(insert=9)
    for _ in range(40):
        pair.change(evict=[pair.numbers[4]], insert=1)
        assert pair.window.capacity == 16


def test_the_capacity_follows_the_size():
    window = Reactive(Sum("int64"))
    for size in range(1, 2000):
        window.insert(1)
        assert size <= window.capacity < 4 * size + 2
    for size in range(1998, -1, -1):
        window.evict()
        assert size <= window.capacity <= max(2, 4 * size)
    assert window.capacity == 2


# -------------------------------------------------------------------- cost


def counted(size):
    monoid = Counting(Sum("int64"))
    window = Reactive(monoid)
    window.change(insert=range(size))
    monoid.reset()
    return monoid, window


@pytest.mark.parametrize("size", [100, 1000, 5000])
def test_a_batch_costs_less_than_so_many_changes(size):
    """m evictions spread over the window, so that paths meet late: at most m (2 + log2(capacity / m)) combines."""
    m = 1
    while m <= size // 4:
        monoid, window = counted(size)
        window.change(evict=range(size // (2 * m), size, size // m))
        assert monoid.combines <= m * (2 + log2(window.capacity / m))
        m *= 2


@pytest.mark.parametrize("size", [100, 1000, 5000])
def test_parts_and_the_whole_cost_logarithms(size):
    monoid, window = counted(size)
    for step in range(size):
        window.evict()
        window.insert(step)
        monoid.reset()
        window.query()
        assert monoid.reset() <= (2 * log2(window.capacity) if window.inverted else 0)
        for part in (window.prefix, window.suffix):
            part(step + (step * 37) % size)
            assert monoid.reset() <= 2 * log2(window.capacity)


def test_resizing_is_paid_for_by_the_changes_before_it():
    """Growing to n costs less than 2 combines per insert over the log2 n of the path, shrinking likewise."""
    size = 4096
    monoid, window = counted(0)
    for value in range(size):
        window.insert(value)
    assert monoid.reset() <= size * (log2(2 * size) + 2)
    for _ in range(size):
        window.evict()
    assert monoid.reset() <= size * (log2(2 * size) + 2)
