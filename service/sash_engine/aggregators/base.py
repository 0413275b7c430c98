"""The protocol family of the window aggregators: what they share, what each can do, how they refuse the rest.

                   Aggregator          query(), len, check_invariants()
                   /        \\
             InOrder        Timed
     insert(value)        /   |   \\     insert(time, value), evict(),
           evict()       /    |    \\    oldest, youngest
              OutOfOrder    Bulk    Range
             insert, evict   |         range_query(start, end)
             at any time     bulk_insert(pairs), bulk_evict(time)

An aggregator keeps a window of entries and answers for all of them: `query()` equals `lower(p1 ∘ p2 ∘ …)` over
the partials of its entries, oldest first. It has the members of every family; where it does not belong to one
(`capabilities` says to which it does), calling them raises `Unsupported` with the reason.

In an `InOrder` aggregator the order of entries is that of their inserts. In a `Timed` one it is that of their
times, and **equal times combine**: an insert at a time that is already there makes that entry's partial
`old ∘ new` and leaves `len` as it is. A time is any int; the aggregators only compare times.

>>> from sash_engine.aggregators.recalc import Recalc
>>> from sash_engine.monoids import Sum
>>> window = Recalc(Sum("int64"))
>>> for time, value in [(3, 30), (1, 10), (2, 20), (2, 5)]:
...     window.insert(time, value)
>>> window.query(), len(window), window.oldest, window.youngest
(65, 3, 1, 3)
>>> Capability.RANGE_QUERY in Recalc.capabilities
True

Source: the signatures follow Tangwongsan, Hirzel, Schneider (VLDB Journal 2021 for in-order, VLDB 2019 and 2023
for out-of-order, bulk and range). Differs: `evict()` of an empty window and `evict(time)` of an absent time are
errors here, where the papers leave them open.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Flag, auto
from typing import Any, ClassVar

from sash_engine.aggregators.checks import require, same
from sash_engine.errors import FailedPrecondition, Unsupported
from sash_engine.monoids.base import Monoid, Partial

__all__ = ["Aggregator", "Bulk", "Capability", "InOrder", "OutOfOrder", "Pairs", "Range", "Timed"]

Pairs = Iterable[tuple[int, Any]]
"""Entries to come: (time, value), in whatever order."""


class Capability(Flag):
    """What an aggregator can do beyond insert at the newest end, evict at the oldest, and query."""

    TIMED = auto()
    INSERT_ANYWHERE = auto()
    EVICT_ANYWHERE = auto()
    BULK_INSERT = auto()
    BULK_EVICT = auto()
    RANGE_QUERY = auto()


_REFUSALS = {
    Capability.INSERT_ANYWHERE: "takes entries in order of time only, because its partials grow at the newest end",
    Capability.EVICT_ANYWHERE: "evicts the oldest entry only, because it keeps no partial that leaves out another",
    Capability.BULK_INSERT: "inserts one entry at a time; it has no cheaper way for many",
    Capability.BULK_EVICT: "evicts one entry at a time; it has no cheaper way for many",
    Capability.RANGE_QUERY: "answers for its whole window only, because it keeps no partials of arbitrary parts",
}


class Aggregator(ABC):
    """A window of entries under one monoid.

    Args:
        monoid: the aggregate. Only `identity`, `lift`, `combine` and `lower` are used, and `uncombine` where
            `inverts`.

    Raises:
        Unsupported: the algorithm needs an inverse and the monoid has none.

    What must hold, of every member:

    1. A call that raises what it documents, or what `lift` raises, has changed nothing. `combine` does not raise.
    2. `len`, `oldest` and `youngest` are right as soon as a call returns.
    3. `combine` is called with (older, newer), never otherwise: the monoid need not be commutative.
    4. Partials are values: none is changed in place, and none is handed out but through `lower`.
    """

    algorithm: ClassVar[str]
    """Name in specs and in the registry."""
    inverts: ClassVar[bool] = False
    """Whether the monoid must be `invertible`."""
    grants: ClassVar[Capability] = Capability(0)
    """What this very class adds to the capabilities of its bases."""
    capabilities: ClassVar[Capability] = Capability(0)
    """All that it can do; `grants`, gathered from the class and its bases."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.capabilities = Capability(0)
        for base in cls.__mro__:
            cls.capabilities |= vars(base).get("grants", Capability(0))

    def __init__(self, monoid: Monoid) -> None:
        if self.inverts and not monoid.invertible:
            raise Unsupported(
                f"{self.algorithm} evicts by subtracting, and {monoid!r} has no exact inverse",
                field="algorithm",
            )
        self.monoid = monoid

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of entries; entries at equal times that were combined are one."""

    @abstractmethod
    def query(self) -> Any:
        """Answer over all entries; `lower(identity)` where there are none."""

    @abstractmethod
    def check_invariants(self) -> None:
        """Check everything that the structure relies on, at any cost.

        Raises:
            AssertionError: an invariant is broken; the message names it.
        """

    def _refusal(self, capability: Capability, *, field: str | None = None) -> Unsupported:
        """Make the error for a call that needs a capability this aggregator lacks."""
        return Unsupported(f"{self.algorithm} {_REFUSALS[capability]}", field=field)

    def _nothing_to_evict(self) -> FailedPrecondition:
        return FailedPrecondition("the window is empty: there is nothing to evict")

    def _check_fold(self, invariant: str, found: Partial, parts: Iterable[Partial]) -> None:
        """Check that a partial is the fold of others; where grouping rounds differently, nothing can be told."""
        if not self.monoid.exact:
            return
        expected = self.monoid.identity
        for part in parts:
            expected = self.monoid.combine(expected, part)
        require(same(found, expected), invariant, f"{found!r}, but its entries fold to {expected!r}")


class InOrder(Aggregator):
    """A first-in-first-out window: entries come at the newest end and leave at the oldest."""

    @abstractmethod
    def insert(self, value: Any) -> None:
        """Insert an entry, newer than all others.

        1. `value` is one that the monoid lifts; what `lift` raises is passed on.
        """

    @abstractmethod
    def evict(self) -> None:
        """Evict the oldest entry.

        1. The window is not empty.

        Raises:
            FailedPrecondition: it is.
        """


class Timed(Aggregator):
    """A window whose entries carry times, all of them different.

    The members from `bulk_insert` on refuse; the families below give them meaning.
    """

    grants = Capability.TIMED

    @property
    @abstractmethod
    def oldest(self) -> int | None:
        """The least time in the window; None where it is empty."""

    @property
    @abstractmethod
    def youngest(self) -> int | None:
        """The greatest time in the window; None where it is empty."""

    @abstractmethod
    def insert(self, time: int, value: Any) -> None:
        """Insert an entry, or combine it into the one at the same time (old ∘ new).

        1. `time >= youngest`, unless the window is `OutOfOrder`.
        2. `value` is one that the monoid lifts; what `lift` raises is passed on.

        Raises:
            Unsupported: 1 does not hold.
        """

    @abstractmethod
    def evict(self, time: int | None = None) -> None:
        """Evict the entry at `time`; the oldest one where it is None.

        1. The window is not empty.
        2. `time` is None or `oldest`, unless the window is `OutOfOrder`.
        3. There is an entry at `time`.

        Raises:
            FailedPrecondition: 1 or 3 does not hold.
            Unsupported: 2 does not hold.
        """

    def bulk_insert(self, pairs: Pairs) -> None:
        """Insert many entries: see `Bulk`."""
        raise self._refusal(Capability.BULK_INSERT)

    def bulk_evict(self, time: int) -> int:
        """Evict every entry up to a time: see `Bulk`."""
        raise self._refusal(Capability.BULK_EVICT)

    def range_query(self, start: int, end: int) -> Any:
        """Answer over a part of the window: see `Range`."""
        raise self._refusal(Capability.RANGE_QUERY)

    def _out_of_order(self, time: int) -> Unsupported:
        """Make the error for an insert before `youngest` in a window that takes none."""
        return Unsupported(
            f"time {time} comes before the youngest entry's {self.youngest}, and "
            f"{self.algorithm} {_REFUSALS[Capability.INSERT_ANYWHERE]}",
            field="time",
            limit=str(self.youngest),
        )

    def _absent(self, time: int) -> FailedPrecondition:
        """Make the error for an `evict(time)` that finds no such entry."""
        return FailedPrecondition(f"the window has no entry at time {time}", field="time")


class OutOfOrder(Timed):
    """A timed window that takes `insert` and `evict(time)` anywhere.

    Pre-condition 1 of `insert` and 2 of `evict` fall away.
    """

    grants = Capability.INSERT_ANYWHERE | Capability.EVICT_ANYWHERE


class Bulk(Timed):
    """A timed window with operations for many entries that cost less than so many single ones.

    A class that has only one of them derives from `Timed` and says so in `grants`.
    """

    grants = Capability.BULK_INSERT | Capability.BULK_EVICT

    @abstractmethod
    def bulk_insert(self, pairs: Pairs) -> None:
        """Insert entries, as if one after the other in time order; equal times in the order given.

        1. The pre-conditions of `insert` hold for each of them, in time order.

        Raises:
            Unsupported: the earliest comes before `youngest`, and the window is not `OutOfOrder`.
        """

    @abstractmethod
    def bulk_evict(self, time: int) -> int:
        """Evict every entry whose time is `time` or less; return how many entries left, maybe none."""


class Range(Timed):
    """A timed window that answers for any part of itself."""

    grants = Capability.RANGE_QUERY

    @abstractmethod
    def range_query(self, start: int, end: int) -> Any:
        """Answer over start <= time <= end; `lower(identity)` where that is no entry, as it is for start > end."""
