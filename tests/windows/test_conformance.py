"""Every aggregate × slide policy × order × block size × granularity against the fold, entry by entry.

A window has half of the aggregates of the catalogue. After each write, what it answers over everything, over a
lookback and over a range is compared with `lift` and `combine` over a plain list that was slid by the plainest code
there is.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings

from sash_engine.monoids.laws import close
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.aggregates import FIELDS, HALVES

HISTORIES = max(1, settings.default.max_examples // 100)
"""For each combination: one, and 50 in a soak."""
STEPS = 12
BLOCKS = [1, 2, 3, 8, 1024] if HISTORIES > 1 else [1, 3, 1024]
"""Each row a block, several blocks, one block. `make soak` has more in between."""
NEVER = float("-inf")
KEPT_SUM = 40
SLIDES = {
    "none": {},
    "count": {"max_count": 7},
    "age": {"max_age": 25},
    "when": {"when": f"total.sum_of_n - old.sum_of_n > {KEPT_SUM}"},
}


@dataclass
class Entry:
    """`at` is the time that the window goes by, `time` the entry's own."""

    at: int
    time: int
    x: float
    n: int
    s: str


@dataclass
class Plain:
    """One key, as a list."""

    slide: str
    equal: str
    granule: int
    entries: list[Entry] = field(default_factory=list)
    newest: float = NEVER
    late_through: float = NEVER

    def write(self, bulk: list[Entry]) -> tuple[int, int, int, int]:
        """How many were inserted, late, evicted and duplicates."""
        on_time = [entry for entry in bulk if entry.at > self.late_through]
        new = []
        for entry in on_time:
            at = [i for i, other in enumerate(new) if other.at == entry.at]
            old = [i for i, other in enumerate(self.entries) if other.at == entry.at]
            if self.equal == "keep" or not (at or old):
                new.append(entry)
            elif self.equal == "last" and at:
                new[at[0]] = entry
            elif self.equal == "last":
                self.entries[old[0]] = entry
        self.entries = sorted([*self.entries, *new], key=lambda entry: entry.at)
        self.newest = max([self.newest, *(entry.at for entry in on_time)])
        before = len(self.entries)
        if on_time:
            self._slide()
        return len(new), len(bulk) - len(on_time), before - len(self.entries), len(on_time) - len(new)

    def _slide(self) -> None:
        if self.slide == "age" and self.newest - 25 > self.late_through:
            self.late_through = self.newest - 25
            self.entries = [entry for entry in self.entries if entry.at > self.late_through]
        if self.slide == "count":
            self._evict(len(self.entries) - 7)
        if self.slide == "when":
            gone = 0
            for i in range(1, len(self.entries) + 1):
                pane_ends = i == len(self.entries) or self.entries[i].at != self.entries[i - 1].at
                if (self.granule == 1 or pane_ends) and sum(entry.n for entry in self.entries[i:]) > KEPT_SUM:
                    gone = i
            self._evict(gone)

    def _evict(self, count: int) -> None:
        if count > 0:
            self.late_through = max(self.late_through, self.entries[count - 1].at - 1)
            del self.entries[:count]


def fold(monoids, entries):
    """Every aggregate by its definition."""
    out = {}
    for name, (monoid, columns) in monoids.items():
        total = monoid.identity
        for entry in entries:
            values = tuple(getattr(entry, column) for column in columns)
            total = monoid.combine(total, monoid.lift(values[0] if len(values) == 1 else values))
        out[name] = monoid.lower(total)
    return out


def expect(monoids, answer, entries):
    assert answer.entries == len(entries)
    for name, expected in fold(monoids, entries).items():
        found = answer.aggregates[name]
        assert close(expected, found, 1e-9), f"{name}: {found}, not {expected}, over {entries}"


def some_entries(rng, n, first, granule):
    """Entries about `first`, in any order, some of one time."""
    out = []
    for _ in range(n):
        time = first + int(rng.integers(-18, 12))
        at = time - time % granule
        out.append(Entry(at, time, int(rng.integers(1, 40)) / 4, int(rng.integers(0, 16)), "abcde"[rng.integers(5)]))
    return out


COMBINATIONS = [
    (slide, equal, granule)
    for slide, equal, granule in itertools.product(SLIDES, ("keep", "first", "last"), (1, 6))
    if granule == 1 or (equal == "keep" and slide != "count")
]


CASES = [
    pytest.param(
        *combination,
        block,
        keyed,
        half,
        marks=() if (keyed, half) == ((i + j) % 2, (i // 2 + (j + 1) // 2) % 2) else pytest.mark.soak,
    )
    for i, combination in enumerate(COMBINATIONS)
    for j, block in enumerate(BLOCKS)
    for keyed, half in itertools.product((False, True), range(2))
]
"""All there are in a soak. Else each combination once with each block, in windows with and without keys, with both
halves of the aggregates."""


@pytest.mark.parametrize(("slide", "equal", "granule", "block", "keyed", "half"), CASES)
def test_every_aggregate_equals_the_fold(slide, equal, granule, block, keyed, half):
    document = {
        "name": "w",
        "time_unit": "none",
        "keyed": keyed,
        "fields": FIELDS,
        "aggregates": HALVES[half],
        "slide": SLIDES[slide],
        "order": {"equal_times": equal},
    }
    spec = WindowSpec.parse(document | ({"granularity": granule} if granule > 1 else {}))
    monoids = spec.monoids()
    for history in range(HISTORIES):
        rng = np.random.default_rng([history, block, granule, keyed, *map(ord, slide + equal)])
        w = Window(spec, block=block, pages=(2, 8))
        keys = ["a", "b"] if keyed else [None]
        plain = {key: Plain(slide, equal, granule) for key in keys}
        for step in range(STEPS):
            entries = some_entries(rng, int(rng.choice([1, 1, 2, 5, 12])), 7 * step - 30, granule)
            of = [keys[rng.integers(len(keys))] for _ in entries]
            if len(entries) == 1:
                (entry,) = entries
                result = w.insert(entry.time, {"x": entry.x, "n": entry.n, "s": entry.s}, of[0])
            else:
                result = w.bulk_insert(
                    Batch(
                        np.array([entry.time for entry in entries]),
                        {
                            "x": np.array([entry.x for entry in entries]),
                            "n": np.array([entry.n for entry in entries]),
                            "s": Coded.of([entry.s for entry in entries]),
                        },
                        Coded.of(of) if keyed else None,
                    )
                )
            counts = np.zeros(4, np.int64)
            for key in keys:
                counts += plain[key].write([entry for entry, its in zip(entries, of, strict=True) if its == key])
            assert (result.inserted, result.late, result.evicted, result.duplicates) == tuple(counts.tolist())
            check(monoids, w, keys[step % len(keys)], plain, rng)
        w.check_invariants(lambda monoid, a, b: close(monoid.lower(a), monoid.lower(b), 1e-9))


def check(monoids, w, key, plain, rng):
    mine = plain[key]
    (answer,) = w.query(key, [], None)
    expect(monoids, answer, mine.entries)
    if mine.newest > NEVER:
        width = int(rng.integers(1, 20))
        (answer,) = w.query(key, [width], None)
        expect(monoids, answer, [entry for entry in mine.entries if mine.newest - width < entry.at <= mine.newest])
    start = int(rng.integers(-50, 60))
    answer = w.range_query(start, start + 15, key)
    expect(monoids, answer, [entry for entry in mine.entries if start <= entry.at <= start + 15])
    assert w.info().entries == sum(len(other.entries) for other in plain.values())
