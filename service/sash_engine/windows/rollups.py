"""Rollups: groups of a window's keys, kept beside the keys and fed by the same write.

    write ──▶ keys      JFK|AA  [ ....... ]     LGA|AA  [ .... ]     JFK|B6  [ ......... ]
        └───▶ [carrier]         AA  [ ........... ]                      B6  [ ......... ]
        └───▶ []                          [ .................... ]

Each rollup is a window whose keys are the groups, with the same fields, aggregates, slide policy and panes. It takes
the rows that its window has taken, as rows of their groups.

    group    ........(horizon].............now      a rollup has exactly the entries of its keys behind the horizon
    key 1      ......................                  of event time, a key that lags keeps older ones: now - max_age
    key 2          ........................            of this key is before the horizon, now - max_age of the group

The horizon of a group is its `late_through`. It also moves when entries of a single key are evicted by hand. A question
that goes back behind the horizon is answered from the keys, as if there were no rollup.

A write: O(rows) more for each rollup.  Space: as of a window with the same entries, or panes, for each rollup.
Requires: what `check_rollups` checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sash_engine.steps import Steps, finished, spans_of
from sash_engine.windows.keys import NEVER, Keys
from sash_engine.windows.pages import Numbers
from sash_engine.windows.ragged import grown
from sash_engine.windows.rows import Rows
from sash_engine.windows.spec import WindowSpec
from sash_wire.labels import join, split

if TYPE_CHECKING:
    from sash_engine.windows.window import Window

__all__ = ["Rollup", "Rollups"]

_NAMES = 4_096
"""Keys of which one step finds the groups: 4 ms."""
_ROWS = 65_536
"""Rows that one step sorts."""
_ALL = "all"
"""The name of the one group of the rollup by no parts."""


class Rollup:
    """The groups by some parts.

    Args:
        spec, keys: of the window whose keys are grouped.
        parts: the names of the parts.
        window: keeps the groups as its keys.
    """

    def __init__(self, spec: WindowSpec, keys: Keys, parts: Sequence[str], window: Window) -> None:
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


class Rollups:
    """The rollups of one window.

    Args:
        each: they.
        keys: of the window.
    """

    def __init__(self, each: Sequence[Rollup], keys: Keys) -> None:
        self._each, self._keys = each, keys

    def __iter__(self) -> Iterator[Rollup]:
        return iter(self._each)

    def __len__(self) -> int:
        return len(self._each)

    # ---------------------------------------------------------------- writing

    def insert(self, number: int, time: int, values: Sequence[Any]) -> None:
        """Take in one row of a key: a scalar per column after the time."""
        for rollup in self._each:
            rollup.window.feed(rollup.group(number), time, values)

    def insert_steps(self, rows: Rows) -> Steps[None]:
        """Take in the rows of a write."""
        for rollup in self._each:
            groups = np.repeat((yield from rollup.groups_steps(rows.numbers)), rows.lengths)
            for a, b in spans_of(len(groups), _ROWS):
                yield from rollup.window.feed_steps(groups[a:b], [column[a:b] for column in rows.columns])
                yield

    def bulk_evict(self, time: int) -> None:
        """Remove entries with time <= `time` of all keys."""
        for rollup in self._each:
            rollup.window.bulk_evict(time)

    def evict_range(self, start: int, end: int) -> None:
        """Remove entries with start <= time <= end of all keys."""
        for rollup in self._each:
            rollup.window.evict_range(start, end)

    def cut(self, number: int, time: int) -> None:
        """Note that entries of one key with time <= `time` were removed: its groups have a later horizon."""
        time = min(time, self._keys.now_of[number])
        for rollup in self._each:
            rollup.window.cut(rollup.group(number), time)

    def punctuate(self, time: int) -> None:
        """Note that entries of a time and older are final."""
        for rollup in self._each:
            rollup.window.punctuate(time)

    def add_aggregates(self, aggregates: Mapping[str, Any]) -> None:
        """Add aggregates."""
        for rollup in self._each:
            rollup.window.add_aggregates(aggregates)

    def slide(self) -> None:
        """Evict what wall time has made too old."""
        for rollup in self._each:
            rollup.window.slide()

    def tidy(self) -> None:
        """Do what time alone brings."""
        for rollup in self._each:
            rollup.window.tidy()

    def resume_marks(self) -> None:
        """Take over the high-water marks of the keys, which an import has set."""
        numbers = self._keys.numbers()
        numbers = numbers[self._keys.now[numbers] > NEVER]
        for rollup in self._each:
            groups = finished(rollup.groups_steps(numbers))
            rollup.window.raise_marks(groups, self._keys.now[numbers])

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Callable[..., bool] | None = None) -> None:
        """Raise AssertionError unless each rollup has the entries of its keys behind its horizon; `same` as in Keys."""
        numbers = self._keys.numbers()
        for rollup in self._each:
            rollup.window.check_invariants(same)
            found = dict[int, int]()
            for number in numbers.tolist():
                group = rollup.group(number)
                horizon = rollup.window.keys.late_through_of[group]
                entries = self._keys.range_totals(number, horizon + 1, 2**63 - 2)[0]
                found[group] = found.get(group, 0) + entries
            for group, entries in found.items():
                there = rollup.window.keys.entries(group)
                assert there == entries, f"group {group} of {set(rollup.parts)} has {there} entries, its keys {entries}"
