"""Windows of all kinds, in memory and stored side by side, and histories for them."""

from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import SashError
from sash_engine.windows.batches.batch import Batch, Coded, untimed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.shelf import Shelf
from tests.support.windows import functions

SECOND = 10**9
KEYS = list("abcdef")

FIELDS = {"n": "int64", "x": "float64", "word": "string", "flag": "bool"}
AGGREGATES = functions(
    all="collect n",
    words="collect word",
    count="count",
    sum="sum n",
    mean="mean x",
    last_flag="last flag",
    longest="max word",
    when={"function": "arg_max", "field": "n", "returns": "word"},
    distinct="distinct_count word",
    half="quantile x",
    often="frequent_items word",
)
MORE = {"least": {"function": "min", "field": "n"}, "spread": {"function": "range", "field": "x"}}

SPECS = {
    "plain": {},
    "max_age": {"slide": {"max_age": 12}},
    "max_count": {"slide": {"max_count": 7}},
    "both": {"slide": {"max_age": 20, "max_count": 9}},
    "when": {"slide": {"when": "total.sum - old.sum + old.last_n > 60"}},
    "wall": {"slide": {"max_age": "20s", "clock": "wall"}, "time_unit": "s"},
    "in order": {"slide": {"max_age": 12}, "order": {"out_of_order": "reject", "late": "reject"}},
    "first": {"slide": {"max_age": 15}, "order": {"equal_times": "first"}},
    "last": {"slide": {"max_count": 6}, "order": {"equal_times": "last"}},
    "reject": {"order": {"equal_times": "reject"}},
    "idle": {"idle_expiry": "15s"},
    "guard": {"slide": {"max_age": "20s"}, "order": {"ahead": "10s"}, "time_unit": "s"},
    "panes": {"slide": {"max_age": 20}, "granularity": 3},
    "sessions": {"slide": {"max_gap": 4}, "identity": "n"},
    "sessions of panes": {"slide": {"max_gap": 6}, "granularity": 3},
    "punctuation": {"slide": {"max_age": 12, "until": "punctuation"}},
    "steps": {"slide": {"max_age": 12, "every": 5}},
    "tumbling, wall": {"slide": {"max_age": "20s", "every": "20s", "clock": "wall"}, "time_unit": "s"},
    "identity": {"slide": {"max_count": 60}, "identity": "n"},
    "identity and when": {"slide": {"when": "total.sum - old.sum > 600"}, "identity": "word"},
}


def spec(name, keyed=True):
    aggregates = dict(AGGREGATES)
    if name == "when":
        aggregates["last_n"] = {"function": "last", "field": "n"}
    document = {"name": "w", "time_unit": "none", "keyed": keyed, "fields": FIELDS, "aggregates": aggregates}
    return WindowSpec.parse(document | SPECS[name])


def row(value):
    return {"n": value, "x": float(value % 13), "word": f"word {value % 5}", "flag": value % 3 == 0}


def bulk(pairs, value, keyed):
    rows = [row(value + i) for i in range(len(pairs))]
    columns = {
        "n": np.array([r["n"] for r in rows], np.int64),
        "x": np.array([r["x"] for r in rows], float),
        "word": Coded.of([r["word"] for r in rows]),
        "flag": np.array([r["flag"] for r in rows], bool),
    }
    times = np.array([time for _, time in pairs], np.int64)
    return Batch(times, columns, Coded.of([key for key, _ in pairs]) if keyed else None)


entries = st.tuples(st.sampled_from(KEYS), st.integers(0, 40))
steps = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, min_size=1, max_size=25)),
    st.tuples(st.just("bulk"), st.lists(st.tuples(st.just("a"), st.integers(0, 40)), min_size=1, max_size=25)),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), st.integers(0, 30))),
    st.tuples(
        st.just("evict_range"),
        st.tuples(st.sampled_from([*KEYS, None]), st.integers(0, 40), st.integers(-1, 12), st.booleans()),
    ),
    st.tuples(st.just("retract"), st.lists(st.integers(0, 60), max_size=12)),
    st.tuples(st.just("update"), st.lists(st.integers(0, 60), max_size=12)),
    st.tuples(st.sampled_from(["find_and_retract", "find_and_update"]), st.lists(st.integers(0, 60), max_size=5)),
    st.tuples(st.just("punctuate"), st.integers(0, 40)),
    st.tuples(st.just("wait"), st.integers(1, 12)),
    st.tuples(st.just("more"), st.none()),
    st.tuples(st.just("store"), st.none()),
    st.tuples(st.just("restart"), st.none()),
)


def a_share_of_examples(divisor):
    """Fewer examples than the profile says, where each is a whole history under many specs."""
    return settings(max_examples=max(1, settings.default.max_examples // divisor))


class Twins:
    """One window in memory, and one that is stored and restarted; all else is done to both."""

    def __init__(self, spec, pages=(2, 4), budget=0):
        self.keyed = spec.keyed
        self.clock = ManualClock(100 * SECOND)
        self.shelf = Shelf(budget)
        self.memory = Window(spec, block=4, pages=pages, clock=self.clock)
        self.stored = Window(spec, block=4, pages=pages, clock=self.clock, cold=self.shelf.cold)
        self.value = 0
        self.sent: list = []

    def step(self, what, details):
        getattr(self, what)(details)

    def insert(self, details):
        key, time = details
        self.value += 1
        self.both(lambda w: w.insert(self.shifted(time), row(self.value), key if self.keyed else None))
        self.sent.append((key, self.shifted(time), self.value))

    def bulk(self, pairs):
        pairs = [(key, self.shifted(time)) for key, time in pairs]
        self.both(lambda w: w.bulk_insert(bulk(pairs, self.value, self.keyed)))
        self.sent += [(key, time, self.value + i) for i, (key, time) in enumerate(pairs)]
        self.value += len(pairs)

    def named(self, ages):
        """The entries that were sent so long ago, and one that never was, as a bulk."""
        some = [self.sent[-1 - age] for age in ages if age < len(self.sent)]
        some = [*some, ("a", 7, -1)]
        rows = bulk([(key, time) for key, time, _ in some], 0, self.keyed)
        rows.columns["n"][:] = [value for _, _, value in some]
        words = Coded.of([row(value)["word"] for _, _, value in some])
        return Batch(rows.times, dict(rows.columns) | {"word": words}, rows.keys)

    def retract(self, ages):
        batch, identity = self.named(ages), self.memory.spec.identity or "n"
        self.both(lambda w: w.retract(Batch(batch.times, {identity: batch.columns[identity]}, batch.keys)))

    def update(self, ages):
        self.both(lambda w: w.update(self.named(ages)))

    def find_and_retract(self, ages):
        batch, identity = self.named(ages), self.memory.spec.identity or "n"
        times = untimed(len(batch.times))
        self.both(lambda w: w.retract(Batch(times, {identity: batch.columns[identity]}, batch.keys)))

    def find_and_update(self, ages):
        batch = self.named(ages)
        self.both(lambda w: w.update(replace(batch, times=untimed(len(batch.times)))))

    def evict(self, details):
        key, time = details
        self.both(lambda w: w.bulk_evict(self.shifted(time), key if self.keyed else None))

    def evict_range(self, details):
        key, start, width, reset = details
        start = self.shifted(start)
        self.both(lambda w: w.evict_range(start, start + width, key if self.keyed else None, reset))

    def punctuate(self, time):
        self.both(lambda w: w.punctuate(self.shifted(time)))

    def wait(self, seconds):
        self.clock.advance(seconds * SECOND)
        self.both(lambda w: w.tidy())

    def more(self, _):
        self.both(lambda w: w.add_aggregates(MORE).spec)

    def store(self, _):
        self.shelf.store(self.stored)

    def restart(self, _):
        self.stored, self.shelf = self.shelf.reopened(self.shelf.parts(self.stored), clock=self.clock)
        self.same()

    def shifted(self, time):
        return time + 100 if self.memory.spec.time_unit == "s" else time  # the clock begins there

    def both(self, operation):
        """Do it to both, with the same outcome."""
        outcomes = []
        for window in (self.memory, self.stored):
            try:
                outcomes.append(operation(window))
            except SashError as error:
                outcomes.append((type(error), error.message, error.field))
        assert outcomes[0] == outcomes[1]

    def same(self, numbers=True):
        """Both look the same from outside; and, if so wished, give keys the same numbers."""
        self.both(lambda w: w.info())
        self.both(lambda w: [getattr(w.keys, name)[w.keys.numbers()].tolist() for name in ("now", "late_through")])
        self.both(lambda w: w.keys.names())
        if numbers:
            self.both(lambda w: (w.keys.numbers().tolist(), w.keys.unused().tolist()))
        lookbacks = [] if self.memory.spec.time_unit == "none" else ["7s"]
        for key in KEYS if self.keyed else [None]:
            self.both(lambda w, key=key: w.query(key, [], None) + w.query(key, [5, 11, *lookbacks], None))
            self.both(lambda w, key=key: w.range_query(self.shifted(4), self.shifted(22), key))
            self.both(lambda w, key=key: listed(w.series(self.shifted(0), self.shifted(40), 4, 10, key)))
        self.stored.check_invariants(alike)


def alike(monoid, a, b):
    """Whether two partials have one answer: sketches do not compare."""
    return monoid.lower(a) == monoid.lower(b)


def listed(series):
    return series.entries.tolist(), {name: column.tolist() for name, column in series.aggregates.items()}
