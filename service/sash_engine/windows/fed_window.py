"""What reaches a window by another one: as a rollup of its keys, or as a cascade of its panes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from sash_engine.clock import Clock
from sash_engine.errors import NotFound
from sash_engine.forest.cold import Cold
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.answers import Counts, WriteResult
from sash_engine.windows.asked_window import AskedWindow
from sash_engine.windows.cascade_spec import check_cascade
from sash_engine.windows.cascades import Cascade, Cascades
from sash_engine.windows.keys import Keys
from sash_engine.windows.pages import Numbers
from sash_engine.windows.panes import Panes
from sash_engine.windows.part_writer import PartWriter
from sash_engine.windows.rollups import Rollups
from sash_engine.windows.rows import Rows
from sash_engine.windows.slide import Slide
from sash_engine.windows.spec import WindowSpec

__all__ = ["FedWindow"]


class FedWindow(AskedWindow):
    """A window that may feed others, and be fed."""

    counts: Counts
    _keys: Keys
    _slide: Slide
    block: int
    pages: tuple[int, int] | None
    cold: Cold | None
    cascades: Cascades
    _clock: Clock
    _writer: PartWriter
    _rollups: Rollups
    _panes: Panes | None
    _max_keys: int
    _mark: int

    @property
    def keys(self) -> Keys:
        """The entries by key."""
        return self._keys

    @property
    def mark(self) -> int:
        """The high-water mark: the newest time ever inserted; `NEVER` before."""
        return self._mark

    @property
    def punctuated(self) -> int:
        """Entries of this time and older are final; `NEVER` before the first punctuation."""
        return self._slide.punctuated

    def _count(self, result: WriteResult) -> WriteResult:
        self.counts.inserted += result.inserted
        self.counts.late += result.late
        self.counts.duplicates += result.duplicates
        self.counts.ahead += result.ahead
        self.counts.retracted += result.retracted
        self.counts.corrected += result.corrected
        if self._keys.top > self._mark:
            self._mark = self._keys.top
        return result

    # ---------------------------------------------------------------- as a rollup

    def feed(self, number: int, time: int, values: Sequence[Any]) -> None:
        """Insert one row of a key that another window has taken; see `Writer.feed`."""
        self.counts.inserted += self._writer.feed(number, time, values)
        self._mark = max(self._mark, self._keys.top)

    def feed_steps(self, numbers: Numbers, columns: Sequence[Array]) -> Steps[None]:
        """Insert rows that another window has taken; see `Writer.feed_steps`."""
        self.counts.inserted += yield from self._writer.feed_steps(numbers, columns)
        self._mark = max(self._mark, self._keys.top)

    def raise_marks(self, numbers: Numbers, now: Numbers) -> None:
        """Raise the high-water marks of keys, where they are lower, and slide."""
        np.maximum.at(self._keys.now, numbers, now)
        self._slide.by_age_each(self._keys.numbers())

    def cut(self, number: int, time: int) -> None:
        """Remove entries of a key with time <= `time`, and take no more of them."""
        if time > self._keys.late_through_of[number]:
            self.counts.evicted += self._keys.bulk_evict(number, time)
            self._keys.late_through_of[number] = time

    # ---------------------------------------------------------------- as a cascade

    def add_cascade(self, spec: WindowSpec) -> Self:
        """Feed another window from now on, or have a window do so that this one feeds.

        Raises:
            InvalidArgument: it cannot be fed by that window.
        """
        assert spec.source is not None, "the spec says which window feeds it"
        name = spec.source.window
        source: Any = self if name == self.spec.name else self.cascades.find(name)
        if source is None:
            raise NotFound(f"from.window: there is no window {name[:140]!r}", field="from.window")
        check_cascade(spec, source.spec)
        make: Any = type(self)
        window = make(spec, self._max_keys, self.block, self.pages, self._clock, self.cold)
        source.cascades.add(Cascade((source.spec, source._panes), window, window._panes))
        return window  # type: ignore[no-any-return]

    def take_steps(self, rows: Rows, partials: bool) -> Steps[None]:
        """Insert rows of a write to the window that feeds this one; see `Writer.insert_rows`."""
        self._count((yield from self._writer.insert_rows(rows, partials)))

    def clear(self) -> None:
        """Forget all keys, and free what is stored of them."""
        for window in (self, *(rollup.window for rollup in self._rollups)):
            window.counts.evicted += window._keys.forget(window._keys.numbers())

    @property
    def left(self) -> tuple[int, int]:
        """How many entries have left it and the windows that it feeds, and how many keys these have."""
        every = [(self.counts, self._keys), *((window.counts, window.keys) for window in self.cascades)]
        return sum(counts.evicted for counts, _ in every), sum(len(keys) for _, keys in every)
