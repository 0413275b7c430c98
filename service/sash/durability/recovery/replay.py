"""Applies the journal to windows, and finds the windows that lack some of it.

    groups      3            4             5            6
    records     11 12 13     damaged       17 18        19 20
    window a    11    13     ?             17           .         group 5: its last record before 17 is 13    whole
    window b       12        ?             .            19        group 6: its last record before 19 is 15    lacks 15
    window c    .            ?             .            .         image through 12: nobody knows              may lack
    window d    .            ?             .            .         image through 16: it covers the group       whole

A group may be damaged or missing. The numbers of its records lie between those of the groups around it; each group says
which record is the last before it. A window whose image covers all these numbers does not need the group. Another
window may have records in it, until its next record says which one is the last before that. A window that lacks
records, or may lack some, is lost: nothing behind the gap is applied to it.

A window also lacks records if its image is older than the beginning of the journal. Then its pointer is out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sash.durability.images.stored_window import StoredWindow
from sash.durability.journal.roots import Group
from sash_engine.errors import DataLoss

Apply = Callable[[StoredWindow, int, Sequence[Any]], None]
"""Applies a record of that number to a window. If that fails, the window is lost."""

Lose = Callable[[StoredWindow, DataLoss], None]
"""Marks a window as lost."""


class Replay:
    """Applies groups to windows, in order.

    Args:
        windows: as their images are. Lost windows stay as they are.
        apply: applies a record.
        lose: marks a window as lost.

    Attributes:
        at: by window, the last record up to which it lacks nothing.
        last: number of the last known record.
        written: the groups so far, by number: by window, its last record in the group. A damaged group has the lost
            windows that may need it once it is repaired.
    """

    def __init__(self, windows: Sequence[StoredWindow], apply: Apply, lose: Lose) -> None:
        self._windows = {stored.number: stored for stored in windows}
        self._apply, self._lose = apply, lose
        self._pending: list[Group] = []  # damaged groups whose last record is not known yet
        # By window, the damaged groups that may have records of it, and their last records.
        self._gaps: dict[int, dict[int, int]] = {}
        self._errors: dict[int, DataLoss] = {}  # by damaged group
        self.at = {stored.number: stored.through for stored in windows}
        self.last = max(self.at.values(), default=0)
        self.written: dict[int, dict[int, int]] = {}

    def begin(self, cut: Mapping[int, int]) -> None:
        """Check that the images cover the deleted groups: `cut` has by window the last of its deleted records."""
        for stored in self._served():
            if cut.get(stored.number, 0) > self.at[stored.number]:
                self._lose(stored, DataLoss(f"the pointer to the image of window {stored.name!r} is out of date"))

    def take(self, group: Group) -> None:
        """Apply the next group."""
        if group.error is not None:
            self._errors[group.number] = group.error
            self._pending.append(group)
            self.written[group.number] = {}
            if group.end is not None:
                self._settle(group.end)
            return
        last = group.last
        self._settle(group.records[0][0] - 1 if group.after is None else group.after)
        self.written[group.number] = last
        for stored in self._served():
            if last.get(stored.number, 0) > self.at[stored.number]:
                self._check(stored, group)
        for record, window, fields in group.records:
            found = self._windows.get(window)
            if found is not None and found.failure is None and record > self.at[window]:
                self._apply(found, record, fields)
                if found.failure is None:
                    self.at[window] = record
        self.last = max(self.last, group.records[-1][0])

    def finish(self, record: int | None) -> None:
        """End the journal.

        Args:
            record: its last record; None if that is not known.
        """
        if record is None and self._pending:
            # No image covers an unknown record. New records get higher numbers.
            record = self.last + 1
        self._settle(record or 0)
        for window in list(self._gaps):
            self._lacks(self._windows[window])

    def _served(self) -> list[StoredWindow]:
        return [stored for stored in self._windows.values() if stored.failure is None]

    def _settle(self, end: int) -> None:
        """Note that the damaged groups so far have no record behind `end`."""
        self.last = max(self.last, end)
        for group in self._pending:
            for window, at in self.at.items():
                if at < end:
                    self._gaps.setdefault(window, {})[group.number] = end
        self._pending.clear()
        for window in [window for window in self._gaps if self._windows[window].failure is not None]:
            self._keep(window)

    def _check(self, stored: StoredWindow, group: Group) -> None:
        """Check that a window lacks nothing before a group that is about to be applied to it."""
        if group.before is None:  # format 1
            if stored.number in self._gaps:
                self._lacks(stored)
        elif group.before[stored.number] > self.at[stored.number]:
            self._lacks(stored)
        else:
            self._gaps.pop(stored.number, None)

    def _lacks(self, stored: StoredWindow) -> None:
        """Mark a window as lost that lacks records, or may lack some."""
        gaps = self._keep(stored.number)
        if gaps:
            error = DataLoss(f"{self._errors[min(gaps)].message}, and may have had writes to this window")
        else:
            error = DataLoss(f"writes to it behind record {self.at[stored.number]} are missing from the journal")
        self._lose(stored, error)

    def _keep(self, window: int) -> Mapping[int, int]:
        """Keep the damaged groups that may have records of a lost window. Return their last records, by number."""
        gaps = self._gaps.pop(window, {})
        for number, end in gaps.items():
            self.written[number][window] = end
        return gaps
