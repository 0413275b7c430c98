"""A window of any kind of store beside the slow model of its times: what is late, what is ahead, what leaves."""

import numpy as np
from hypothesis import strategies as st

from sash.durability.images.export import Importer, export
from sash_engine.clock import ManualClock
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.model import NEVER, slow_window
from tests.support.shelf import Shelf
from tests.support.twins import alike

S = 10**9
START = 1000
KEYS = list("abcd")
AGGREGATES = {"n": {"function": "count"}, "sum": {"function": "sum"}, "max": {"function": "max"}}
IN_ORDER = AGGREGATES | {"all": {"function": "collect"}}
GRANULE = 3
STORES = {
    "pages": {"pages": (2, 4)},
    "large pages": {"pages": (4, 64)},
    "forests": {"pages": None},
    "panes": {"granularity": GRANULE},
    "one key": {"keyed": False},
}

LAST = 2**63 - 2
offsets = st.integers(-25, 25)
entries = st.tuples(st.sampled_from(KEYS), offsets)


def value_of(i):
    """Values of which no two sums are alike by chance."""
    return i * i * 7919 % 1_000_003 * 1009 + i


def fold(values):
    return {"n": len(values), "sum": sum(values), "max": max(values, default=None), "all": list(values)}


def of_several(values):
    """As `fold`, of several keys, whose entries have no order."""
    return {name: answer for name, answer in fold(values).items() if name != "all"}


def bulk(pairs, first, keyed=True):
    times = np.array([time for _, time in pairs], np.int64)
    values = np.array([value_of(first + i) for i in range(len(pairs))], np.int64)
    return Batch(times, {"value": values}, Coded.of([key for key, _ in pairs]) if keyed else None)


def spec(**parts):
    document = {"name": "w", "time_unit": "s", "keyed": True, "fields": {"value": "int64"}, "aggregates": AGGREGATES}
    return WindowSpec.parse(document | parts)


class TimesLockstep:
    """A window of one kind of store, beside a slow model.

    Args:
        store: one of `STORES`.
        slide: the slide policy, without its clock.
        ahead: how far ahead of wall time an entry may be; None: as far as it likes.
        wall: whether now is wall time.
    """

    def __init__(self, store, slide=None, ahead=None, wall=False, block=4):
        options = dict(STORES[store])
        self.slide, self.wall, self.block = slide or {}, wall, block
        self.pages = options.pop("pages", (2, 4))
        self.keyed = options.get("keyed", True)
        self.granule = options.get("granularity", 1)
        clocked = self.slide | ({"clock": "wall"} if wall else {})
        order = {"ahead": ahead} if ahead else {}
        self.spec = spec(slide=clocked, order=order, aggregates=IN_ORDER, **options)
        self.clock, self.shelf = ManualClock(START * S), Shelf()
        self.window = Window(self.spec, block=block, pages=self.pages, clock=self.clock, cold=self.shelf.cold)
        self.slow = slow_window(ahead=ahead, wall=wall, **self.slide)
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

    def evict_wrong(self, what):
        """Entries of a range leave, and the marks that they have set go back."""
        key, start, width = what
        start, name = self.now + start, key if self.keyed else None
        slows = list(self.slow.values()) if name is None else [self.model(key)]
        gone = sum(slow.evict_wrong(start, start + width) for slow in slows)
        assert self.window.evict_range(start, start + width, name, reset_mark=True) == gone

    def evict_range(self, what):
        key, start, width = what
        start, name = self.now + start, key if self.keyed else None
        slows = list(self.slow.values()) if name is None else [self.model(key)]
        gone = sum(slow.evict_range(start, start + width) for slow in slows)
        assert self.window.evict_range(start, start + width, name) == gone

    def punctuate(self, time):
        if "until" not in self.slide:
            return
        for key in KEYS:
            self.model(key)
        time += self.now
        final = time - (time + 1) % self.granule  # panes are final when all of their time is
        gone = sum([slow.punctuate(final) for slow in self.slow.values()])
        assert self.window.punctuate(time) == gone

    def wait(self, seconds):
        self.clock.advance(seconds * S)

    def restart(self, _):
        self.window, self.shelf = self.shelf.reopened(self.shelf.parts(self.window), clock=self.clock)

    def export(self, _):
        shelf = Shelf()
        importer = Importer(
            lambda document: Window(document, block=self.block, pages=self.pages, clock=self.clock, cold=shelf.cold)
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
            if self.keyed:
                several = self.window.range_query(start, end, None, KEYS, False, exclusive, list(AGGREGATES))
                everyone = [each for slow in self.slow.values() for each in slow.between(start, last)]
                assert (several.end, several.aggregates) == (last, of_several(everyone))
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
        (before,) = self.window.query(name, [], self.now - 2)
        times = [time for time in times if time <= self.now - 2]
        assert before.aggregates == fold(mine.between(NEVER, self.now - 2))
        assert (before.start, before.end) == (min(times, default=None), self.now - 2)
        is_its_lookback = self.slide.keys() <= {"max_age", "max_count"}
        for lookback in (1, 7, 12, self.slide.get("max_age", 30)):
            (answer,) = self.window.query(name, [lookback], None)
            if mine.now == NEVER:
                assert (answer.start, answer.end, answer.entries) == (None, None, 0)
                continue
            assert (answer.start, answer.end, answer.lookback) == (mine.now - lookback + 1, mine.end, str(lookback))
            assert answer.aggregates == fold(mine.trailing(lookback)) == fold(mine.between(answer.start, answer.end))
            if lookback == self.slide.get("max_age") and is_its_lookback:
                assert answer.aggregates == whole.aggregates, "a window with a max_age is its own lookback"
            (earlier,) = self.window.query(name, [lookback], mine.now - 2)
            assert (earlier.start, earlier.end) == (mine.now - 1 - lookback, mine.now - 2)
            assert earlier.aggregates == fold(mine.between(earlier.start, earlier.end))

    def check_together(self, keys, models):
        names = list(AGGREGATES)
        (whole,) = self.window.query(None, [], None, keys, combine=True, aggregates=names)
        everything = [entry for mine in models for entry in mine.entries]
        times = [time for time, _ in everything]
        assert whole.aggregates == of_several([value for _, value in everything])
        assert (whole.start, whole.end) == (min(times, default=None), max(times, default=None))
        now, end = (max(getattr(mine, name) for mine in models) for name in ("now", "end"))
        (answer,) = self.window.query(None, [9], None, keys, combine=True, aggregates=names)
        assert answer.aggregates == of_several([value for time, value in everything if now - 9 < time <= end])
        assert (answer.start, answer.end) == ((None, None) if now == NEVER else (now - 8, end))

    def check_info(self, filled):
        info, slow = self.window.info(), list(self.slow.values())
        assert info.keys == len(filled)
        assert info.entries == sum(len(mine.entries) for mine in slow)
        assert info.newest == max((mine.newest for mine in slow if mine.entries), default=None)
        mark = max((mine.mark for mine in slow), default=NEVER)
        assert info.high_water_mark == (None if mark == NEVER else mark)
        final = max((mine.punctuated for mine in slow if mine.punctuated is not None), default=NEVER)
        assert info.punctuated == (None if final == NEVER else final)
        slid = max((mine.slid for mine in slow), default=NEVER)
        assert slid == NEVER or info.evicted_through >= slid, "no newer entry was evicted by the slide policy"
        for name, counted in (("inserted", "inserted"), ("late", "late"), ("evicted", "evicted"), ("ahead", "too_far")):
            assert getattr(info.counts, name) == sum(getattr(mine, counted) for mine in slow), name
