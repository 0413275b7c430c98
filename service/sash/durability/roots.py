"""The values that all windows of a tier need: which windows there are, where the journal begins, and where it ends.

    meta            windows, next number, what is being deleted       written when a window comes or goes, or one
                                                                      that is stored with another one
    journal         first group, groups set apart, what was cut       written when the journal is cut
    journal/last    last group, last record, last write of `meta`     written with every commit of records or of `meta`

Each of them is written many times under one key. A tier that loses such a write shows an older value, which is whole
and in its place. So each value says something about another one, and an older value contradicts it:

- `journal/last` says as which record `meta` was last written, and `meta` says as which record it was written.
- No group comes behind the one that `journal/last` names.
- `journal` says up to which record each window's groups were deleted. The window's image covers these records. An older
  pointer, to an older image, does not.
- Each group says which record is the last before it, and for each window in it the window's last record before it.

Values of format 1 say none of this. They are read all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from sash.durability import formats as values
from sash_engine.errors import DataLoss

__all__ = ["End", "Group", "JournalPosition", "Meta", "Start"]


@dataclass(frozen=True, slots=True)
class Meta:
    """The value `meta`.

    Args:
        windows: number, durability and spec of each.
        next_window: the first number that was never given to a window.
        discarded: number of each window that is being deleted, and its `Remains`.
        record: number of the record as which it was written; 0 in format 1.
        bound: windows from this number on have no values of format 1.
        derived: by number of a window, the specs of those that are stored with it, if there are any; None if an earlier
            version wrote the value.
    """

    windows: Sequence[tuple[int, Any, Mapping[str, Any]]]
    next_window: int
    discarded: Sequence[tuple[int, Mapping[str, Any]]]
    record: int = 0
    bound: int = 1
    derived: Mapping[int, Sequence[Mapping[str, Any]]] | None = None

    def puts(self) -> Mapping[bytes, bytes]:
        """Return the value by its key."""
        payload = {
            "windows": self.windows,
            "next": self.next_window,
            "discarded": self.discarded,
            "record": self.record,
            "bound": self.bound,
            "derived": self.derived,
        }
        return _put("meta", payload, values.meta_key())

    def derived_of(self, window: int) -> Sequence[Mapping[str, Any]] | None:
        """The specs of the windows that are stored with a window; None if that is not known."""
        return None if self.derived is None else self.derived.get(window, [])

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Meta:
        """Read the payload of a value that `puts` made."""
        following = payload["next"]
        bound = payload.get("bound", following)
        record, derived = payload.get("record", 0), payload.get("derived")
        return cls(payload["windows"], following, payload["discarded"], record, bound, derived)


@dataclass(frozen=True, slots=True)
class Start:
    """The value `journal`: where the journal begins.

    Args:
        first: no group from this one on was deleted.
        record: number of the last record when it was written.
        apart: groups before the first one that still exist, by number: their last records; None if that is not known.
        cut: by window, the last of its records that was deleted.
        bound: groups from this number on are not of format 1; None if any may be.
    """

    first: int = 1
    record: int = 0
    apart: Mapping[int, int | None] = field(default_factory=dict)
    cut: Mapping[int, int] = field(default_factory=dict)
    bound: int | None = 1

    def puts(self) -> Mapping[bytes, bytes]:
        """Return the value by its key."""
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
        """Read the payload of a value that `puts` made."""
        if isinstance(payload, Mapping):
            return cls(**payload)
        first, record, apart = payload  # format 1
        return cls(first, record, dict.fromkeys(apart), {}, None)


@dataclass(frozen=True, slots=True)
class End:
    """The value `journal/last`: where the journal ends.

    Args:
        group: number of the last group; 0 if there is none.
        record: number of the last record in it; None in format 1.
        listing: number of the record as which `meta` was last written; 0 if that was in format 1.
    """

    group: int = 0
    record: int | None = 0
    listing: int = 0

    def puts(self) -> Mapping[bytes, bytes]:
        """Return the value by its key."""
        payload = {"group": self.group, "record": self.record, "listing": self.listing}
        return _put("last", payload, values.last_group_key())

    @classmethod
    def of(cls, payload: Any) -> End:
        """Read the payload of a value that `puts` made."""
        return cls(**payload) if isinstance(payload, Mapping) else cls(payload, None)  # format 1


class JournalPosition(NamedTuple):
    """Where a journal goes on.

    Args:
        next_group: number of the next group.
        last: number of the last record.
        written: the groups in the tier: number, and by window its last record in the group.
        start, end: where the journal begins and ends in the tier.
        before: by window, its last record in the tier, or a later one that its image covers.
    """

    next_group: int = 1
    last: int = 0
    written: Iterable[tuple[int, Mapping[int, int]]] = ()
    start: Start = Start()
    end: End = End()
    before: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the journal.

    Args:
        number: number of the group.
        records: (number, window, fields) of each, in order; none if it is damaged.
        after: number of the last record before it; None if it is damaged, or of format 1.
        before: by window, the last record that the window has before it; None like `after`.
        error: why it cannot be read; None if it can.
        end: number of its last record, or of a later one before the next group; None if that is not known.
    """

    number: int
    records: Sequence[tuple[int, int, Sequence[Any]]] = ()
    after: int | None = None
    before: Mapping[int, int] | None = None
    error: DataLoss | None = None
    end: int | None = None

    def puts(self) -> Mapping[bytes, bytes]:
        """Return the value by its key."""
        payload = {"records": self.records, "after": self.after, "before": self.before}
        return _put("journal", payload, values.group_key(self.number))

    @classmethod
    def of(cls, number: int, data: bytes | None, bound: bool, end: int | None = None) -> Group:
        """Read a group from its value.

        Args:
            data: the value; None if it is missing.
            bound: whether it cannot be of format 1.
            end: as for the attribute, if it is known from elsewhere.
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
