"""The values that all windows of a tier need: which windows there are, where the journal begins, and where it ends.

    meta            windows, next number, what is being deleted       written when a window comes or goes
    journal         first group, groups set apart, what was cut       written when the journal is cut
    journal/last    last group, last record, last write of `meta`     written with every commit of records or of `meta`

Each of them is written again and again under one key. A tier that loses such a write shows an older value, which is
whole and in its place. So each of them says something about another one, and an older value is noticed:

- `journal/last` says as which record `meta` was last written, and `meta` says as which record it was written.
- Behind the group that `journal/last` names there is none.
- `journal` says up to which record each window's groups were deleted. The window's image covers them. An older pointer
  to an older image does not.
- Each group says which record is the last before it, and for each window in it the window's last record before it.

Values of format 1 say none of this. They are read as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sash.durability import formats as values
from sash_engine.errors import DataLoss

__all__ = ["End", "Group", "Meta", "Start"]


@dataclass(frozen=True, slots=True)
class Meta:
    """What `meta` says.

    Args:
        windows: number, durability and spec of each.
        next_window: the first number that was never a window's.
        discarded: number of each window that is being deleted, and what is left of it.
        record: number of the record as which it was written; 0 in format 1.
        bound: windows from this number on have no values of format 1.
    """

    windows: Sequence[tuple[int, Any, Mapping[str, Any]]]
    next_window: int
    discarded: Sequence[tuple[int, Mapping[str, Any]]]
    record: int = 0
    bound: int = 1

    def puts(self) -> Mapping[bytes, bytes]:
        """The value by its key."""
        payload = {
            "windows": self.windows,
            "next": self.next_window,
            "discarded": self.discarded,
            "record": self.record,
            "bound": self.bound,
        }
        return _put("meta", payload, values.meta_key())

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Meta:
        """The opposite of `puts`."""
        following = payload["next"]
        bound = payload.get("bound", following)
        return cls(payload["windows"], following, payload["discarded"], payload.get("record", 0), bound)


@dataclass(frozen=True, slots=True)
class Start:
    """What `journal` says.

    Args:
        first: from this group on none was deleted.
        record: number of the last record when it was written.
        apart: groups before the first that are there, by number: their last records; None where that is not known.
        cut: by window, the last of its records that was deleted.
        bound: groups from this number on are not of format 1; None where any may be.
    """

    first: int = 1
    record: int = 0
    apart: Mapping[int, int | None] = field(default_factory=dict)
    cut: Mapping[int, int] = field(default_factory=dict)
    bound: int | None = 1

    def puts(self) -> Mapping[bytes, bytes]:
        """The value by its key."""
        payload = {
            "first": self.first,
            "record": self.record,
            "apart": self.apart,
            "cut": self.cut,
            "bound": self.bound,
        }
        return _put("pointer", payload, values.journal_key())

    def is_bound(self, group: int) -> bool:
        """Whether a group cannot be of format 1."""
        return self.bound is not None and group >= self.bound

    @classmethod
    def of(cls, payload: Any) -> Start:
        """The opposite of `puts`."""
        if isinstance(payload, Mapping):
            return cls(**payload)
        first, record, apart = payload  # format 1
        return cls(first, record, dict.fromkeys(apart), {}, None)


@dataclass(frozen=True, slots=True)
class End:
    """What `journal/last` says.

    Args:
        group: number of the last group; 0 where there was none.
        record: number of the last record in it; None in format 1.
        listing: number of the record as which `meta` was last written; 0 where it was not since format 1.
    """

    group: int = 0
    record: int | None = 0
    listing: int = 0

    def puts(self) -> Mapping[bytes, bytes]:
        """The value by its key."""
        payload = {"group": self.group, "record": self.record, "listing": self.listing}
        return _put("last", payload, values.last_group_key())

    @classmethod
    def of(cls, payload: Any) -> End:
        """The opposite of `puts`."""
        return cls(**payload) if isinstance(payload, Mapping) else cls(payload, None)  # format 1


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the journal, as it was read.

    Args:
        number: the group's.
        records: (number, window, fields) of each, in order; none where it is damaged.
        after: number of the last record before it; None where it is damaged, or of format 1.
        before: by window, the last record that the window has before it; None as `after`.
        error: why it cannot be read; None where it can.
        end: number of its last record, or a later one that is before the next group; None where that is not known.
    """

    number: int
    records: Sequence[tuple[int, int, Sequence[Any]]] = ()
    after: int | None = None
    before: Mapping[int, int] | None = None
    error: DataLoss | None = None
    end: int | None = None

    def puts(self) -> Mapping[bytes, bytes]:
        """The value by its key."""
        payload = {"records": self.records, "after": self.after, "before": self.before}
        return _put("journal", payload, values.group_key(self.number))

    @classmethod
    def of(cls, number: int, data: bytes | None, bound: bool, end: int | None = None) -> Group:
        """A group as the tier has it.

        Args:
            data: the value; None where there is none.
            bound: whether it cannot be of format 1.
            end: as the attribute, where it is known from elsewhere.
        """
        try:
            payload = values.unseal("journal", data, values.group_key(number), bound=bound)
        except DataLoss as error:
            return cls(number, error=error, end=end)
        if not isinstance(payload, Mapping):
            payload = {"records": payload}  # format 1
        records = payload["records"]
        return cls(number, records, payload.get("after"), payload.get("before"), None, records[-1][0])

    @property
    def last(self) -> dict[int, int]:
        """By window, its last record in the group."""
        return {window: record for record, window, _ in self.records}


def _put(kind: str, payload: Any, key: bytes) -> Mapping[bytes, bytes]:
    return {key: values.seal(kind, payload, key)}
