"""Pages against a list for each key."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.windows.keys.pages import Pages
from tests.support.page_layouts import layout

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
