"""The groups of the journal that the tier has, and the windows that need them.

group       3    4    5    6    7
window a    11   .    17   .    .       image through 17: needs none
window b    .    14   .    .    21      image through 14: needs group 7        trim ──▶ groups 3 to 6 are deleted
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sash.durability import formats as values
from sash.durability.journal.roots import Start


@dataclass(slots=True)
class WrittenGroup:
    """A group in the tier.

    Args:
        number: number of the group.
        last: by window, its last record in the group.
        at: how many bytes had been appended to the journal when it was committed.
    """

    number: int
    last: dict[int, int] = field(default_factory=dict)
    at: int = 0

    def needed(self, through: Mapping[int, int]) -> list[int]:
        """The windows that need it, because their images do not cover all of it."""
        return [window for window, number in self.last.items() if window in through and number > through[window]]


class GroupIndex:
    """The groups in the tier, in order."""

    def __init__(self) -> None:
        self._groups: deque[WrittenGroup] = deque()
        self._apart: list[WrittenGroup] = []  # only damaged windows need these

    def __len__(self) -> int:
        return len(self._groups) + len(self._apart)

    def add(self, number: int, last: Mapping[int, int], at: int) -> None:
        """Add the newest group; see `WrittenGroup`."""
        self._groups.append(WrittenGroup(number, dict(last), at))

    @property
    def oldest_at(self) -> int | None:
        """How many bytes had been appended at the commit of the first group that is not set apart; None without one."""
        return self._groups[0].at if self._groups else None

    def oldest_window(self, through: Mapping[int, int], damaged: Collection[int]) -> int | None:
        """The window that needs the oldest group; None if no group is needed.

        Args:
            through: by window, the last record that its image covers.
            damaged: windows that cannot be recovered as things are. Their images will never cover their records.
        """
        for group in self._groups:
            for window in group.needed(through):
                if window not in damaged:
                    return window
        return None

    def groups_of(self, window: int) -> list[int]:
        """The groups with records of a window."""
        return [group.number for group in (*self._apart, *self._groups) if window in group.last]

    def trim(
        self, through: Mapping[int, int], damaged: Collection[int], start: Start, next_group: int, last: int
    ) -> tuple[Start, list[bytes]] | None:
        """Remove the groups that no window needs any more; None if nothing has changed.

        Groups that only damaged windows need are set apart. They are needed again once the damage is repaired. Until
        then they must not keep later groups from being deleted. Their number does not grow, because nothing is written
        to a damaged window.

        Args:
            through, damaged: as for `oldest_window`.
            start: where the journal began so far.
            next_group: number of the next group.
            last: number of the last record.

        Returns:
            where the journal begins now, and the keys of the groups to delete.
        """
        done = [group for group in self._apart if not group.needed(through)]
        apart = [group for group in self._apart if group.needed(through)]
        while self._groups:
            needed = self._groups[0].needed(through)
            if any(window not in damaged for window in needed):
                break
            oldest = self._groups.popleft()
            (apart if needed else done).append(oldest)
        if not done and len(apart) == len(self._apart):
            return None
        self._apart = apart
        cut = dict(start.cut)
        for group in done:
            for window, record in group.last.items():
                cut[window] = max(record, cut.get(window, 0))
        # Groups that an earlier process set apart come before the first one that is not set apart.
        first = max(start.first, self._groups[0].number if self._groups else next_group)
        kept = {group.number: max(group.last.values(), default=0) for group in (*apart, *self._groups)}
        begin = Start(
            first,
            last,
            {number: record for number, record in kept.items() if number < first},
            {window: record for window, record in cut.items() if window in through},
            start.bound,
            owned=start.owned,
        )
        return begin, [values.group_key(group.number) for group in done]
