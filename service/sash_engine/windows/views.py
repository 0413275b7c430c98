"""Views: windows that keep nothing, and show the entries of another one with slides and aggregates of their own.

    write ──▶ requests   [ entries of an hour ....................... ]    sum(bytes)  max(delay)  p99(delay)
                 ├─ requests_1m                                  [ 1m ]    ^           ^
                 └─ slow_5m                              [ ..... 5m ]                  ^           ^

All aggregates of a window and of its views are one set of slots of the source's forests. An aggregate that two of them
have is one slot. A write costs nothing more for a view with aggregates that are there; each further one costs what an
aggregate of the source costs.

A view is added with the partials of what is there already, computed in steps from the rows, block by block.

Example: requests has max_age 1h, and an entry of each second. A view with max_age 1m over it answers as a window with
max_age 1m that was sent the same entries: its lookbacks go back from the same now, and entries older than a minute do
not count, though the source has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sash_engine.errors import AlreadyExists, FailedPrecondition
from sash_engine.forest import Cold, Layout, PaneLayout
from sash_engine.monoids import Monoid
from sash_engine.steps import Steps, finished, spans_of
from sash_engine.windows.answers import Counts, WindowInfo
from sash_engine.windows.asked_window import AskedWindow
from sash_engine.windows.keys import NEVER
from sash_engine.windows.labels import Labels
from sash_engine.windows.ledger import Ledger
from sash_engine.windows.reader import Reader
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.view_keys import ViewKeys, ViewSlide

if TYPE_CHECKING:
    from sash_engine.windows.shared_window import SharedWindow

__all__ = ["View", "Views", "check_no_views", "widened"]


_KEYS = 2_048
"""Keys whose entries one step counts: 1 ms where they share pages, 6 ms where each has blocks of its own."""


class View(AskedWindow):
    """A window that shows the entries of another one.

    Args:
        spec: complete, see `view_spec.completed`.
        source: the window that has the entries, with slots for the aggregates of the view.

    Attributes:
        source: the window.
        ledger: of nobody, as nobody writes to a view.
    """

    _keys: ViewKeys
    _slide: ViewSlide

    def __init__(self, spec: WindowSpec, source: SharedWindow) -> None:
        self.spec, self.source = spec, source
        self.ledger = Ledger()
        self.use()

    def use(self) -> None:
        """Read the slots that the source has now."""
        spec, source, keys = self.spec, self.source, self.source.keys
        self._layout = _layout_of(spec, source.spec, source.layout)
        self._slide = ViewSlide(spec, source.slide_policy, keys, spec.slide == source.spec.slide)
        self._keys = ViewKeys(keys, self._layout, self._slide)
        self._labels = Labels(spec, keys, source.labels)
        self._reader = Reader(spec, self._layout, self._keys, self._slide, self._labels, source.cold)

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
        """What became of the entries that the source was sent; those that are not in the view count as evicted."""
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


class Views:
    """The views of one window, by name."""

    def __init__(self) -> None:
        self._each: dict[str, View] = {}

    def __len__(self) -> int:
        return len(self._each)

    def __iter__(self) -> Iterator[View]:
        """In the order in which they were added."""
        return iter(self._each.values())

    def find(self, name: str) -> View | None:
        """The view of that name."""
        return self._each.get(name)

    def add(self, view: View) -> View:
        """Add a view, and return it."""
        self._each[view.spec.name] = view
        return view

    def drop(self, name: str) -> None:
        """Remove a view."""
        del self._each[name]

    def use(self) -> None:
        """Have all views read the slots that the source has now."""
        for view in self:
            view.use()

    def monoids(self, wider: WindowSpec | None = None) -> list[tuple[Monoid, Sequence[str]]]:
        """The aggregates of all views, in the order of these: an image restores them in this order.

        Args:
            wider: what the view of this name gets instead of its spec, or one more view.
        """
        specs = {view.spec.name: view.spec for view in self}
        if wider is not None:
            specs[wider.name] = wider
        return [each for spec in specs.values() for each in spec.monoids().values()]


def check_no_views(views: Views, window: str) -> None:
    """Raise FailedPrecondition where a window has views, which would have nothing to show any more.

    It does not name them: a caller may see a window, and not its views.
    """
    if views:
        of = "a view, which shows" if len(views) == 1 else f"{len(views)} views, which show"
        raise FailedPrecondition(f"window {window!r} has {of} its entries: delete what is of it first", field="window")


def widened(spec: WindowSpec, aggregates: Mapping[str, Any]) -> WindowSpec:
    """A spec with more aggregates; raises AlreadyExists for another definition of one that there is."""
    document = spec.document()
    wider = WindowSpec.parse(document | {"aggregates": document["aggregates"] | dict(aggregates)})
    for name, old in spec.aggregates.items():
        if wider.aggregates[name] != old:
            raise AlreadyExists(
                f"window {spec.name!r} has an aggregate {name!r} with another definition", field=f"aggregates.{name}"
            )
    return wider


def _layout_of(spec: WindowSpec, source: WindowSpec, layout: Layout) -> Layout:
    """The layout of the source with the answers of a view."""
    if not isinstance(layout, PaneLayout):
        return layout.answering(spec.monoids())
    names = {}
    for name, aggregate in spec.aggregates.items():
        names[name] = next(theirs for theirs, each in source.aggregates.items() if each == aggregate)
    return layout.renamed(names)
