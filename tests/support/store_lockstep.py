"""A store of each kind beside the model of a forest, see `tests.support.forest_model`; with some more steps.

    ("capture", -9, 4)   take the rows from now - 9 on, and of the 4 ticks behind; with a width of less than 0, all
    ("read",)            what was captured is as it was, whatever has been written since
    ("sweep",)           to the end
    ("cool",)            nothing is in memory, where there is a tier
    ("restart",)         go on with what a restored image gives, where there is a tier

A row of panes may have several entries, other rows have one.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from sash_engine.errors import Unsupported
from sash_engine.forest import Layout
from sash_engine.monoids import Max
from sash_engine.windows.batches.panes import Panes
from sash_engine.windows.keys.pages import PAGES, Pages
from sash_engine.windows.keys.small_key import SmallKey
from sash_engine.windows.keys.store import rows_of_slices
from sash_engine.windows.spec.window import WindowSpec
from tests.support.cold_model import ColdLockstep, Tier
from tests.support.forest_model import ForestLockstep

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


def lockstep(kind):
    """A store of a kind beside its model."""
    return (TieredLockstep if kind in TIERED else StoreLockstep)(kind)


class StoreLockstep(ForestLockstep):
    """A store in memory beside its model."""

    cold = None

    def __init__(self, kind, **options):
        self.kind, self.panes, self.captured, self.tier = kind, kind in OF_PANES, [], Tier()
        super().__init__(PANES.layout if self.panes else ENTRIES, **options)
        if kind.startswith("small"):
            pages = Pages(self.layout, PAGES[0], 1024)
            pages.reach(3)
            for neighbour in (0, 2):  # whose rows are not this key's
                pages.insert(neighbour, 1, self.row(1, -1))
            self.forest = SmallKey(pages, 1)

    def check(self):
        super().check()
        for time in (self.now, self.now - 7):
            older = [each for each, _ in self.entries if each <= time]
            newer = [each for each, _ in self.entries if each > time]
            assert self.forest.neighbours(time) == (max(older, default=None), min(newer, default=None))
        assert self.layout.lower(len(self.forest), self.forest.totals()) == self.answers(self.entries)

    def check_rows(self, columns, entries):
        if not self.panes:
            super().check_rows(columns, entries)
            return
        rows = self.by_row(entries)
        assert columns[0].tolist() == [row[0][0] for row in rows]
        assert columns[1].tolist() == [len(row) for row in rows]
        assert columns[-1].tolist() == [sum(value for _, value in row) for row in rows]

    # ---------------------------------------------------------------- rows of panes

    def by_row(self, entries):
        if not self.panes:
            return super().by_row(entries)
        return [list(row) for _, row in groupby(entries, key=lambda entry: entry[0])]

    def row(self, time, value):
        return PANES.lifted(time, (value,)) if self.panes else (value,)

    def columns(self, times, values):
        if not self.panes or not len(times):
            return times, [values]
        order = np.argsort(times, kind="stable")
        rows = [column[order] for column in PANES.rows(times, [values], partials=False)]
        _, (starts, *columns) = PANES.folded(rows, np.array([len(times)]), partials=False)
        return starts, columns

    # ---------------------------------------------------------------- steps

    def _loaded(self, name, *given):
        """Load what a step needs, and take it without a tier."""
        load, arguments = self.loading(name, *given)
        load(*arguments)
        self.tier.down = True
        try:
            getattr(super(), name)(*given)
        finally:
            self.tier.down = False

    def bulk_evict(self, after):
        self._loaded("bulk_evict", after)

    def evict_between(self, after, width):
        self._loaded("evict_between", after, width)

    def remove(self, places):
        if not self.panes:
            self._loaded("remove", places)
        elif self.kind != "small panes":  # the spec of a window refuses it
            times, values = zip(*self.named(places), strict=True)
            with pytest.raises(Unsupported):
                self.forest.remove(np.array(times), 1, values)

    def correct(self, places):
        if not self.panes:  # as `remove`
            self._loaded("correct", places)

    def range(self, after, width):
        super().range(after, width)
        start, end = self.now + after, self.now + after + width
        entries, partials = self.forest.range_totals(start, end)
        assert (entries, self.layout.lower(entries, partials)) == self.forest.range_query(start, end)

    def capture(self, after, width):
        start, end = (None, None) if width < 0 else (self.now + after, self.now + after + width)
        entries = [each for each in self.entries if start is None or start <= each[0] <= end]
        self.captured.append((self.forest.capture(start, end), entries))

    def read(self):
        for slices, entries in self.captured:
            assert all(each.first < each.stop for each in slices)
            parts = [[column[:0] for column in self.forest.columns()], *rows_of_slices(slices, self.cold)]
            self.check_rows([np.concatenate(column) for column in zip(*parts, strict=True)], entries)
        self.captured.clear()

    def sweep(self):
        while self.forest.sweep():
            pass

    def cool(self):
        pass

    def restart(self):
        pass


class TieredLockstep(StoreLockstep, ColdLockstep):
    """A forest with a tier beside its model."""

    def __init__(self, kind):
        super().__init__(kind, budget=0)

    def cool(self):
        ColdLockstep.cool(self)

    def restart(self):
        self.read()  # what was captured is of the store before
        self.dump()
        self.restore()
