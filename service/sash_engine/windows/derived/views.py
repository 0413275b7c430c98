"""Views: windows that keep nothing, and show the entries of another one with slides and aggregates of their own.

    write ──▶ requests   [ entries of an hour ....................... ]    sum(bytes)  max(delay)  p99(delay)
                 ├─ requests_1m                                  [ 1m ]    ^           ^
                 └─ slow_5m                              [ ..... 5m ]                  ^           ^

All aggregates of a window and of its views are one set of slots of the source's forests. An aggregate that two of them
have is one slot. A write costs nothing more for a view with aggregates that are there; each further one costs what an
aggregate of the source costs.

A view is added with the partials of what is there already, computed in steps from the rows, block by block.

A window with a `history` keeps its entries for so long, and shows those of its slide: it answers through a view of
itself. What is about the past is answered from all that is kept, of the window and of its views.

Example: requests has max_age 1h, and an entry of each second. A view with max_age 1m over it answers as a window with
max_age 1m that was sent the same entries: its lookbacks go back from the same now, and entries older than a minute do
not count, though the source has them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from sash_engine.forest import Cold, Layout, PaneLayout
from sash_engine.steps import Steps, finished, spans_of
from sash_engine.windows.answers import Counts, WindowInfo
from sash_engine.windows.batches.ledger import Ledger
from sash_engine.windows.keys.keys import NEVER, Keys
from sash_engine.windows.known import Known
from sash_engine.windows.questions import Question
from sash_engine.windows.reading.labels import Labels
from sash_engine.windows.reading.reader import Reader
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.sliding.view_keys import ViewKeys, ViewSlide
from sash_engine.windows.spec.window import WindowSpec

_KEYS = 2_048
"""Keys whose entries one step counts: 1 ms where they share pages, 6 ms where each has blocks of its own."""


class Source(Protocol):
    """A window as what is derived from it sees it; `Window` describes its attributes."""

    spec: WindowSpec
    keys: Keys
    layout: Layout
    slide_policy: Slide
    labels: Labels
    cold: Cold | None
    counts: Counts
    mark: int
    known: Known | None

    @property
    def punctuated(self) -> int:
        """Entries of this time and older are final."""


class View:
    """A window that shows the entries of another one.

    Args:
        spec: complete, see `spec/derived.py`.
        source: the window that has the entries, with slots for the aggregates of the view.

    Attributes:
        source: the window.
        ledger: of nobody, as nobody writes to a view.
        reader: answers questions; another one once there are other aggregates.
        past: answers those about the past, over all that a window with a history keeps; else as `reader`.
    """

    def __init__(self, spec: WindowSpec, source: Source) -> None:
        self.spec, self.source = spec, source
        self.ledger = Ledger()
        self.use()

    def use(self) -> None:
        """Read the slots that the source has now."""
        spec, source, keys = self.spec, self.source, self.source.keys
        self._layout = _layout_of(spec, source.spec, source.layout)
        kept = source.spec.history
        self._slide = ViewSlide(spec, source.slide_policy, keys, kept is None and spec.slide == source.spec.slide)
        self._keys = ViewKeys(keys, self._layout, self._slide)
        labels = Labels(spec, keys, source.labels)
        self.reader = self.past = Reader(
            spec, self._layout, self._keys, self._slide, labels, source.cold, known=source.known
        )
        if kept is not None:
            everything = ViewSlide(spec, source.slide_policy, keys, True)
            self.past = Reader(
                spec, self._layout, ViewKeys(keys, self._layout, everything), everything, labels, source.cold
            )

    def reader_of(self, question: Question[Any]) -> Reader:
        """What answers a question."""
        return self.past if question.is_about_the_past else self.reader

    def at_rest(self) -> View:
        """The same view, for which wall time stands still."""
        other = View(self.spec, self.source)
        other._slide.rest()
        return other

    @property
    def keys(self) -> ViewKeys:
        """The entries by key, as far as the view shows them."""
        return self._keys

    @property
    def cold(self) -> Cold | None:
        """Where the source keeps its sealed blocks."""
        return self.source.cold

    @property
    def mark(self) -> int:
        """The high-water mark of the source."""
        return self.source.mark

    @property
    def punctuated(self) -> int:
        """Entries of this time and older are final."""
        return self.source.punctuated

    @property
    def counts(self) -> Counts:
        """The counts of the entries that the source was sent; those that are not in the view count as evicted."""
        return self.info().counts

    def info(self) -> WindowInfo:
        """The view as `describe` shows it, at once."""
        return finished(self.info_steps())

    def info_steps(self) -> Steps[WindowInfo]:
        """The view as `describe` shows it, in steps: O(keys), because their entries are counted."""
        keys, numbers = self._keys, self._keys.numbers()
        here, filled, newest, oldest = 0, 0, NEVER, None
        for a, b in spans_of(len(numbers), _KEYS):
            some = numbers[a:b]
            newest_each = keys.newest_each(some)
            filled += int(np.count_nonzero(newest_each > NEVER))
            newest = max(newest, int(newest_each.max()))
            if not self._slide.whole:
                here += int(keys.entries_each(some).sum())
            yield
        counts = Counts(**self.source.counts.document())
        if not self._slide.whole:
            counts.evicted = counts.inserted - counts.retracted - here
        if not self.spec.keyed and len(keys):
            oldest, _ = keys.span(keys.numbers().item())
        return WindowInfo(
            spec=self.spec,
            entries=counts.present,
            keys=filled,
            oldest=oldest,
            newest=None if newest == NEVER else newest,
            counts=counts,
            high_water_mark=None if self.mark == NEVER else self.mark,
            punctuated=None if self.punctuated == NEVER else self.punctuated,
            evicted_through=self._slide.evicted_through(),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError naming the first invariant that does not hold."""
        keys, source = self._keys, self.source.keys
        for number in keys.numbers().tolist():
            times, after = source.columns(number)[0], self._slide.after(number)
            shown = times[times > after]
            newest = shown.item(-1) if len(shown) else None
            assert keys.span(number) == (shown.item(0) if len(shown) else None, newest), f"the span of key {number}"
            if self._layout.rows_are_entries:
                assert keys.entries(number) == len(shown), f"the entries of key {number} that are newer than {after}"
        assert self._layout.keys == self.source.layout.keys, "the source has the slots that are read"


def _layout_of(spec: WindowSpec, source: WindowSpec, layout: Layout) -> Layout:
    """The layout of the source with the answers of a view."""
    if not isinstance(layout, PaneLayout):
        return layout.answering(spec.monoids())
    names = {}
    for name, aggregate in spec.aggregates.items():
        names[name] = next(theirs for theirs, each in source.aggregates.items() if each == aggregate)
    return layout.renamed(names)
