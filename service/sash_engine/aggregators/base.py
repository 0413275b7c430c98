"""The protocols of window aggregators: their common members, their capabilities, and errors for the other calls.

                   Aggregator          query(), len, check_invariants()
                   /        \\
             InOrder        Timed
     insert(value)        /   |   \\     insert(time, value), evict(),
           evict()       /    |    \\    oldest, youngest
              OutOfOrder    Bulk    Range
             insert, evict   |         range_query(start, end)
             at any time     bulk_insert(pairs), bulk_evict(time)

An aggregator keeps a window of entries and answers over all of them: `query()` equals `lower(p1 ∘ p2 ∘ …)` over the
partials of its entries, oldest first. A timed aggregator has the members of every timed protocol. `capabilities` says
which of them it supports; the others raise `Unsupported` with the reason.

In an `InOrder` aggregator entries are in the order of their inserts. In a `Timed` one they are in the order of their
times, and **equal times combine**: an insert at the time of an entry makes that entry's partial `old ∘ new` and leaves
`len` unchanged. A time is any int; the aggregators only compare times.

>>> from sash_engine.aggregators.recalc import Recalc
>>> from sash_engine.monoids import Sum
>>> window = Recalc(Sum("int64"))
>>> for time, value in [(3, 30), (1, 10), (2, 20), (2, 5)]:
...     window.insert(time, value)
>>> window.query(), len(window), window.oldest, window.youngest
(65, 3, 1, 3)
>>> Capability.RANGE_QUERY in Recalc.capabilities
True

Source: the signatures follow Tangwongsan, Hirzel, Schneider (VLDB Journal 2021 for in-order, VLDB 2019 and 2023 for
out-of-order, bulk and range).  Differs: `evict()` of an empty window and `evict(time)` without an entry at that time
are errors; the papers do not define them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Flag, auto
from typing import Any, ClassVar

from sash_engine.aggregators.checks import require, same
from sash_engine.errors import FailedPrecondition, Unsupported
from sash_engine.monoids.base import Monoid, Partial

Pairs = Iterable[tuple[int, Any]]
"""Entries to insert: (time, value), in any order."""


class Capability(Flag):
    """The operations of an aggregator besides insert at the newest end, evict at the oldest end, and query."""

    TIMED = auto()
    INSERT_ANYWHERE = auto()
    EVICT_ANYWHERE = auto()
    BULK_INSERT = auto()
    BULK_EVICT = auto()
    RANGE_QUERY = auto()


_REFUSALS = {
    Capability.INSERT_ANYWHERE: "takes entries in order of time only: its partials grow at the newest end",
    Capability.EVICT_ANYWHERE: "evicts the oldest entry only: it has no partials without a given other entry",
    Capability.BULK_INSERT: "inserts one entry at a time: it has no bulk operation",
    Capability.BULK_EVICT: "evicts one entry at a time: it has no bulk operation",
    Capability.RANGE_QUERY: "answers over its whole window only: it has no partials of parts of it",
}


class Aggregator(ABC):
    """A window of entries under one monoid.

    Args:
        monoid: the aggregate. Only `identity`, `lift`, `combine` and `lower` are used, and `uncombine` if `inverts`.

    Raises:
        Unsupported: the algorithm needs an inverse and the monoid has none.

    All members keep these rules:

    1. A call that raises a documented error, or an error of `lift`, changes nothing. `combine` does not raise.
    2. `len`, `oldest` and `youngest` are right as soon as a call returns.
    3. `combine` is always called with (older, newer): the monoid need not be commutative.
    4. Partials are values: they are never changed in place, and leave the aggregator only through `lower`.
    """

    algorithm: ClassVar[str]
    """Name in specs and in the registry."""
    inverts: ClassVar[bool] = False
    """Whether the monoid must be `invertible`."""
    grants: ClassVar[Capability] = Capability(0)
    """The capabilities that this class adds to those of its bases."""
    capabilities: ClassVar[Capability] = Capability(0)
    """All capabilities: `grants` of the class and its bases."""

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
        """Return the number of entries; combined entries of equal times count as one."""

    @abstractmethod
    def query(self) -> Any:
        """Answer over all entries; `lower(identity)` if there are none."""

    @abstractmethod
    def check_invariants(self) -> None:
        """Check all invariants of the structure, at any cost.

        Raises:
            AssertionError: an invariant is broken; the message names it.
        """

    def _refusal(self, capability: Capability, *, field: str | None = None) -> Unsupported:
        """Make the error for a call that needs a capability this aggregator lacks."""
        return Unsupported(f"{self.algorithm} {_REFUSALS[capability]}", field=field)

    def _nothing_to_evict(self) -> FailedPrecondition:
        return FailedPrecondition("the window is empty: there is nothing to evict")

    def _check_fold(self, invariant: str, found: Partial, parts: Iterable[Partial]) -> None:
        """Check that a partial is the fold of others; for inexact monoids, where grouping changes it, check nothing."""
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

        1. The monoid can lift `value`; errors of `lift` are passed on.
        """

    @abstractmethod
    def evict(self) -> None:
        """Evict the oldest entry.

        1. The window is not empty.

        Raises:
            FailedPrecondition: 1 does not hold.
        """


class Timed(Aggregator):
    """A window whose entries have different times.

    The members from `bulk_insert` on raise `Unsupported`; the protocols below define them.
    """

    grants = Capability.TIMED

    @property
    @abstractmethod
    def oldest(self) -> int | None:
        """The least time in the window; None if it is empty."""

    @property
    @abstractmethod
    def youngest(self) -> int | None:
        """The greatest time in the window; None if it is empty."""

    @abstractmethod
    def insert(self, time: int, value: Any) -> None:
        """Insert an entry, or combine it into the one at the same time (old ∘ new).

        1. `time >= youngest`, unless the window is `OutOfOrder`.
        2. The monoid can lift `value`; errors of `lift` are passed on.

        Raises:
            Unsupported: 1 does not hold.
        """

    @abstractmethod
    def evict(self, time: int | None = None) -> None:
        """Evict the entry at `time`, or the oldest entry if `time` is None.

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
        """Make the error for an insert before `youngest` in a window that is in order."""
        return Unsupported(
            f"time {time} comes before the youngest entry's {self.youngest}, and "
            f"{self.algorithm} {_REFUSALS[Capability.INSERT_ANYWHERE]}",
            field="time",
            limit=str(self.youngest),
        )

    def _absent(self, time: int) -> FailedPrecondition:
        """Make the error for `evict(time)` if there is no entry at that time."""
        return FailedPrecondition(f"the window has no entry at time {time}", field="time")


class OutOfOrder(Timed):
    """A timed window that supports `insert` and `evict(time)` at any time.

    Pre-condition 1 of `insert` and pre-condition 2 of `evict` do not apply.
    """

    grants = Capability.INSERT_ANYWHERE | Capability.EVICT_ANYWHERE


class Bulk(Timed):
    """A timed window with operations on many entries that cost less than as many single operations.

    A class with only one of them derives from `Timed` and names it in `grants`.
    """

    grants = Capability.BULK_INSERT | Capability.BULK_EVICT

    @abstractmethod
    def bulk_insert(self, pairs: Pairs) -> None:
        """Insert entries as if one after the other in time order; equal times are in the given order.

        1. The pre-conditions of `insert` hold for each of them, in time order.

        Raises:
            Unsupported: the earliest time is before `youngest`, and the window is not `OutOfOrder`.
        """

    @abstractmethod
    def bulk_evict(self, time: int) -> int:
        """Evict every entry whose time is `time` or less; return the number of evicted entries."""


class Range(Timed):
    """A timed window that answers over any range of time."""

    grants = Capability.RANGE_QUERY

    @abstractmethod
    def range_query(self, start: int, end: int) -> Any:
        """Answer over start <= time <= end; `lower(identity)` if there are no such entries, as for start > end."""
