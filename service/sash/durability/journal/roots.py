"""The values that all windows of a tier need: which windows there are, where the journal begins, and where it ends.

    meta            windows, next number, what is being deleted       written when a window comes or goes, or one
                                                                      that is stored with another one
    journal         first group, groups set apart, what was cut       written then, and when the journal is cut
    journal/last    last group, last record                           written then, and with every commit of records

Each of them is written many times under one key. A tier that loses such a write shows an older value, which is whole
and in its place. So each value says something about another one, and an older value contradicts it:

- All three say as which record `meta` was last written.
- `journal` has a number, which `journal/last` names.
- No group comes behind the one that `journal/last` names, and the journal begins no later than behind it.
- No image covers records behind the one that `journal/last` names.
- `journal` says up to which record each window's groups were deleted. The window's image covers these records. An older
  pointer, to an older image, does not.
- Each group says which record is the last before it, and for each window in it the window's last record before it.

So of these values and the pointers any one, and any two, may be older, and that is noticed if it matters. Values of
earlier formats do not say all of this: those of format 1 nothing, those of format 2 neither the number of `journal` nor
as which record `meta` was last written when it was.

All three name their store, as every value does, and say from which window and group on every value names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from sash.durability import formats as values
from sash_engine.errors import DataLoss


@dataclass(frozen=True, slots=True)
class Meta:
    """The value `meta`.

    Args:
        windows: number, durability and spec of each.
        next_window: the first number that was never given to a window.
        discarded: number of each window that is being deleted, and its `Remains`.
        record: number of the record as which it was written; 0 in format 1.
        bound: windows from this number on have no values of format 1.
        owned: windows from this number on have only values that name their store.
        derived: by number of a window, the specs of those that are stored with it, if there are any; None if an earlier
            version wrote the value.
    """

    windows: Sequence[tuple[int, Any, Mapping[str, Any]]]
    next_window: int
    discarded: Sequence[tuple[int, Mapping[str, Any]]]
    record: int = 0
    bound: int = 1
    owned: int = 1
    derived: Mapping[int, Sequence[Mapping[str, Any]]] | None = None

    def puts(self, store: bytes) -> Mapping[bytes, bytes]:
        """Return the value by its key; `store` is the id of the store."""
        payload = {
            "windows": self.windows,
            "next": self.next_window,
            "discarded": self.discarded,
            "record": self.record,
            "bound": self.bound,
            "owned": self.owned,
            "derived": self.derived,
        }
        return _put("meta", payload, values.meta_key(), store)

    def derived_of(self, window: int) -> Sequence[Mapping[str, Any]] | None:
        """The specs of the windows that are stored with a window; None if that is not known."""
        return None if self.derived is None else self.derived.get(window, [])

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Meta:
        """Read the payload of a value that `puts` made."""
        following = payload["next"]
        bound, owned = payload.get("bound", following), payload.get("owned", following)
        record, derived = payload.get("record", 0), payload.get("derived")
        return cls(payload["windows"], following, payload["discarded"], record, bound, owned, derived)


@dataclass(frozen=True, slots=True)
class Start:
    """The value `journal`: where the journal begins.

    Args:
        first: no group from this one on was deleted.
        record: number of the last record when it was written.
        apart: groups before the first one that still exist, by number: their last records; None if that is not known.
        cut: by window, the last of its records that was deleted.
        bound: groups from this number on are not of format 1; None if any may be.
        listing: number of the record as which `meta` was last written.
        number: how often `journal` was written; 0 before format 3, which said neither of the two.
        owned: groups from this number on name their store; None if none may.
    """

    first: int = 1
    record: int = 0
    apart: Mapping[int, int | None] = field(default_factory=dict)
    cut: Mapping[int, int] = field(default_factory=dict)
    bound: int | None = 1
    listing: int = 0
    number: int = 0
    owned: int | None = 1

    def puts(self, store: bytes) -> Mapping[bytes, bytes]:
        """Return the value by its key; `store` is the id of the store."""
        payload = {
            "first": self.first,
            "record": self.record,
            "apart": self.apart,
            "cut": self.cut,
            "bound": self.bound,
            "listing": self.listing,
            "number": self.number,
            "owned": self.owned,
        }
        return _put("pointer", payload, values.journal_key(), store)

    def is_bound(self, group: int) -> bool:
        """Whether a group cannot be of format 1."""
        return self.bound is not None and group >= self.bound

    def is_owned(self, group: int) -> bool:
        """Whether a group must name its store."""
        return self.owned is not None and group >= self.owned

    @classmethod
    def of(cls, payload: Any) -> Start:
        """Read the payload of a value that `puts` made."""
        if isinstance(payload, Mapping):
            return cls(**{"owned": None, **payload})
        first, record, apart = payload  # format 1
        return cls(first, record, dict.fromkeys(apart), {}, None, owned=None)


@dataclass(frozen=True, slots=True)
class End:
    """The value `journal/last`: where the journal ends.

    Args:
        group: number of the last group; 0 if there is none.
        record: number of the last record in it; None in format 1.
        listing: number of the record as which `meta` was last written; 0 if that was in format 1.
        start: number of `journal`; 0 before format 3.
    """

    group: int = 0
    record: int | None = 0
    listing: int = 0
    start: int = 0

    def puts(self, store: bytes) -> Mapping[bytes, bytes]:
        """Return the value by its key; `store` is the id of the store."""
        payload = {"group": self.group, "record": self.record, "listing": self.listing, "start": self.start}
        return _put("last", payload, values.last_group_key(), store)

    @classmethod
    def of(cls, payload: Any) -> End:
        """Read the payload of a value that `puts` made."""
        return cls(**payload) if isinstance(payload, Mapping) else cls(payload, None)  # format 1


ROOTS = (values.meta_key(), values.journal_key(), values.last_group_key())
"""The keys of the three."""


def store_among(roots: Sequence[bytes | None]) -> bytes | None:
    """The id of a store: the one that most of its roots name, whether they are whole or not; None if none does."""
    stores = Counter(store for data in roots if (store := values.store_of(data)) is not None)
    return stores.most_common(1)[0][0] if stores else None


def check_together(meta: Meta, start: Start, end: End) -> None:
    """Check that none of the three is older than another one; raises DataLoss."""
    if meta.record < end.listing:
        raise _out_of_date("meta", "windows came or went after it was written")
    if meta.record > end.listing or start.number > end.start or start.first > end.group + 1:
        raise last_out_of_date()
    if start.number < end.start:
        raise _out_of_date("journal", "it was written again later")
    if start.number and start.listing > meta.record:
        raise DataLoss("values 'meta' and 'journal/last' are out of date: windows came or went after they were written")


def check_covered(end: End, image: int, name: str) -> None:
    """Check that the journal does not end before what the image of a window covers.

    Args:
        end: where it ends.
        image: the last record that the image covers.
        name: name of the window.

    Raises:
        DataLoss: it does.
    """
    if end.record is not None and image > max(end.record, end.listing):
        raise _out_of_date("journal/last", f"the image of window {name!r} covers later writes")


def last_out_of_date() -> DataLoss:
    """The error for a `journal/last` behind which something was committed."""
    return _out_of_date("journal/last", "something was committed after it was written")


def _out_of_date(name: str, why: str) -> DataLoss:
    return DataLoss(f"value {name!r} is out of date: {why}")


class JournalPosition(NamedTuple):
    """Where a journal goes on.

    Args:
        next_group: number of the next group.
        last: number of the last record.
        written: the groups in the tier: number, and by window its last record in the group.
        start, end: where the journal begins and ends in the tier.
        before: by window, its last record in the tier, or a later one that its image covers.
        store: id of the store.
    """

    next_group: int = 1
    last: int = 0
    written: Iterable[tuple[int, Mapping[int, int]]] = ()
    start: Start = Start()
    end: End = End()
    before: Mapping[int, int] = MappingProxyType({})
    store: bytes = values.NO_STORE


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

    def puts(self, store: bytes) -> Mapping[bytes, bytes]:
        """Return the value by its key; `store` is the id of the store."""
        payload = {"records": self.records, "after": self.after, "before": self.before}
        return _put("journal", payload, values.group_key(self.number), store)

    @classmethod
    def of(
        cls,
        number: int,
        data: bytes | None,
        bound: bool,
        end: int | None = None,
        store: bytes | None = None,
        owned: bool = False,
    ) -> Group:
        """Read a group from its value.

        Args:
            data: the value; None if it is missing.
            bound: whether it cannot be of format 1.
            end: as for the attribute, if it is known from elsewhere.
            store, owned: as for `unseal`.
        """
        try:
            payload = values.unseal("journal", data, values.group_key(number), None, bound, store, owned)
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


def _put(kind: str, payload: Any, key: bytes, store: bytes) -> Mapping[bytes, bytes]:
    return {key: values.seal(kind, payload, key, store)}
