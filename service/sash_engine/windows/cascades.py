"""Cascades: windows that another window feeds, with panes, and with a slide of their own.

    write ──▶ requests   [ entries of 10 minutes ]
        └───▶ minutes    [ panes of 1m ........... a day ]                    from: {window: requests, granularity: 1m}
              └───▶ hours   [ panes of 1h ................... a year ]        from: {window: minutes, granularity: 1h}

A write reaches the whole tree at once. Each window is given all that was sent but entries too far ahead, and decides
for itself what is late: an entry that comes too late for the minutes of a day still reaches the hours of a year. What
leaves a window stays in those that it feeds.

A window of panes that is sent values passes the values on, so that nothing is lost by folding twice. Where it is sent
partials, it passes these.

A write: as of a window with panes, for each cascade.
Requires: commutative aggregates; what `check_cascade` checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from sash_engine.errors import FailedPrecondition
from sash_engine.forest import PaneLayout
from sash_engine.steps import Steps
from sash_engine.windows.panes import Panes
from sash_engine.windows.rows import Rows
from sash_engine.windows.spec import WindowSpec

if TYPE_CHECKING:
    from sash_engine.windows.window import Window

__all__ = ["Cascade", "Cascades", "check_feeds_none"]


class Cascade:
    """A window that another one feeds.

    Args:
        source: the spec of the window that feeds it, and how that one makes panes; None: it keeps entries.
        window: it, and how it makes panes.
    """

    def __init__(self, source: tuple[WindowSpec, Panes | None], window: Window, panes: Panes) -> None:
        self.window, self._panes = window, panes
        spec, theirs = source
        self._of_panes = theirs is not None
        names = list(spec.columns)
        self._fields = [1 + names.index(name) for name in window.spec.columns]
        self._columns = [] if theirs is None else _shared(theirs.layout, panes.layout)

    def check(self, rows: Rows) -> None:
        """Check that rows can be taken; nothing has changed if they cannot."""
        self._panes.floor(int(rows.columns[0].min()))
        self.window.check_room(int(np.count_nonzero(self.window.keys.find_each(rows.names) < 0)))
        self.window.cascades.check(rows)

    def rows(self, sent: Rows, partials: bool) -> Rows:
        """What was sent, as rows of this window: by key, then pane."""
        columns = sent.columns
        if partials:
            found = [self._panes.floors(columns[0]), columns[1], *(columns[i] for i in self._columns)]
        else:
            own = columns[-1] if self._of_panes else columns[0]
            found = self._panes.rows(own, [columns[i] for i in self._fields], False)
            if len(sent.names) == 1 and np.count_nonzero(found[0][1:] < found[0][:-1]):
                order = np.argsort(found[0], kind="stable")
                found = [column[order] for column in found]
        rows = Rows(sent.names, self.window.keys.find_each(sent.names), sent.lengths, found)
        if partials:
            rows.entries = found[1]
        return rows


class Cascades:
    """The windows that one window feeds, by name."""

    def __init__(self) -> None:
        self._each: dict[str, Cascade] = {}

    def __len__(self) -> int:
        return len(self._each)

    def __iter__(self) -> Iterator[Window]:
        """All windows that it feeds, also by others."""
        for cascade in self._each.values():
            yield cascade.window
            yield from cascade.window.cascades

    @property
    def own(self) -> list[Window]:
        """The windows that it feeds itself, in the order in which they were added."""
        return [cascade.window for cascade in self._each.values()]

    def find(self, name: str) -> Window | None:
        """A window that it feeds, also by others."""
        return next((window for window in self if window.spec.name == name), None)

    def add(self, cascade: Cascade) -> None:
        """Feed one more window, from now on."""
        self._each[cascade.window.spec.name] = cascade

    def drop(self, name: str) -> None:
        """Feed a window no more, and free what it has; raises FailedPrecondition if it feeds others."""
        cascade = self._each.get(name)
        if cascade is None:
            for each in self._each.values():
                each.window.cascades.drop(name)
            return
        check_feeds_none(cascade.window)
        cascade.window.clear()
        del self._each[name]

    # ---------------------------------------------------------------- writing

    def check(self, rows: Rows) -> None:
        """Check that all windows can take rows."""
        if len(rows.columns[0]):
            for cascade in self._each.values():
                cascade.check(rows)

    def insert_steps(self, sent: Rows, partials: bool) -> Steps[None]:
        """Give each window what was sent."""
        if len(sent.columns[0]):
            for cascade in self._each.values():
                yield from cascade.window.take_steps(cascade.rows(sent, partials), partials)

    def slide(self) -> None:
        """Evict what wall time has made too old."""
        for cascade in self._each.values():
            cascade.window.slide()

    def tidy(self) -> None:
        """Do what time alone brings."""
        for cascade in self._each.values():
            cascade.window.tidy()


def check_feeds_none(window: Window) -> None:
    """Raise FailedPrecondition where a window feeds others, which would then miss what is written.

    It does not name them, as with views.
    """
    if fed := len(list(window.cascades.own)):
        others = "another window" if fed == 1 else f"{fed} other windows"
        raise FailedPrecondition(
            f"window {window.spec.name!r} feeds {others}: delete what it feeds first", field="window"
        )


def _shared(theirs: PaneLayout, mine: PaneLayout) -> list[int]:
    """The columns of other panes that have the partials of these, in the order of these."""
    found = list[int]()
    for slot in range(1, len(mine.monoids)):
        name = mine.names[mine.answers[1:].index(slot)]
        found += theirs.reads[theirs.answers[1:][theirs.names.index(name)]]
    return found
