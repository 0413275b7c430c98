"""Keys and pages: keys that grow from page to page into forests answer as the slow model, whatever happens to them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.steps import finished
from sash_engine.windows.keys.keys import NEVER, Keys
from sash_engine.windows.keys.label_table import LabelTable
from sash_engine.windows.keys.ragged import ragged
from sash_engine.windows.reading.conditions import names_steps
from tests.support.page_layouts import layout

SIZES = [(1, 1), (1, 4), (2, 8), (4, 64), None]

# ---------------------------------------------------------------- windows


# ---------------------------------------------------------------- keys


def keys_with(sizes, counts):
    """Keys with so many entries each: key i has times 0, 1, … and values 100 i, 100 i + 1, …"""
    keys = Keys(layout(), sizes)
    numbers = keys.create([f"key {i}" for i in range(len(counts))])
    for number, count in zip(numbers.tolist(), counts, strict=True):
        for time in range(count):
            keys.insert(number, time, (100 * number + time,))
    return keys, numbers


def test_names_and_numbers_come_in_chunks_in_the_order_of_their_creation():
    keys = Keys(layout())
    keys.create(["a", "b", "c", "d"])
    keys.forget(np.array([1]))
    keys.create(["e"])
    found = [(names, numbers.tolist()) for names, numbers in keys.chunks(2)]
    assert found == [(["a", "c"], [0, 2]), (["d", "e"], [3, 1])]
    assert keys.names_of(range(4)) == ["a", "e", "c", "d"]


def test_labels_are_those_of_the_keys_that_are_left():
    keys = Keys(layout())
    keys.create([f"{i % 3}|host-{i}" for i in range(10)])
    keys.forget(np.array([2, 7]))
    table = LabelTable(keys, 2)
    region, _ = finished(table.current())
    table.check_invariants()
    assert (region.values, len(region.index)) == (["0", "1", "2"], 3)
    keys.create(["0|host-new", "9|host-new"])
    finished(table.current())
    table.check_invariants()


def test_a_key_is_given_its_own_store_when_asked_for():
    keys, (number, other) = keys_with((4, 8), [3, 2])
    keys.evict(number, 1)
    forest = keys.own_store(number)
    assert forest is keys.own_store(number)
    assert (len(forest), forest.oldest, keys.columns(number)[1].tolist()) == (2, 1, [1, 2])
    keys.insert(number, 9, (7,))
    assert keys.query(number) == (3, [[1, 2, 7], 10])
    assert list(keys.own_stores()) == [forest]
    assert keys.query(other) == (2, [[100, 101], 201])
    keys.check_invariants()


@pytest.mark.parametrize("sizes", SIZES)
def test_a_forgotten_key_leaves_nothing_and_its_number_is_used_again(sizes):
    keys, numbers = keys_with(sizes, [2, 5, 70])
    keys.late_through[numbers] = 40
    assert keys.forget(numbers[[0, 2]]) == 72
    keys.check_invariants()
    assert (len(keys), keys.find("key 0"), keys.find("key 1"), keys.find("key 2")) == (1, None, 1, None)
    again = keys.create(["x", "y", "z"])
    assert sorted(again.tolist()) == [0, 2, 3]
    assert keys.entries_each(again).tolist() == [0, 0, 0]
    assert keys.now[again].tolist() == keys.late_through[again].tolist() == [NEVER] * 3
    assert [keys.name(number) for number in keys.numbers().tolist()] == ["key 1", "x", "y", "z"]
    assert keys.find_each(["z", "nobody", "key 1"]).tolist() == [again[2], -1, 1]
    keys.insert(again.item(0), 5, (1,))
    assert keys.query(again.item(0)) == (1, [[1], 1])
    keys.check_invariants()


@pytest.mark.parametrize("sizes", SIZES)
def test_evicting_a_count_tells_the_time_of_the_last_that_left(sizes):
    keys, numbers = keys_with(sizes, [4, 70, 1])
    assert keys.evict_each(numbers, np.array([2, 60, 1])).tolist() == [1, 59, 0]
    assert keys.entries_each(numbers).tolist() == [2, 10, 0]
    assert [keys.evict(number, 2) for number in numbers[:2].tolist()] == [3, 61]
    assert [keys.span(number) for number in numbers.tolist()] == [(None, None), (62, 69), (None, None)]
    keys.check_invariants()


def test_without_pages_every_key_has_its_own_store():
    keys, numbers = keys_with(None, [1, 2])
    assert len(list(keys.own_stores())) == len(numbers)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30), st.integers(1, 7), st.integers(1, 9))
def test_pages_list_a_key_that_stays_once(changes, limit, looked_at):
    """Keys come and go, and take the places of others, between one page and the next."""
    keys = Keys(layout())
    for number in keys.create([f"stays {i}" for i in range(15)]).tolist():
        keys.insert(number, 1, (1,))
    changes, found, position, others = iter(changes), [], 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sash_engine.windows.reading.conditions.PAGE_NAMES", looked_at)
        patch.setattr("sash_engine.windows.reading.conditions._NAMES_AT_ONCE", 2)
        while position is not None:
            come, go = next(changes, (0, 0))
            keys.create([f"other {others + i}" for i in range(come)])
            others += come
            going = [name for name in keys.names() if name.startswith("other")][:go]
            keys.forget(keys.find_each(going))
            page, next_ = finished(names_steps(keys, "stays", limit, position, NEVER, ()))
            assert len(page) <= limit
            assert next_ is None or position < next_ <= position + looked_at
            found, position = found + page, next_
    assert sorted(found) == sorted(f"stays {i}" for i in range(15))


def test_ragged_ranges():
    assert ragged(np.array([7, 0, 3]), np.array([2, 0, 3])).tolist() == [7, 8, 3, 4, 5]
    assert ragged(np.array([], np.int64), np.array([], np.int64)).tolist() == []
    lengths = np.arange(50)
    found = ragged(lengths * 100, lengths)
    ends = np.cumsum(lengths)
    assert all(
        found[a:b].tolist() == list(range(100 * i + 100, 100 * i + 100 + b - a))
        for i, (a, b) in enumerate(pairwise(ends))
    )
