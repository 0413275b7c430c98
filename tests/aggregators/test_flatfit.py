"""What only FlatFIT has: queries over parts of the window, which share what they fold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators import FlatFIT
from sash_engine.aggregators.counting import Counting
from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Collect, Sum
from tests.support.histories import short_histories

RANDOM = st.lists(st.tuples(st.sampled_from("iev"), st.integers(0, 40)), max_size=60)


def follow(history):
    """Insert so many, evict so many, or ask for the newest ones, beside a list."""
    window, values, inserted = FlatFIT(Collect("int64")), [], 0
    for operation, count in history:
        if operation == "i":
            for _ in range(count):
                inserted += 1
                window.insert(inserted)
                values.append(inserted)
        elif operation == "e":
            for _ in range(min(count, len(values))):
                window.evict()
                values.pop(0)
        else:
            assert window.query_newest(count) == (values[-count:] if count else [])
        window.check_invariants()
        assert len(window) == len(values)
    assert window.query() == values


@given(history=RANDOM)
def test_queries_of_parts_in_random_histories(history):
    follow(history)


def test_every_short_history_of_parts():
    """Inserts, evictions, and queries of the newest one, two and three: all words of six, from four entries on."""
    for history in short_histories("ie123", 6):
        follow([("i", 4), *((step, 1) if step in "ie" else ("v", int(step)) for step in history)])


def test_a_negative_number_of_entries_is_refused():
    with pytest.raises(InvalidArgument, match="count is -1") as error:
        FlatFIT(Sum("int64")).query_newest(-1)
    assert error.value.field == "count"


@pytest.mark.parametrize("size", [2, 10, 500])
def test_ranges_share_their_folds(size):
    """Every length from 1 to n after one insert, longest first: one combine each, where folding anew takes n²/2."""
    monoid = Counting(Sum("int64"))
    window = FlatFIT(monoid)
    for value in range(size):
        window.insert(value)
    window.query()
    assert monoid.reset() == size - 1
    for count in range(size, 0, -1):
        window.query_newest(count)
    assert monoid.reset() == 0
    window.insert(size)
    for count in range(size + 1, 0, -1):
        assert window.query_newest(count) == sum(range(size + 1 - count, size + 1))
    assert monoid.reset() == size


def test_the_buffer_follows_the_size():
    window = FlatFIT(Sum("int64"))
    for size in range(1, 1000):
        window.insert(1)
        assert size <= window.capacity <= max(4, 2 * size)
    for size in range(998, -1, -1):
        window.evict()
        assert window.capacity <= max(4, 4 * size)
        assert window.query() == size
