"""Windows that are derived from a window, and written by the same call: its rollups, cascades and views.

    write ──▶ keys      JFK|AA  [ ....... ]     LGA|AA  [ .... ]     JFK|B6  [ ......... ]        entries of 10 minutes
        ├───▶ rollup [carrier]  AA  [ ........... ]                      B6  [ ......... ]        of groups of keys
        ├───▶ rollup []               [ .................... ]
        └───▶ cascade   minutes   [ panes of 1m ........... a day ]                               of the same keys
              └───▶ cascade   hours   [ panes of 1h ................... a year ]
    ask   ──▶ view      what the last minute of the entries answers; it keeps nothing (views.py)

    derived       keys             rows               slide                     named, and described by
    rollup        groups of keys   that were taken    of its window             `rollups` of its window's spec
    cascade       of its source    that were sent     of its own                a spec with `from`
    view          of its source    of its source      of its own, by age        a spec with `of`

A **rollup** is a window whose keys are the groups, with the same fields, aggregates, slide policy and panes. It takes
the rows that its window has taken, as rows of their groups.

    group    ........(horizon].............now      a rollup has exactly the entries of its keys behind the horizon
    key 1      ......................                  of event time, a key that lags keeps older ones: now - max_age
    key 2          ........................            of this key is before the horizon, now - max_age of the group

The horizon of a group is its `late_through`. It also moves when entries of a single key are evicted by hand. A question
that goes back behind the horizon is answered from the keys, as if there were no rollup. Of several rollups that have
all parts that a question looks at, the one with the fewest parts answers.

A **cascade** is given all that was sent but entries too far ahead, and decides for itself what is late: an entry that
comes too late for the minutes of a day still reaches the hours of a year. What leaves a window stays in those that it
feeds. A window of panes that is sent values passes the values on, so that nothing is lost by folding twice. Where it is
sent partials, it passes these.

A write: O(rows) more for each rollup and cascade.  Space: as of a window with the same entries, or panes, for each.
Requires: what spec/derived.py checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from sash_engine.errors import FailedPrecondition
from sash_engine.forest import PaneLayout
from sash_engine.monoids import Monoid
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished, spans_of
from sash_engine.windows.answers import Counts
from sash_engine.windows.batches.panes import Panes
from sash_engine.windows.batches.rows import Rows
from sash_engine.windows.derived.views import Source, View
from sash_engine.windows.keys.keys import NEVER, Keys
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.ragged import grown
from sash_engine.windows.questions import AllKeys, GroupedQuestion
from sash_engine.windows.reading.reader import Reader
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.labels import join, split

_NAMES = 4_096
"""Keys of which one step finds the groups: 4 ms."""
_ROWS = 65_536
"""Rows that one step sorts."""
_ALL = "all"
"""The name of the one group of the rollup by no parts."""


class Fed(Source, Protocol):
    """A window that another one feeds; `Window` describes its methods."""

    derived: Derived[Self]
    reader: Reader

    @property
    def family(self) -> list[Self]:
        """The window, and all that it feeds."""

    def feed(self, number: int, time: int, values: Sequence[Any]) -> None:
        """Take an entry of the source."""

    def feed_steps(self, numbers: Numbers, columns: Sequence[Array]) -> Steps[None]:
        """Take entries of the source."""

    def take_steps(self, rows: Rows, partials: bool) -> Steps[None]:
        """Take what has left the source."""

    def raise_marks(self, numbers: Numbers, now: Numbers) -> None:
        """Let time go on for some keys."""

    def cut(self, number: int, time: int) -> None:
        """Remove entries of a key with time <= `time`, and take no more of them."""

    def slide(self) -> None:
        """Evict what is too old."""

    def tidy(self) -> None:
        """Do what time alone brings."""

    def check_room(self, more: int) -> None:
        """Raise ResourceExhausted if so many more keys would be too many."""

    def check_invariants(self, same: Callable[..., bool] | None = None) -> None:
        """Check what must always hold."""


W = TypeVar("W", bound=Fed)


class Rollup(Generic[W]):
    """The groups by some parts.

    Args:
        spec, keys: of the window whose keys are grouped.
        parts: the names of the parts.
        window: keeps the groups as its keys.
    """

    def __init__(self, spec: WindowSpec, keys: Keys, parts: Sequence[str], window: W) -> None:
        self.parts, self.window = frozenset(parts), window
        self._keys = keys
        self._places = [spec.labels.index(part) for part in parts]
        self._of_parts = len(spec.labels)
        self._groups: Numbers = np.empty(0, np.int64)

    def group(self, number: int) -> int:
        """The group of a key; it is created if it is new."""
        if number >= len(self._groups) or self._groups[number] < 0:
            self._learn(np.array([number]))
        return self._groups.item(number)

    def groups_steps(self, numbers: Numbers) -> Steps[Numbers]:
        """The groups of some keys, int64 (k,)."""
        last = int(numbers.max(initial=-1))
        if last >= len(self._groups):
            self._groups = grown(self._groups, last + 1, -1)
        new = numbers[self._groups[numbers] < 0]
        for a, b in spans_of(len(new), _NAMES):
            self._learn(new[a:b])
            yield
        return self._groups[numbers]

    def _learn(self, numbers: Numbers) -> None:
        """Find the groups of some keys by their names."""
        names = [self._name(self._keys.name(number)) for number in numbers.tolist()]
        keys = self.window.keys
        keys.create([name for name in dict.fromkeys(names) if keys.find(name) is None])
        last = int(numbers.max())
        if last >= len(self._groups):
            self._groups = grown(self._groups, last + 1, -1)
        self._groups[numbers] = keys.find_each(names)

    def _name(self, key: str) -> str:
        if not self._places:
            return _ALL
        values = split(key, self._of_parts)
        return join([values[place] for place in self._places])

    def name_of(self, values: Sequence[str]) -> str:
        """The name of a group, from its values in the order in which keys have the parts."""
        in_order = sorted(self._places)
        return join([values[in_order.index(place)] for place in self._places]) if self._places else _ALL

    def insert_steps(self, rows: Rows) -> Steps[None]:
        """Take in rows that its window has taken."""
        groups = np.repeat((yield from self.groups_steps(rows.numbers)), rows.lengths)
        for a, b in spans_of(len(groups), _ROWS):
            yield from self.window.feed_steps(groups[a:b], [column[a:b] for column in rows.columns])
            yield

    def has(self, oldest: Callable[[Numbers], Numbers | int], slide: Slide, counts: Counts) -> bool:
        """Whether it has all entries of its keys that a question is about.

        Args:
            oldest: nows of groups, int64 (g,) -> the oldest times that it is about.
            slide, counts: of its window.
        """
        keys = self.window.keys
        numbers = keys.numbers()
        if slide.wall:
            self.window.slide()
        elif counts.present == self.window.counts.present:
            return True
        horizons = keys.late_through[numbers]
        behind = horizons > slide.gone_through()
        if not behind.any():
            return True
        numbers, horizons = numbers[behind], horizons[behind]
        now = keys.now[numbers]
        if slide.wall:
            now = np.minimum(now, slide.now())
        elif slide.until:
            now = np.full(len(now), slide.punctuated)
        return bool((oldest(now) > horizons).all() and keys.filled_each(numbers).all())

    def check_invariants(self, same: Callable[..., bool] | None = None) -> None:
        """Raise AssertionError unless it has the entries of its keys behind its horizon; `same` as in Keys."""
        self.window.check_invariants(same)
        found = dict[int, int]()
        for number in self._keys.numbers().tolist():
            group = self.group(number)
            horizon = self.window.keys.late_through_of[group]
            entries = self._keys.range_totals(number, horizon + 1, 2**63 - 2)[0]
            found[group] = found.get(group, 0) + entries
        for group, entries in found.items():
            there = self.window.keys.entries(group)
            assert there == entries, f"group {group} of {set(self.parts)} has {there} entries, its keys {entries}"


class Cascade(Generic[W]):
    """A window that another one feeds.

    Args:
        source: the spec of the window that feeds it, and how that one makes panes; None: it keeps entries.
        window: it, and how it makes panes.
    """

    def __init__(self, source: tuple[WindowSpec, Panes | None], window: W, panes: Panes) -> None:
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
        self.window.derived.check(rows)

    def rows(self, sent: Rows, partials: bool) -> Rows:
        """Return the rows of this window for the rows that were sent, by key, then pane."""
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


class Derived(Generic[W]):
    """The windows that are derived from one window.

    Args:
        keys, slide, counts: of the window.
        rollups: of the window.

    Attributes:
        rollups: as they were given.
        cascades: the windows that it feeds itself, by name, in the order in which they were added.
        views: its views, by name, in the order in which they were added.
    """

    def __init__(self, keys: Keys, slide: Slide, counts: Counts, rollups: Sequence[Rollup[W]]) -> None:
        self._keys, self._slide, self._counts = keys, slide, counts
        self.rollups = rollups
        self.cascades: dict[str, Cascade[W]] = {}
        self.views: dict[str, View] = {}

    @property
    def fed(self) -> list[W]:
        """All windows that the window feeds, also by others."""
        return [window for cascade in self.cascades.values() for window in cascade.window.family]

    def check_no_views(self, name: str) -> None:
        """Raise FailedPrecondition where there are views, which would have nothing to show any more.

        It does not name them: a caller may see a window, and not what is derived from it.
        """
        if self.views:
            of = "a view, which shows" if len(self.views) == 1 else f"{len(self.views)} views, which show"
            raise FailedPrecondition(
                f"window {name!r} has {of} its entries: delete what is of it first", field="window"
            )

    def check_none(self, name: str) -> None:
        """As `check_no_views`, also where there are cascades, which would then miss what is written."""
        self.check_no_views(name)
        if self.cascades:
            others = "another window" if len(self.cascades) == 1 else f"{len(self.cascades)} other windows"
            raise FailedPrecondition(f"window {name!r} feeds {others}: delete what it feeds first", field="window")

    # ---------------------------------------------------------------- writing

    def check(self, rows: Rows) -> None:
        """Check that all cascades can take rows."""
        if len(rows.columns[0]):
            for cascade in self.cascades.values():
                cascade.check(rows)

    def send_steps(self, sent: Rows, partials: bool) -> Steps[None]:
        """Give each cascade what was sent."""
        if len(sent.columns[0]):
            for cascade in self.cascades.values():
                yield from cascade.window.take_steps(cascade.rows(sent, partials), partials)

    def insert(self, number: int, time: int, values: Sequence[Any]) -> None:
        """Have the rollups take in one row of a key: a scalar per column after the time."""
        for rollup in self.rollups:
            rollup.window.feed(rollup.group(number), time, values)

    def insert_steps(self, rows: Rows) -> Steps[None]:
        """Have the rollups take in the rows of a write."""
        for rollup in self.rollups:
            yield from rollup.insert_steps(rows)

    def cut(self, number: int, time: int) -> None:
        """Note that entries of one key with time <= `time` were removed: its groups have a later horizon."""
        time = min(time, self._keys.now_of[number])
        for rollup in self.rollups:
            rollup.window.cut(rollup.group(number), time)

    def reset_marks(self) -> None:
        """Let the marks of groups be those of their keys, which were taken back.

        The horizons stay: what left a group is in its keys only, which answer until time has passed the horizon.
        """
        for rollup in self.rollups:
            rollup.window.keys.now[:] = NEVER
        self.resume_marks()

    def tidy(self) -> None:
        """Do what time alone brings."""
        for rollup in self.rollups:
            rollup.window.tidy()
        for cascade in self.cascades.values():
            cascade.window.tidy()

    def resume_marks(self) -> None:
        """Have the rollups take over the high-water marks of the keys, which an import has set."""
        numbers = self._keys.numbers()
        numbers = numbers[self._keys.now[numbers] > NEVER]
        for rollup in self.rollups:
            groups = finished(rollup.groups_steps(numbers))
            rollup.window.raise_marks(groups, self._keys.now[numbers])

    # ---------------------------------------------------------------- reading

    def reader_for(self, question: GroupedQuestion, oldest: Callable[[Numbers], Numbers | int]) -> Reader | None:
        """The reader of the smallest rollup that can answer a question; None where the keys have to.

        Args:
            oldest: as of `Rollup.has`.
        """
        if question.key is not None or (question.keys and not isinstance(question.keys, AllKeys)):
            return None
        selection = question.selection
        looked_at = {*(selection.by or ()), *(condition.part for condition in selection.where)}
        able = [rollup for rollup in self.rollups if rollup.parts >= looked_at]
        rollup = min(able, key=lambda rollup: len(rollup.parts), default=None)
        return rollup.window.reader if rollup and rollup.has(oldest, self._slide, self._counts) else None

    def monoids(self, wider: WindowSpec | None = None) -> list[tuple[Monoid, Sequence[str]]]:
        """The aggregates of all views, in the order of these: an image restores them in this order.

        Args:
            wider: what the view of this name gets instead of its spec, or one more view.
        """
        specs: Mapping[str, WindowSpec] = {name: view.spec for name, view in self.views.items()}
        if wider is not None:
            specs = {**specs, wider.name: wider}
        return [each for spec in specs.values() for each in spec.monoids().values()]


def _shared(theirs: PaneLayout, mine: PaneLayout) -> list[int]:
    """The columns of other panes that have the partials of these, in the order of these."""
    found = list[int]()
    for slot in range(1, len(mine.monoids)):
        name = mine.names[mine.answers[1:].index(slot)]
        found += theirs.reads[theirs.answers[1:][theirs.names.index(name)]]
    return found
