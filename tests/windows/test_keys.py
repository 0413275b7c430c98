"""Keys and pages: keys that grow from page to page into forests answer as the slow model, whatever happens to them."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.forest import Layout
from sash_engine.monoids import catalogue
from sash_engine.steps import finished
from sash_engine.windows.keys.keys import NEVER, Keys
from sash_engine.windows.keys.label_table import LabelTable
from sash_engine.windows.keys.pages import Pages
from sash_engine.windows.keys.ragged import ragged
from sash_engine.windows.reading.conditions import names_steps

SIZES = [(1, 1), (1, 4), (2, 8), (4, 64), None]


def layout(kind="int64"):
    make = catalogue()
    chosen = ["collect", "sum"] if kind == "int64" else ["collect"]
    return Layout({"value": kind}, {name: (make[name](kind), ["value"]) for name in chosen}, block=4)


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


# ---------------------------------------------------------------- pages against a list for each key


times = st.integers(0, 30)


class Model:
    """Pages as a list of (time, value) per key."""

    def __init__(self):
        self.rows = defaultdict(list)

    def insert(self, key, pairs):
        self.rows[key] = sorted(self.rows[key] + pairs, key=lambda pair: pair[0])


page_steps = st.one_of(
    st.tuples(
        st.just("bulk"), st.dictionaries(st.integers(0, 11), st.lists(times, min_size=1, max_size=9), min_size=1)
    ),
    st.tuples(st.just("insert"), st.tuples(st.integers(0, 11), times)),
    st.tuples(st.just("evict"), st.dictionaries(st.integers(0, 11), times, min_size=1)),
    st.tuples(st.just("count"), st.dictionaries(st.integers(0, 11), st.integers(1, 6), min_size=1)),
    st.tuples(st.just("clear"), st.sets(st.integers(0, 11))),
)


@given(st.lists(page_steps, max_size=25), st.sampled_from([(1, 16), (2, 16), (4, 16), (16, 16)]))
def test_pages_hold_what_a_list_per_key_holds(history, sizes):
    pages, model, value = Pages(layout("string"), *sizes), Model(), 0
    pages.reach(12)
    for step, what in history:
        if step == "bulk":
            sent = {key: sorted(ts) for key, ts in what.items() if len(ts) + len(model.rows[key]) <= 16}
            rows = [(t, str(value + i)) for i, t in enumerate(t for ts in sent.values() for t in ts)]
            value += len(rows)
            at = 0
            for key, ts in sent.items():
                model.insert(key, rows[at : at + len(ts)])
                at += len(ts)
            if sent:
                columns = [np.array([t for t, _ in rows]), np.array([v for _, v in rows], object)]
                pages.bulk_insert(np.array(list(sent)), np.array([len(ts) for ts in sent.values()]), columns)
        elif step == "insert":
            key, time = what
            if len(model.rows[key]) < 16:
                model.insert(key, [(time, str(value))])
                pages.insert(key, time, (str(value),))
                value += 1
        elif step == "evict":
            gone = [sum(t <= time for t, _ in model.rows[key]) for key, time in what.items()]
            for key, n in zip(what, gone, strict=True):
                del model.rows[key][:n]
            found = pages.bulk_evict_each(np.array(list(what)), np.array(list(what.values())))
            assert found.tolist() == gone
        elif step == "count":
            some = {key: n for key, n in what.items() if len(model.rows[key]) >= n}
            last = [model.rows[key][n - 1][0] for key, n in some.items()]
            for key, n in some.items():
                del model.rows[key][:n]
            found = pages.evict_each(np.array(list(some), np.int64), np.array(list(some.values()), np.int64))
            assert found.tolist() == last
        else:
            pages.clear(np.array(sorted(what), np.int64))
            for key in what:
                model.rows[key].clear()
        pages.check_invariants()
        for key in range(12):
            held = model.rows[key]
            assert [tuple(row) for row in zip(*(c.tolist() for c in pages.columns(key)), strict=True)] == held
            assert (pages.oldest(key), pages.newest(key)) == ((held[0][0], held[-1][0]) if held else (None, None))


def rows_of(pages):
    return len(pages._columns[0])


def test_pages_that_keys_left_serve_pages_of_other_sizes():
    # 512 keys fill pages of 4 rows, then leave: the same rows serve 128 keys of 16 and then 512 of 4 again
    pages = Pages(layout(), 4, 16)
    pages.reach(512)
    rows = None
    for keys, count in ((512, 4), (128, 16), (256, 8), (512, 4)):
        numbers, lengths = np.arange(keys), np.full(keys, count)
        pages.bulk_insert(numbers, lengths, [np.tile(np.arange(count), keys), np.arange(2048)])
        assert rows in (None, rows_of(pages))
        rows = rows_of(pages)
        pages.check_invariants()
        pages.clear(numbers)


@pytest.mark.timeout(300)
def test_more_small_pages_are_wanted_than_free_ones_and_their_buddies_give():
    # rows 0 to 31 are full of pages of 4; the first four are left, which is two of 8, and six are wanted
    pages = Pages(layout(), 4, 8)
    pages.reach(20)
    four = [np.tile(np.arange(4), 8), np.arange(32)]
    pages.bulk_insert(np.arange(8), np.full(8, 4), four)
    assert rows_of(pages) == 32
    pages.clear(np.arange(4))
    pages.bulk_insert(np.arange(10, 16), np.ones(6, np.int64), [np.zeros(6, np.int64), np.arange(6)])
    pages.check_invariants()
    assert [pages.totals(key) for key in (4, 15)] == [[(16, 17, 18, 19), 70], [(5,), 5]]


def test_columns_grow_beside_an_aggregate_that_keeps_what_it_was_shown():
    pages = Pages(layout(), 4, 4)
    pages.reach(1000)
    pages.insert(0, 1, (7,))
    kept = pages._columns[1][:1]  # as a monoid of somebody's might
    pages.bulk_insert(np.arange(1, 1000), np.ones(999, np.int64), [np.zeros(999, np.int64), np.arange(999)])
    assert kept.tolist() == [7]
    assert pages.totals(0) == [(7,), 7]
    pages.check_invariants()


def page_size(pages, key):
    return pages._sizes.item(pages._classes.item(key))


def test_a_key_that_hovers_about_a_page_size_stays_in_its_page():
    # nine entries, then seven and eight in turn: a page of 16 for good, though 8 rows would do
    pages = Pages(layout(), 4, 64)
    pages.reach(1)
    for time in range(9):
        pages.insert(0, time, (time,))
    pages.evict(0, 2)
    for time in range(9, 200):
        pages.insert(0, time, (time,))
        assert pages.evict(0, 1) == time - 7
        assert page_size(pages, 0) == 16
    assert pages.columns(0)[0].tolist() == list(range(193, 200))
    pages.check_invariants()


def test_a_key_that_was_large_moves_to_a_small_page():
    # 64 entries, of which 2 stay: the next one finds the page at its end, and a page of 4 holds three
    pages = Pages(layout(), 4, 64)
    pages.reach(1)
    for time in range(64):
        pages.insert(0, time, (time,))
    pages.evict(0, 62)
    assert page_size(pages, 0) == 64
    pages.insert(0, 64, (64,))
    assert page_size(pages, 0) == 4
    assert pages.columns(0)[0].tolist() == [62, 63, 64]
    pages.check_invariants()


BREAKS = {
    "a key has a page": lambda pages: pages._classes.__setitem__(0, 0),
    "inside their page": lambda pages: pages._counts.__setitem__(0, 5),
    "sorted by time": lambda pages: pages._columns[0].__setitem__(0, 99),
    "without gap or overlap": lambda pages: pages._allocator._free[1].push(np.array([0])),
    "holds on to": lambda pages: pages._columns[1].__setitem__(3, "left behind"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_invariant_is_named(broken):
    pages = Pages(layout("string"), 4, 8)
    pages.reach(2)
    for time in (1, 2, 3):
        pages.insert(0, time, ("x",))
    pages.check_invariants()
    BREAKS[broken](pages)
    with pytest.raises(AssertionError, match=broken):
        pages.check_invariants()
