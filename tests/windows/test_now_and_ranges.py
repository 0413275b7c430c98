"""What now is, which keys are listed, where ranges end, what is too far ahead: every store against the slow model.

late      mark - 12          mark                       event time: now is the mark
----------|---------------------|
                  now - 12            now   |           wall time: entries may be ahead of now
------------------|--------------------|----|
                                           now + 8 |    order.ahead: what is later is dropped, or refused
"""

import asyncio

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sash.durability.catalogue import Catalogue
from sash.durability.export import Importer, export
from sash.durability.records import BulkEvict, BulkInsert, Insert
from sash.durability.storage import Storage
from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from sash_engine.windows.batch import Batch, Coded, PartialBatch
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.model import NEVER, slow_window
from tests.support.shelf import Shelf
from tests.support.stored import Server
from tests.support.tiers import KINDS
from tests.support.twins import alike

S = 10**9
START = 1000
KEYS = list("abcd")
AGGREGATES = {"n": {"function": "count"}, "sum": {"function": "sum"}, "max": {"function": "max"}}
GRANULE = 3
STORES = {
    "pages": {"pages": (2, 4)},
    "large pages": {"pages": (4, 64)},
    "forests": {"pages": None},
    "panes": {"granularity": GRANULE},
    "fiba": {"algorithm": "fiba"},
    "one key": {"keyed": False},
}

offsets = st.integers(-25, 25)
entries = st.tuples(st.sampled_from(KEYS), offsets)
steps = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, max_size=15)),
    st.tuples(st.just("bulk"), st.lists(st.tuples(st.just("a"), offsets), max_size=15)),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), offsets)),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), st.just(60))),
    st.tuples(st.just("wait"), st.integers(1, 15)),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("export"), st.none()),
    st.tuples(st.just("range"), st.tuples(st.sampled_from(KEYS), offsets, st.integers(1, 20))),
)


def value_of(i):
    """Values of which no two sums are alike by chance."""
    return i * i * 7919 % 1_000_003 * 1009 + i


def fold(values):
    return {"n": len(values), "sum": sum(values), "max": max(values, default=None)}


def bulk(pairs, first, keyed=True):
    times = np.array([time for _, time in pairs], np.int64)
    values = np.array([value_of(first + i) for i in range(len(pairs))], np.int64)
    return Batch(times, {"value": values}, Coded.of([key for key, _ in pairs]) if keyed else None)


def spec(**parts):
    document = {"name": "w", "time_unit": "s", "keyed": True, "fields": {"value": "int64"}, "aggregates": AGGREGATES}
    return WindowSpec.parse(document | parts)


class Checked:
    """A window of one kind of store, beside a slow model."""

    def __init__(self, store, max_age=None, max_count=None, ahead=None, wall=False):
        options = dict(STORES[store])
        self.pages = options.pop("pages", (2, 4))
        self.keyed = options.get("keyed", True)
        self.granule = options.get("granularity", 1)
        self.stores_values = "algorithm" not in options
        self.wall, self.max_age = wall, max_age
        slide = {"clock": "wall" if wall else "event"}
        slide |= {name: limit for name, limit in (("max_age", max_age), ("max_count", max_count)) if limit}
        self.spec = spec(slide=slide, order={"ahead": ahead} if ahead else {}, **options)
        self.clock, self.shelf = ManualClock(START * S), Shelf()
        self.window = Window(self.spec, block=4, pages=self.pages, clock=self.clock, cold=self.shelf.cold)
        self.slow = slow_window(max_age, max_count, ahead, wall)
        self.value = 0

    def run(self, history):
        for step, what in history:
            getattr(self, step)(what)
            self.check()

    # ---------------------------------------------------------------- steps

    def insert(self, what):
        key, time = self.placed(what)
        result = self.window.insert(time, {"value": value_of(self.value)}, key if self.keyed else None)
        self.written(result, [(key, time)])

    def bulk(self, what):
        pairs = [self.placed(entry) for entry in what]
        self.written(self.window.bulk_insert(bulk(pairs, self.value, self.keyed)), pairs)

    def evict(self, what):
        key, time = what
        name = key if self.keyed else None
        slows = list(self.slow.values()) if name is None else [self.model(key)]
        gone = sum(slow.evict(self.now + time) for slow in slows)
        assert self.window.bulk_evict(self.now + time, name) == gone

    def wait(self, seconds):
        self.clock.advance(seconds * S)

    def restart(self, _):
        if self.stores_values:
            self.window, self.shelf = self.shelf.reopened(self.shelf.parts(self.window), clock=self.clock)

    def export(self, _):
        if self.stores_values:
            shelf = Shelf()
            importer = Importer(
                lambda document: Window(document, block=4, pages=self.pages, clock=self.clock, cold=shelf.cold)
            )
            importer.feed(b"".join(export(self.window)))
            self.window, self.shelf = importer.finish(), shelf
            shelf.layout = self.window.layout

    def range(self, what):
        key, start, width = what
        model, name, start = self.model(key), key if self.keyed else None, self.now + start
        end = start + width
        for exclusive in (False, True):
            last = end - exclusive
            answer = self.window.range_query(start, end, name, end_exclusive=exclusive)
            assert (answer.start, answer.end, answer.aggregates) == (start, last, fold(model.between(start, last)))
            several = self.window.range_query(start, end, None, KEYS, end_exclusive=exclusive) if self.keyed else answer
            everyone = [each for slow in self.slow.values() for each in slow.between(start, last)]
            assert (several.end, several.aggregates) == (last, fold(everyone))
            if self.stores_values:
                found = self.window.entries(start, end, name, end_exclusive=exclusive)
                times = np.concatenate([np.empty(0, np.int64), *(batch.times for batch in found)])
                expected = [time for time, _ in model.entries if start <= time <= last]
                assert times.tolist() == (expected if self.granule == 1 else sorted(set(expected)))
        tiles = [self.window.range_query(t, t + 4, name, end_exclusive=True) for t in range(start, start + 20, 4)]
        whole = self.window.range_query(start, start + 20, name, end_exclusive=True)
        assert sum(tile.entries for tile in tiles) == whole.entries

    # ---------------------------------------------------------------- the model

    @property
    def now(self):
        return self.clock.now_ns() // S

    def placed(self, entry):
        key, time = entry
        return (key if self.keyed else "a"), self.now + time

    def model(self, key):
        slow = self.slow[key if self.keyed else "a"]
        slow.time = self.now
        return slow

    def written(self, result, pairs):
        """Write to the model what was written to the window, and compare what became of it."""
        counts, far = np.zeros(3, int), 0
        for key in dict.fromkeys(key for key, _ in pairs):
            mine = self.model(key)
            before = mine.too_far
            counts += mine.write(
                [
                    (time - time % self.granule, value_of(self.value + i))
                    for i, (of, time) in enumerate(pairs)
                    if of == key
                ]
            )
            far += mine.too_far - before
        self.value += len(pairs)
        assert [result.inserted, result.late, result.evicted, result.ahead] == [*counts.tolist(), far]

    # ---------------------------------------------------------------- what must hold

    def check(self):
        window, slow = self.window, self.slow
        for key in KEYS:
            self.model(key)
        if self.wall:
            for mine in slow.values():
                mine.slide()
        filled = {key for key, mine in slow.items() if mine.entries}
        if self.keyed:
            listed, position = [], 0
            while position is not None:
                found, position = window.key_names("", 2, position)
                listed += found
            assert listed == [key for key in window.keys.names() if key in filled], "those with entries, by first entry"
            answers = window.query(None, [3], None, ALL_KEYS)
            assert [answer.key for answer in answers] == listed
            self.check_together(ALL_KEYS, list(slow.values()))
            self.check_together(KEYS[:2], [slow[key] for key in KEYS[:2]])
        for key in KEYS if self.keyed else ["a"]:
            self.check_key(key)
        self.check_info(filled)
        window.check_invariants(alike)

    def check_key(self, key):
        mine, name = self.slow[key], key if self.keyed else None
        (whole,) = self.window.query(name, [], None)
        assert whole.aggregates == fold([value for _, value in mine.entries])
        times = [time for time, _ in mine.entries]
        assert (whole.start, whole.end) == (min(times, default=None), max(times, default=None))
        for lookback in (1, 7, 12, self.max_age or 30):
            (answer,) = self.window.query(name, [lookback], None)
            if mine.now == NEVER:
                assert (answer.start, answer.end, answer.entries) == (None, None, 0)
                continue
            assert (answer.start, answer.end) == (mine.now - lookback + 1, max(mine.now, mine.mark))
            assert answer.aggregates == fold(mine.trailing(lookback)) == fold(mine.between(answer.start, answer.end))
            if lookback == self.max_age:
                assert answer.aggregates == whole.aggregates, "a window with a max_age is its own lookback"
            (earlier,) = self.window.query(name, [lookback], mine.now - 2)
            assert (earlier.start, earlier.end) == (mine.now - 1 - lookback, mine.now - 2)
            assert earlier.aggregates == fold(mine.between(earlier.start, earlier.end))

    def check_together(self, keys, models):
        (whole,) = self.window.query(None, [], None, keys, combine=True)
        everything = [entry for mine in models for entry in mine.entries]
        times = [time for time, _ in everything]
        assert whole.aggregates == fold([value for _, value in everything])
        assert (whole.start, whole.end) == (min(times, default=None), max(times, default=None))
        mark = max((mine.mark for mine in models), default=NEVER)
        now = self.now if self.wall else mark
        (answer,) = self.window.query(None, [9], None, keys, combine=True)
        assert answer.aggregates == fold([value for time, value in everything if time > now - 9])
        assert (answer.start, answer.end) == ((None, None) if now == NEVER else (now - 8, max(now, mark)))

    def check_info(self, filled):
        info, slow = self.window.info(), list(self.slow.values())
        assert info.keys == len(filled)
        assert info.entries == sum(len(mine.entries) for mine in slow)
        assert info.newest == max((mine.newest for mine in slow if mine.entries), default=None)
        mark = max((mine.mark for mine in slow), default=NEVER)
        assert info.high_water_mark == (None if mark == NEVER else mark)
        for name, counted in (("inserted", "inserted"), ("late", "late"), ("evicted", "evicted"), ("ahead", "too_far")):
            assert getattr(info.counts, name) == sum(getattr(mine, counted) for mine in slow), name


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
    Checked(store, max_age, max_count, ahead, wall).run(history)


# ---------------------------------------------------------------- the mark, and keys without entries


ALGORITHMS = [{}, {"granularity": GRANULE}, {"algorithm": "daba_lite"}, {"algorithm": "amta"}]


@pytest.mark.parametrize("pages", [(2, 4), (4, 64), None])
@pytest.mark.parametrize("parts", ALGORITHMS, ids=str)
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
    if "granularity" not in parts and parts.get("algorithm") != "daba_lite":
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
    assert (w.info().high_water_mark, w.info().newest, w.info().keys, w.keys_there) == (100, None, 0, 0)
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
    server = Server(cache_bytes=0, store_entries=1)
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


@pytest.mark.parametrize("parts", [{}, {"granularity": "10s"}, {"algorithm": "fiba"}, {"keyed": False}], ids=str)
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


LAST = 2**63 - 2


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


# ---------------------------------------------------------------- too far ahead


def guarded(policy="drop", now=1000, **parts):
    order = {"ahead": "5m", "too_far_ahead": policy} | parts.pop("order", {})
    return Window(spec(slide={"max_age": "1h"}, order=order, **parts), clock=ManualClock(now * S))


def test_one_entry_of_tomorrow_slides_nothing_away():
    w = guarded()
    w.bulk_insert(bulk([("a", 900), ("a", 1300), ("b", 990)], 0))
    assert w.insert(1000 + 86_400, {"value": 1}, "a").ahead == 1
    result = w.bulk_insert(bulk([("c", 2000), ("a", 1301), ("a", 1000), ("b", 99_999)], 3))
    assert (result.inserted, result.late, result.evicted, result.ahead) == (1, 0, 0, 3)
    info = w.info()
    assert (info.newest, info.high_water_mark, info.entries, info.counts.ahead) == (1300, 1300, 4, 4)
    assert (w.key_names("", 9)[0], w.keys_there) == (["a", "b"], 2)
    result = w.bulk_insert(bulk([("c", 2000), ("d", 2000)], 7))
    assert (result.inserted, result.ahead, w.counts.ahead, w.keys_there) == (0, 2, 6, 2)
    w.check_invariants()


def test_a_write_that_has_an_entry_of_tomorrow_is_rejected_and_changes_nothing():
    w = guarded("reject")
    for write, entries in (
        (lambda: w.insert(1301, {"value": 1}, "a"), 1),
        (lambda: w.bulk_insert(bulk([("a", 1000), ("a", 1301), ("b", 5000)], 0)), 2),
    ):
        with pytest.raises(FailedPrecondition, match=f"and {entries} of this write are") as caught:
            write()
        assert (caught.value.field, caught.value.limit) == ("time", "time <= 1300")
    info = w.info()
    assert (info.entries, info.keys, info.high_water_mark, info.counts.ahead) == (0, 0, None, 0)
    assert w.keys_there == 0
    assert w.bulk_insert(bulk([("a", 1000), ("a", 1300)], 0)).inserted == 2


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_wall_time_is_of_the_windows_unit(unit):
    per_s = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    w = guarded(time_unit=unit)
    through = 1300 * per_s
    assert w.insert(through, {"value": 1}, "a").inserted == 1
    assert w.insert(through + 1, {"value": 1}, "a").ahead == 1


def test_what_is_too_far_ahead_is_as_if_it_had_not_been_sent():
    """No other order policy sees it: the entry behind it is in order, and it is no duplicate."""
    w = guarded(order={"out_of_order": "reject", "equal_times": "reject", "late": "reject"})
    result = w.bulk_insert(bulk([("a", 1000), ("a", 9000), ("a", 1001), ("a", 9000)], 0))
    assert (result.inserted, result.ahead, result.duplicates) == (2, 2, 0)
    assert w.insert(9000, {"value": 1}, "a").ahead == 1
    with pytest.raises(FailedPrecondition, match="in order of time only"):
        w.bulk_insert(bulk([("a", 9000), ("a", 999)], 4))
    assert w.counts.ahead == 3


def test_of_partials_the_entries_that_they_stand_for_are_counted():
    w = guarded(keyed=False, granularity="1m", aggregates={"sum": {"function": "sum", "field": "value"}})

    def partials(times, entries):
        sums = (np.array([value.to_bytes(9, "little", signed=True) for value in entries], object),)
        return PartialBatch(np.array(times), {"sum": sums}, np.array(entries, np.int64))

    result = w.bulk_insert(partials([960, 1290, 1310, 9000], [2, 3, 50, 700]))
    assert (result.inserted, result.ahead) == (55, 700), "a pane that starts in time is in time"
    w.counts.ahead = 2**62 - 100
    with pytest.raises(ResourceExhausted, match=f"was sent {2**62 - 45} entries"):
        w.bulk_insert(partials([9000], [100]))
    assert w.counts.ahead == 2**62 - 100


def test_a_guard_may_reach_beyond_all_times():
    w = Window(spec(keyed=False, order={"ahead": 2**63 - 1}), clock=ManualClock(1000 * S))
    assert w.insert(LAST, {"value": 1}, None).inserted == 1
    assert w.bulk_insert(bulk([("", LAST), ("", 0)], 0, keyed=False)).inserted == 2


def test_a_guard_needs_wall_time():
    for order, parts, field in (
        ({"ahead": "5m"}, {"time_unit": "none"}, "order.ahead"),
        ({"ahead": 5}, {"time_unit": "none"}, "order.ahead"),
        ({"ahead": "1ms"}, {}, "order.ahead"),
        ({"ahead": 0}, {}, "order.ahead"),
        ({"ahead": "soon"}, {}, "order.ahead"),
        ({"too_far_ahead": "drop"}, {}, "order.too_far_ahead"),
        ({"ahead": "5m", "too_far_ahead": "keep"}, {}, "order.too_far_ahead"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            spec(order=order, **parts)
        assert caught.value.field == field
    assert spec(order={"ahead": "5m"}) == spec(order={"ahead": "5m", "too_far_ahead": "drop"})
    assert "ahead" not in str(spec().document()), "earlier versions read the specs of windows that have no guard"


def test_the_count_is_stored_where_there_is_one():
    w = guarded()
    assert "ahead" not in w.counts.document(), "earlier versions read the counts of windows that have no guard"
    w.insert(9000, {"value": 1}, "a")
    assert w.counts.document() == {"inserted": 0, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 1}


# ---------------------------------------------------------------- replays decide alike


moments = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, max_size=9)),
    st.tuples(st.just("batch"), st.tuples(st.lists(st.lists(entries, max_size=5), max_size=3), st.integers(0, 15))),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), offsets)),
    st.tuples(st.just("wait"), st.integers(1, 15)),
    st.sampled_from([("crash", None), ("restart", None)]),
)


async def follow(history, policy, checkpoint_bytes):
    server = Server(checkpoint_bytes=checkpoint_bytes)
    server.clock.advance(START * S)
    storage = await server.start()
    document = spec(order={"ahead": "8s", "too_far_ahead": policy}, slide={"max_age": "20s"})
    await storage.create(document)
    model, value, number = Window(document, clock=server.clock), 0, 0
    for step, what in history:
        now = server.clock.now_ns() // S
        if step == "insert":
            key, time = what
            write = {"value": value_of(value)}
            await both(storage.write("w", Insert(now + time, write, key)), model.insert, now + time, write, key)
            value += 1
        elif step == "bulk":
            rows = bulk([(key, now + time) for key, time in what], value)
            await both(storage.write("w", BulkInsert(rows)), model.bulk_insert, rows)
            value += len(what)
        elif step == "batch":
            parts, seconds = what
            stages, pairs = [], []
            for part in parts:
                rows = [(key, now + time) for key, time in part]
                staged = await storage.stage("w", bulk(rows, value + len(pairs)), "q", number)
                stages.append(staged.stage)
                pairs += rows
            server.clock.advance(seconds * S)  # the commit decides, at its time
            await both(storage.commit("w", "q", number, stages), model.bulk_insert, bulk(pairs, value))
            value, number = value + len(pairs), number + 1
        elif step == "evict":
            key, time = what
            await storage.write("w", BulkEvict(now + time, key))
            model.bulk_evict(now + time, key)
        elif step == "wait":
            server.clock.advance(what * S)
        else:
            storage = await getattr(server, step)()
        same(storage.find("w"), model)
    storage = await server.crash()
    same(storage.find("w"), model)
    await storage.stop()


async def both(write, modelled, *arguments):
    """Write to the window and to its model: both are refused, or both do the same."""

    async def of_the_model():
        return modelled(*arguments)

    outcomes = []
    for result in (write, of_the_model()):
        try:
            done = await result
            outcomes.append((done.inserted, done.late, done.evicted, done.ahead))
        except FailedPrecondition as error:
            outcomes.append((error.message, error.field, error.limit))
    assert outcomes[0] == outcomes[1]


def same(window, model):
    info, expected = window.info(), model.info()
    assert info.counts == expected.counts
    assert (info.newest, info.high_water_mark, info.keys) == (expected.newest, expected.high_water_mark, expected.keys)
    assert window.key_names("", 9) == model.key_names("", 9)
    assert window.query(None, [], None, KEYS) == model.query(None, [], None, KEYS)
    window.check_invariants(alike)


@given(st.lists(moments, max_size=20), st.sampled_from(["drop", "reject"]), st.sampled_from([300, 2000, 10**6]))
def test_a_replay_finds_ahead_what_the_write_found_ahead(history, policy, checkpoint_bytes):
    asyncio.run(follow(history, policy, checkpoint_bytes))


async def test_a_commit_decides_at_its_own_time():
    for waited, done in ((0, (1, 1)), (10, (2, 0))):
        server = Server()
        server.clock.advance(START * S)
        storage = await server.start()
        await storage.create(spec(order={"ahead": "5s"}))
        staged = await storage.stage("w", bulk([("a", START), ("a", START + 12)], 0), "q", 0)
        assert staged.entries == 2
        server.clock.advance(waited * S)
        result = await storage.commit("w", "q", 0, [staged.stage])
        assert (result.inserted, result.ahead) == done
        server.clock.advance(100 * S)
        storage = await server.crash()
        counts = storage.find("w").counts
        assert (counts.inserted, counts.ahead) == done
        await storage.stop()


async def test_a_rejected_commit_may_be_sent_again():
    server = Server()
    server.clock.advance(START * S)
    storage = await server.start()
    await storage.create(spec(order={"ahead": "5s", "too_far_ahead": "reject"}))
    staged = await storage.stage("w", bulk([("a", START), ("a", START + 12)], 0), "q", 0)
    with pytest.raises(FailedPrecondition, match="too far ahead"):
        await storage.commit("w", "q", 0, [staged.stage])
    assert storage.find("w").info().entries == 0
    server.clock.advance(7 * S)
    assert (await storage.commit("w", "q", 0, [staged.stage])).inserted == 2
    await storage.stop()
