"""A store of each kind beside a list of its entries."""

from __future__ import annotations

import numpy as np
import pytest

from sash_engine.errors import Unsupported
from sash_engine.forest import Cache, Cold, Forest, Layout
from sash_engine.monoids import Max
from sash_engine.windows.batches.panes import Panes
from sash_engine.windows.keys.pages import PAGES, Pages
from sash_engine.windows.keys.small_key import SmallKey
from sash_engine.windows.spec.window import WindowSpec
from tests.support.cold_model import Tier

BLOCK = 8
SPEC = WindowSpec.parse(
    {
        "name": "w",
        "time_unit": "none",
        "fields": {"value": "int64"},
        "aggregates": {
            "all": {"function": "collect", "field": "value"},
            "n": {"function": "count"},
            "sum": {"function": "sum", "field": "value"},
        },
        "granularity": 1,
    }
)
PANES = Panes(SPEC, BLOCK)
ENTRIES = Layout(SPEC.fields, SPEC.monoids(), BLOCK)
WIDER = Layout(SPEC.fields, SPEC.monoids() | {"max": (Max("int64"), ["value"])}, BLOCK)

KINDS = ["forest", "tiered forest", "small key", "panes", "tiered panes", "small panes"]
TIERED = [kind for kind in KINDS if kind.startswith("tiered")]
OF_PANES = [kind for kind in KINDS if "panes" in kind]
OF_VALUES = ["forest", "tiered forest", "small key"]


class StoreLockstep:
    """A store beside its model; the steps are those of `tests.support.forest_model`, and some more.

    Attributes:
        rows: time and values of each row, sorted by (time, arrival).
    """

    def __init__(self, kind):
        self.kind = kind
        self.panes = kind in OF_PANES
        self.layout = PANES.layout if self.panes else ENTRIES
        self.rows, self.arrivals, self.now = [], 0, 0
        self.captured = []
        self.tier = Tier()
        self.cold = Cold(self.tier.load, Cache(budget_bytes=0)) if kind in TIERED else None
        self.store = self._made()

    def _made(self):
        if not self.kind.startswith("small"):
            return Forest(self.layout, self.cold)
        pages = Pages(self.layout, PAGES[0], 1024)
        pages.reach(3)
        for neighbour in (0, 2):  # whose rows are not this key's
            pages.insert(neighbour, 1, self._row(1, -1))
        return SmallKey(pages, 1)

    def _row(self, time, value):
        return PANES.lifted(time, (value,)) if self.panes else (value,)

    def _columns(self, times, values):
        if not self.panes or not len(times):
            return times, [values]
        order = np.argsort(times, kind="stable")
        rows = [column[order] for column in PANES.rows(times, [values], partials=False)]
        _, (starts, *columns) = PANES.folded(rows, np.array([len(times)]), partials=False)
        return starts, columns

    def run(self, steps):
        for step in steps:
            getattr(self, step[0])(*step[1:])
            self.check()

    def check(self):
        store, rows = self.store, self.rows
        for time in (self.now, self.now - 7):
            older = [row for row, _ in rows if row <= time]
            newer = [row for row, _ in rows if row > time]
            assert store.neighbours(time) == (max(older, default=None), min(newer, default=None))
        assert len(store) == sum(len(values) for _, values in rows)
        assert store.oldest == (rows[0][0] if rows else None)
        assert store.newest == (rows[-1][0] if rows else None)
        expected = self.answers(rows)
        assert store.query() == expected
        assert self.layout.lower(len(store), store.totals()) == expected
        store.check_invariants()
        self._check_rows(store.columns(), rows)
        if self.cold is not None:
            self.cold.cache.trim()

    def _check_rows(self, columns, rows):
        assert columns[0].tolist() == [time for time, _ in rows]
        if self.panes:
            assert columns[1].tolist() == [len(values) for _, values in rows]
            assert columns[-1].tolist() == [sum(values) for _, values in rows]
        else:
            assert columns[1].tolist() == [values[0] for _, values in rows]

    def answers(self, rows):
        values = [value for _, those in rows for value in those]
        return [values, len(values), sum(values)]

    def between(self, start, stop):
        return [row for row in self.rows if start <= row[0] < stop]

    # ---------------------------------------------------------------- writes

    def _write(self, times, write):
        values = list(range(self.arrivals, self.arrivals + len(times)))
        write(values)
        for time, value in zip(times, values, strict=True):
            same = [row for row in self.rows if row[0] == time] if self.panes else []
            if same:
                same[0][1].append(value)
            else:
                self.rows.append((time, [value]))
                self.rows.sort(key=lambda row: row[0])
        self.arrivals += len(times)
        self.now = max([self.now, *times])

    def insert(self, after):
        time = self.now + after
        self._write([time], lambda values: self.store.insert(time, self._row(time, values[0])))

    def bulk(self, steps):
        times = (self.now + np.cumsum(np.array(steps, np.int64))).astype(np.int64)
        self._write(times.tolist(), lambda values: self.store.bulk_insert(*self._columns(times, np.array(values))))

    def evict(self, count):
        assert self.store.evict(count) == min(count, len(self.rows))
        del self.rows[:count]

    def bulk_evict(self, after):
        time = self.now + after
        gone = self.between(-(2**63), time + 1)
        self.store.load_evicted(time)
        self.tier.down = True  # all that is needed is in memory now
        try:
            assert self.store.bulk_evict(time) == sum(len(values) for _, values in gone)
        finally:
            self.tier.down = False
        del self.rows[: len(gone)]

    def evict_between(self, after, width):
        start, end = self.now + after, self.now + after + width
        gone = self.between(start, end + 1)
        self.store.load_between(start, end)
        self.tier.down = True  # all that is needed is in memory now
        try:
            assert self.store.evict_between(start, end) == sum(len(values) for _, values in gone)
        finally:
            self.tier.down = False
        self.rows = [row for row in self.rows if row not in gone]

    def remove(self, places):
        gone = [self.rows[place] for place in sorted({place % len(self.rows) for place in places})] if self.rows else []
        times = np.array([self.now - 3, *(time for time, _ in gone)])
        values = [-1, *(values[0] for _, values in gone)]
        order = np.argsort(times, kind="stable")
        if self.kind == "small panes":
            return  # the spec of a window refuses it
        if self.panes:
            with pytest.raises(Unsupported):
                self.store.remove(times[order], 1, values)
            return
        values = [values[i] for i in order]
        self.store.load_named(times[order], 1, values)
        self.tier.down = True  # all that is needed is in memory now
        try:
            found = self.store.remove(times[order], 1, values)
        finally:
            self.tier.down = False
        assert found.tolist() == [value >= 0 for value in values]
        self.rows = [row for row in self.rows if row not in gone]

    def correct(self, places):
        mine = [self.rows[place] for place in sorted({place % len(self.rows) for place in places})] if self.rows else []
        if self.panes:
            return  # as `remove`
        times, names = np.array([time for time, _ in mine], np.int64), [values[0] for _, values in mine]
        given = np.arange(self.arrivals, self.arrivals + len(mine))
        self.arrivals += len(mine)
        self.store.load_named(times, 1, names)
        self.tier.down = True
        try:
            assert self.store.correct(times, 1, names, [given]).all()
        finally:
            self.tier.down = False
        for (_, values), value in zip(mine, given.tolist(), strict=True):
            values[0] = value

    def evict_while(self, most):
        slot = self.layout.answers[-1]
        entries = [value for _, values in self.rows for value in values]

        def holds(count, partials):
            assert partials[slot] == sum(entries[:count])
            return partials[slot] <= most

        count = total = 0
        for _, values in self.rows:
            total += sum(values)
            if total > most:
                break
            count += 1
        gone, self.rows = self.rows[:count], self.rows[count:]
        evicted, last = self.store.evict_while(holds)
        assert evicted == sum(len(values) for _, values in gone)
        assert last == (gone[-1][0] if gone else None)

    def sweep(self):
        while self.store.sweep():
            pass

    # ---------------------------------------------------------------- questions

    def range(self, after, width):
        start, end = self.now + after, self.now + after + width
        inside = self.between(start, end + 1)
        entries, answers = self.store.range_query(start, end)
        assert (entries, answers) == (sum(len(values) for _, values in inside), self.answers(inside))
        found, totals = self.store.range_totals(start, end)
        assert (found, self.layout.lower(found, totals)) == (entries, answers)

    def series(self, after, count, step, width):
        starts = self.now + after + step * np.arange(count)
        entries, answers = self.store.series(starts, starts + width)
        assert entries.dtype == np.int64
        inside = [self.between(start, start + width) for start in starts.tolist()]
        assert entries.tolist() == [sum(len(values) for _, values in rows) for rows in inside]
        assert [column.tolist() for column in answers] == [
            [self.answers(rows)[name] for rows in inside] for name in range(3)
        ]

    # ---------------------------------------------------------------- rows as they were, and stored

    def capture(self, after, width):
        """Take the rows of a range; `read` compares them, whatever has been written since."""
        start, end = (None, None) if width < 0 else (self.now + after, self.now + after + width)
        rows = self.rows if start is None else self.between(start, end + 1)
        self.captured.append((self.store.capture(start, end), [(time, values[:]) for time, values in rows]))

    def read(self):
        for slices, rows in self.captured:
            parts = [[column[:0] for column in self.store.columns()]]
            for each in slices:
                assert each.first < each.stop
                columns = self.cold.columns([each.block_id])[0] if each.columns is None else each.columns
                parts.append([column[each.first : each.stop] for column in columns])
            self._check_rows([np.concatenate(column) for column in zip(*parts, strict=True)], rows)
        self.captured.clear()

    def save(self):
        """Store all blocks, and have none in memory."""
        if self.cold is not None:
            blocks = self.store.pending_blocks()
            self.cold.landed([(block, self.tier.store(block)) for block in blocks])
            self.cold.cache.trim()

    def restart(self):
        """Go on with what a restored image gives."""
        if self.cold is not None:
            self.read()  # what was captured is of the store before
            self.save()
            image = self.store.dump()
            self.store = Forest.restore(self.layout, self.cold, image)
