"""What now is, which keys are listed, where ranges end, what is too far ahead: every store against the slow model.

late      mark - 12          mark                       event time: now is the mark
----------|---------------------|
                  now - 12            now   |           wall time: entries may be ahead of now
------------------|--------------------|----|
                                           now + 8 |    order.ahead: what is later is dropped, or refused
"""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import BulkEvict, BulkInsert, Insert
from sash.durability.storage import Storage
from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.stored import StorageServer
from tests.support.tiers import KINDS
from tests.support.times_lockstep import GRANULE, KEYS, LAST, STORES, S, TimesLockstep, bulk, entries, offsets, spec

steps = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, max_size=15)),
    st.tuples(st.just("bulk"), st.lists(st.tuples(st.just("a"), offsets), max_size=15)),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), offsets)),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), st.just(60))),
    st.tuples(st.just("evict_wrong"), st.tuples(st.sampled_from([*KEYS, None]), offsets, st.sampled_from([0, 9, 99]))),
    st.tuples(st.just("wait"), st.integers(1, 15)),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("export"), st.none()),
    st.tuples(st.just("range"), st.tuples(st.sampled_from(KEYS), offsets, st.integers(1, 20))),
)


@pytest.mark.parametrize("wall", [False, True], ids=["event", "wall"])
@pytest.mark.parametrize("store", STORES)
@given(
    st.lists(steps, max_size=20),
    st.sampled_from([None, 12]),
    st.sampled_from([None, None, 3]),
    st.sampled_from([None, 1, 8]),
)
def test_any_history_equals_the_fold(store, wall, history, max_age, max_count, ahead):
    assume(store != "panes" or max_count is None)
    TimesLockstep(store, max_age, max_count, ahead, wall).run(history)


@pytest.mark.parametrize("wall", [False, True], ids=["event", "wall"])
@pytest.mark.parametrize("store", STORES)
def test_without_entries_and_marks_there_is_no_now(store, wall):
    """The mark of the only entry is taken back: lookbacks began with the least of all times."""
    TimesLockstep(store, None, None, None, wall).run([("insert", ("c", 0)), ("evict_wrong", ("c", -1, 0))])
    TimesLockstep(store, None, None, None, wall).run([("insert", ("c", 0)), ("evict_wrong", ("c", 0, 9))])


# ---------------------------------------------------------------- the mark, and keys without entries


@pytest.mark.parametrize("pages", [(2, 4), (4, 64), None])
@pytest.mark.parametrize("parts", [{}, {"granularity": GRANULE}], ids=str)
def test_a_key_whose_entries_have_left_is_not_listed_and_its_mark_stays(parts, pages):
    w = Window(spec(slide={"max_age": 30}, **parts), block=4, pages=pages)
    for time in range(90, 102):
        w.insert(time, {"value": 1}, "a")
    w.insert(60, {"value": 1}, "b")
    mark = 99 if "granularity" in parts else 101  # panes have the times of their starts
    assert (w.info().keys, w.info().newest, w.info().high_water_mark) == (2, mark, mark)
    assert w.bulk_evict(1000, "a") == 12
    assert (w.key_names("", 9)[0], w.info().keys) == (["b"], 1)
    assert [answer.key for answer in w.query(None, [], None, ALL_KEYS)] == ["b"]
    assert (w.info().newest, w.info().high_water_mark) == (60, mark)
    # What was late stays late: now did not go back.
    assert w.insert(mark - 30, {"value": 1}, "a").late == 1
    assert w.insert(mark - 15, {"value": 1}, "a").inserted == 1
    newest = mark - 15 - (mark - 15) % parts.get("granularity", 1)
    assert (w.info().newest, w.info().high_water_mark) == (newest, mark)
    assert w.key_names("", 9)[0] == ["a", "b"]
    if "granularity" not in parts:
        short, long = w.query("a", [10, 20], None)
        assert (short.end, short.entries, long.end, long.entries) == (mark, 0, mark, 1)
    w.bulk_evict(1000, None)
    assert (w.info().keys, w.info().newest, w.info().high_water_mark) == (0, None, mark)
    assert w.key_names("", 9) == ([], None)
    assert w.query(None, [], None, ALL_KEYS) == []
    w.check_invariants()


def test_what_is_late_on_wall_time_moves_no_mark():
    w = Window(spec(slide={"max_age": 10, "clock": "wall"}), clock=ManualClock(1000 * S))
    assert w.insert(5, {"value": 1}, "a").late == 1
    assert w.bulk_insert(bulk([("a", 6), ("b", 7)], 0)).late == 2
    assert (w.info().high_water_mark, w.info().newest, w.info().keys) == (None, None, 0)


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


@pytest.mark.parametrize("emptied", [False, True])
def test_several_keys_together_go_by_the_newest_of_all_their_marks(emptied):
    w = Window(spec())
    w.bulk_insert(bulk([("a", 100), ("b", 80), ("c", 50)], 0))
    if emptied:
        w.bulk_evict(100, "a")
    for keys in (ALL_KEYS, ["a", "b", "c"]):
        (answer,) = w.query(None, ["25s"], None, keys, combine=True)
        assert (answer.start, answer.end, answer.entries) == (76, 100, 1 if emptied else 2)
    (answer,) = w.query(None, ["25s"], None, ["b", "c"], combine=True)
    assert (answer.start, answer.end, answer.entries) == (56, 80, 1)
    assert [answer.end for answer in w.query(None, ["25s"], None, ["a", "b", "c"])] == [100, 80, 50]


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


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_every_tier_keeps_marks_and_counts(kind, tmp_path):
    clock = ManualClock(1000 * S)
    with KINDS[kind](tmp_path) as stored:
        for start in range(2):
            storage = Storage(Catalogue(clock=clock), clock, stored.open(), block=4)
            await storage.start()
            if not start:
                await storage.create(spec(order={"ahead": "5m"}))
                rows = bulk([(key, time) for key in "ab" for time in range(900, 950)], 0)
                await storage.write("w", BulkInsert(rows))
                await storage.write("w", Insert(2000, {"value": 1}, "b"))
                await storage.write("w", BulkEvict(949, "a"))
                await storage.write("w", Insert(920, {"value": 1}, "c"))
                await storage.write("w", BulkEvict(949, "b"))
            window = storage.find("w")
            info = window.info()
            assert (info.keys, info.newest, info.high_water_mark, info.counts.ahead) == (1, 920, 949, 1)
            assert window.key_names("", 9)[0] == ["c"]
            assert [answer.end for answer in window.query(None, ["5s"], None, ["a", "c"])] == [949, 920]
            await storage.stop()


# ---------------------------------------------------------------- wall time


@pytest.mark.parametrize("parts", [{}, {"granularity": "10s"}, {"keyed": False}], ids=str)
def test_entries_ahead_of_wall_time_are_in_the_window_and_in_its_lookbacks(parts):
    clock = ManualClock(1000 * S)
    w = Window(spec(slide={"max_age": "60s", "clock": "wall"}, **parts), clock=clock)
    key = None if "keyed" in parts else "a"
    for time in (930, 950, 1000, 1020, 1060):
        w.insert(time, {"value": time}, key)
    (whole,), (lookback, short) = w.query(key, [], None), w.query(key, ["60s", "5s"], None)
    assert whole.aggregates == lookback.aggregates == {"n": 4, "sum": 4030, "max": 1060}
    assert (lookback.start, lookback.end, short.start, short.end, short.entries) == (941, 1060, 996, 1060, 3)
    (now,) = w.query(key, ["60s"], 1000)
    assert (now.end, now.entries) == (1000, 2)
    clock.advance(70 * S)
    (whole,), (lookback,) = w.query(key, [], None), w.query(key, ["60s"], None)
    assert whole.aggregates == lookback.aggregates == {"n": 2, "sum": 2080, "max": 1060}
    assert (lookback.start, lookback.end) == (1011, 1070)
    if key is not None:
        (together,) = w.query(None, ["60s"], None, ["a", "nobody"], combine=True)
        assert (together.start, together.end, together.aggregates) == (1011, 1070, whole.aggregates)
        (nobody,) = w.query("nobody", ["60s"], None)
        assert (nobody.start, nobody.end, nobody.entries) == (1011, 1070, 0)


def test_on_wall_time_a_key_that_time_has_emptied_is_not_listed_before_anything_evicts_it():
    clock = ManualClock(1000 * S)
    w = Window(spec(slide={"max_age": "60s", "clock": "wall"}), clock=clock)
    w.bulk_insert(bulk([("a", 1000), ("b", 1030)], 0))
    clock.advance(60 * S)
    assert w.counts.evicted == 0
    assert w.key_names("", 9)[0] == ["b"]
    assert [answer.key for answer in w.query(None, [], None, ALL_KEYS)] == ["b"]
    w.tidy()
    assert (w.info().keys, w.info().entries, w.info().newest) == (1, 1, 1030)


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
    with pytest.raises(InvalidArgument) as caught:
        ask(Window(spec()), start, end, "a", end_exclusive=exclusive)
    assert (caught.value.field, caught.value.limit) == (field, limit)


def test_a_key_that_was_never_written_has_no_entries_up_to_a_time():
    (answer,) = Window(spec()).query("nobody", as_of=17 * S)
    assert (answer.start, answer.end, answer.entries) == (None, 17 * S, 0)
