"""Every store against the slow model: what slides, what is late or too far ahead, what now is, where ranges end.

late      mark - 12          mark                       event time: now is the mark
----------|---------------------|
                  now - 12            now   |           wall time: entries may be ahead of now
------------------|--------------------|----|
                                           now + 8 |    order.ahead: what is later is dropped, or refused
"""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sash.durability.records.commands import BulkEvict, BulkInsert
from sash_engine.clock import ManualClock
from sash_engine.windows.window import Window
from tests.support.refused import refusal
from tests.support.stored import StorageServer
from tests.support.times_lockstep import KEYS, LAST, STORES, S, TimesLockstep, bulk, entries, offsets, spec

UNTIL = {"until": "punctuation"}
SLIDES = [
    {},
    {"max_age": 12},
    {"max_count": 3},
    {"max_age": 12, "max_count": 3},
    {"max_gap": 1},
    {"max_gap": 3, "max_count": 10},
    {"max_age": 9, "every": 4},
    {"max_age": 7, "every": 7},
    {"max_age": 12, "every": 5, "max_gap": 6},
    UNTIL,
    {"max_age": 9, **UNTIL},
    {"max_age": 9, "every": 4, **UNTIL},
]
one_or_all = st.sampled_from([*KEYS, None])
steps = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, max_size=15)),
    st.tuples(st.just("bulk"), st.lists(st.tuples(st.just("a"), offsets), max_size=25)),
    st.tuples(st.just("evict"), st.tuples(one_or_all, offsets)),
    st.tuples(st.just("evict"), st.tuples(one_or_all, st.just(60))),
    st.tuples(st.just("evict_range"), st.tuples(one_or_all, offsets, st.integers(0, 20))),
    st.tuples(st.just("evict_wrong"), st.tuples(one_or_all, offsets, st.sampled_from([0, 9, 99]))),
    st.tuples(st.just("punctuate"), offsets),
    st.tuples(st.just("wait"), st.integers(1, 15)),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("export"), st.none()),
    st.tuples(st.just("range"), st.tuples(st.sampled_from(KEYS), offsets, st.integers(1, 20))),
)


@pytest.mark.parametrize("wall", [False, True], ids=["event", "wall"])
@pytest.mark.parametrize("store", STORES)
@given(
    history=st.lists(steps, max_size=20),
    slide=st.sampled_from(SLIDES),
    ahead=st.sampled_from([None, 1, 8]),
    block=st.sampled_from([1, 4, 1024]),
)
def test_any_history_equals_the_fold(store, wall, history, slide, ahead, block):
    assume(store != "panes" or "max_count" not in slide)
    assume(not wall or not slide.keys() & {"max_gap", "until"})
    TimesLockstep(store, slide, ahead, wall, block).run(history)


@pytest.mark.parametrize("store", STORES)
def test_keys_grow_into_forests_in_order_and_not(store):
    both = TimesLockstep(store)
    for i in range(70):
        both.bulk([("a", i), ("b", -i), ("c", i // 3), ("d", i * 37 % 41)])
        if i % 7 == 0:
            both.check()
    both.check()


@pytest.mark.parametrize("wall", [False, True], ids=["event", "wall"])
@pytest.mark.parametrize("store", STORES)
def test_without_entries_and_marks_there_is_no_now(store, wall):
    """The mark of the only entry is taken back: lookbacks began with the least of all times."""
    for wrong in (("c", -1, 0), ("c", 0, 9)):
        TimesLockstep(store, wall=wall).run([("insert", ("c", 0)), ("evict_wrong", wrong)])


def test_a_mark_that_was_taken_back_does_not_come_again_with_the_next_write():
    w = Window(spec())
    w.insert(100, {"value": 1}, "a")
    assert w.evict_range(100, 100, reset_mark=True) == 1
    w.insert(5, {"value": 1}, "a")
    assert w.info().high_water_mark == 5


def test_what_is_late_follows_a_mark_that_was_taken_back():
    w = Window(spec(slide={"max_age": 10}))
    w.bulk_insert(bulk([("a", 95), ("a", 100)], 0))
    assert w.evict_range(100, 100, reset_mark=True) == 1
    assert [w.insert(time, {"value": 1}, "a").late for time in (85, 86)] == [1, 0]


# ---------------------------------------------------------------- the mark, and keys without entries


@pytest.mark.parametrize("pages", [(2, 4), None])
def test_a_forgotten_key_takes_its_mark_along_but_not_the_windows(pages):
    clock = ManualClock()
    w = Window(spec(idle_expiry="10s", slide={"max_age": 5}), pages=pages, clock=clock)
    w.insert(100, {"value": 1}, "a")
    w.bulk_evict(100, "a")
    clock.advance(11 * S)
    w.tidy()
    assert (w.info().high_water_mark, w.info().newest, w.info().keys, len(w.keys)) == (100, None, 0, 0)
    assert w.insert(3, {"value": 1}, "a").inserted == 1
    assert (w.info().newest, w.info().keys) == (3, 1)
    w.check_invariants()


@pytest.mark.parametrize("pages", [(2, 4), None])
def test_the_newest_entry_is_looked_for_only_where_it_has_left(pages, monkeypatch):
    w = Window(spec(), block=4, pages=pages)
    w.bulk_insert(bulk([(key, time) for key in "abc" for time in range(20)], 0))
    w.insert(30, {"value": 1}, "b")
    searches = []
    search = w.keys.newest_each
    monkeypatch.setattr(w.keys, "newest_each", lambda numbers: searches.append(len(numbers)) or search(numbers))
    w.bulk_evict(25, None)
    assert (w.info().newest, w.info().keys, searches) == (30, 1, [])
    w.bulk_insert(bulk([("c", 32), ("c", 31)], 0))
    assert (w.info().newest, searches) == (32, [])
    w.insert(28, {"value": 1}, "a")
    w.bulk_evict(40, "c")
    w.bulk_evict(40, "b")
    assert [w.info().newest for _ in range(3)] == [28] * 3
    w.bulk_evict(40, "a")
    assert [w.info().newest for _ in range(3)] == [None] * 3
    assert searches == [3, 3]


async def test_keys_and_the_newest_entry_need_no_stored_block():
    server = StorageServer(cache_bytes=0, store_entries=1)
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", BulkInsert(bulk([(key, time) for key in "abc" for time in range(200)], 0)))
    await storage.write("w", BulkEvict(250, "b"))
    await server.settled()
    storage.trim()
    server.tier.unreachable = True
    window = storage.find("w")
    assert (window.key_names("", 9)[0], window.info().keys, window.info().newest) == (["a", "c"], 2, 199)
    server.tier.unreachable = False
    await storage.write("w", BulkEvict(250, None))
    storage = await server.crash()
    window = storage.find("w")
    assert (window.key_names("", 9)[0], window.info().keys) == ([], 0)
    assert (window.info().newest, window.info().high_water_mark) == (None, 199)
    await storage.stop()


# ---------------------------------------------------------------- wall time


# ---------------------------------------------------------------- ranges without their end


def test_ranges_without_their_end_reach_the_ends_of_time():
    w = Window(spec(keyed=False, time_unit="none"))
    w.bulk_insert(bulk([("", -LAST), ("", 0), ("", LAST - 1), ("", LAST)], 0, keyed=False))
    assert w.range_query(-LAST, LAST, None, end_exclusive=True).entries == 3
    assert w.range_query(-LAST, LAST, None).entries == 4
    assert w.range_query(LAST - 1, LAST, None, end_exclusive=True).entries == 1
    for start, end, times in ((None, 0, [-LAST]), (0, None, [0, LAST - 1, LAST]), (None, -LAST, [])):
        found = w.entries(start, end, None, end_exclusive=True)
        assert [time for batch in found for time in batch.times.tolist()] == times


@pytest.mark.parametrize("ask", [Window.range_query, Window.entries])
@pytest.mark.parametrize(
    ("start", "end", "exclusive", "field", "limit"),
    [
        (5, 5, True, "start", "4"),
        (6, 5, True, "start", "4"),
        (6, 5, False, "start", "5"),
        (0, 2**63 - 1, True, "end", "-2^63 < time < 2^63 - 1"),
        (-(2**63), 5, True, "start", "-2^63 < time < 2^63 - 1"),
    ],
)
def test_a_range_has_a_time(ask, start, end, exclusive, field, limit):
    assert refusal(ask, Window(spec()), start, end, "a", end_exclusive=exclusive) == (field, limit)
