"""Times for an in-order aggregator: a queue of times beside it, and the youngest entry outside it.

    times      [ 1    4    6 ]   9
    inner      [ p0   p1   p2 ]  open = p3∘p4       two entries came at time 9
    answer     = lower(inner's fold ∘ open)

An in-order aggregator cannot change its entries, but equal times must combine. So the youngest entry stays *open*,
outside the aggregator, until a newer one arrives. The inner aggregator works on partials: its `lift` and `lower` return
their argument.

Worked example:

>>> from sash_engine.aggregators.daba_lite import DABALite
>>> from sash_engine.monoids import Sum
>>> window = TimedInOrder(DABALite, Sum("int64"))
>>> for time, value in [(1, 10), (4, 40), (9, 90), (9, 91)]:
...     window.insert(time, value)
>>> window.query(), len(window), window.oldest, window.youngest
(231, 3, 1, 9)

Insert, evict, query: as the inner aggregator, and at most one combine.  Space: as the inner aggregator, one partial,
and n times.
Requires: what the inner aggregator requires.  Order: in order only; equal times combine (old ∘ new).
Source: ours; `log_mta.py` keeps its youngest entry open in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from sash_engine.aggregators.base import Capability, InOrder, Timed
from sash_engine.aggregators.checks import require
from sash_engine.monoids.base import Monoid, Partial


class Partials(Monoid):
    """Another monoid over partials: its values and its answers are partials of that one."""

    function = "partials"

    def __init__(self, monoid: Monoid) -> None:
        self.monoid = monoid
        self.types = monoid.types
        self.identity = monoid.identity
        self.dtypes = monoid.dtypes
        self.commutative = monoid.commutative
        self.invertible = monoid.invertible
        self.exact = monoid.exact

    def lift(self, value: Any) -> Partial:
        return value

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return self.monoid.combine(older, newer)

    def lower(self, partial: Partial) -> Partial:
        return partial

    def uncombine(self, total: Partial, older: Partial) -> Partial:
        return self.monoid.uncombine(total, older)

    def __repr__(self) -> str:
        return repr(self.monoid)


class TimedInOrder(Timed):
    """A timed window in any in-order aggregator.

    Args:
        algorithm: the class of the inner aggregator.
        monoid: the aggregate.
    """

    def __init__(self, algorithm: Callable[[Monoid], InOrder], monoid: Monoid) -> None:
        self._inner = algorithm(Partials(monoid))
        super().__init__(monoid)
        self._times: deque[int] = deque()  # of all entries; the last one is of the open entry
        self._open: Partial = monoid.identity

    @property
    def algorithm(self) -> str:  # type: ignore[override]
        """The name of the inner algorithm."""
        return self._inner.algorithm

    def __len__(self) -> int:
        return len(self._times)

    @property
    def oldest(self) -> int | None:
        return self._times[0] if self._times else None

    @property
    def youngest(self) -> int | None:
        return self._times[-1] if self._times else None

    def query(self) -> Any:
        if not len(self._inner):
            return self.monoid.lower(self._open)
        return self.monoid.lower(self.monoid.combine(self._inner.query(), self._open))

    def insert(self, time: int, value: Any) -> None:
        youngest = self.youngest
        if youngest is not None and time < youngest:
            raise self._out_of_order(time)
        partial = self.monoid.lift(value)
        if time == youngest:
            self._open = self.monoid.combine(self._open, partial)
            return
        if youngest is not None:
            self._inner.insert(self._open)
        self._open = partial
        self._times.append(time)

    def evict(self, time: int | None = None) -> None:
        if not self._times:
            raise self._nothing_to_evict()
        if time not in (None, self._times[0]):
            raise self._refusal(Capability.EVICT_ANYWHERE, field="time")
        if len(self._inner):
            self._inner.evict()
        else:
            self._open = self.monoid.identity
        self._times.popleft()

    def check_invariants(self) -> None:
        self._inner.check_invariants()
        times = list(self._times)
        require(times == sorted(set(times)), "times", f"{times} are out of order, or equal")
        expected = max(len(times) - 1, 0)
        require(len(self._inner) == expected, "size", f"{len(self._inner)} entries inside, of {len(times)}")
