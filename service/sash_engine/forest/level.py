"""One level of a forest: its nodes in a row, as growing columns.

    node        base       …       tail
    row          0    1    2    3       .    .        room for two more
    counts     | 8  | 8  | 7  | 8  |    |    |
    columns    | p  | p  | p  | p  |    |    |        per slot one array per element of the monoid's `dtypes`

Nodes are addressed by position, which only grows; dead ones at the front go when a level runs out of room. Where large
partials are kept in a tier (external.py), what is stored is released when its node is written anew, forgotten or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sash_engine.forest.cold import PendingBlock
from sash_engine.forest.external import ExternalPartials
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array

_FIRST_ROWS = 4


class Level:
    """Nodes base..tail, each with its count of entries and its partials.

    Args:
        monoids: one per slot.
        base: position of the first node.
    """

    __slots__ = ("base", "columns", "counts", "external", "has_external", "monoids", "putters", "tail", "takers")

    def __init__(self, monoids: Sequence[Monoid], base: int = 0) -> None:
        self._use(monoids)
        self.base = base
        self.tail = base
        self.counts: Array = np.empty(0, np.int64)
        self._hold([tuple(np.empty(0, dtype) for dtype in monoid.dtypes) for monoid in monoids])

    def _use(self, monoids: Sequence[Monoid]) -> None:
        self.monoids = monoids
        self.external = [(slot, monoid) for slot, monoid in enumerate(monoids) if isinstance(monoid, ExternalPartials)]
        self.has_external = bool(self.external)
        """Whether partials may have to be loaded, so that it pays to say before which will be read."""

    def _hold(self, columns: list[Partials]) -> None:
        self.columns = columns
        self.takers: list[Callable[[int], Partial]] = []
        """For each slot what takes the partial from a row."""
        self.putters: list[Callable[[int, Partial], None]] = []
        """For each slot what puts a partial into a row."""
        for monoid, parts in zip(self.monoids, columns, strict=True):
            self.takers.append(monoid.taker(parts))
            self.putters.append(monoid.putter(parts))

    def reserve(self, k: int, live: int) -> int:
        """Make room for k more nodes and count them in; return the row of the first.

        Args:
            live: the oldest node that is still of use; older ones may go.
        """
        row = self.tail - self.base
        if row + k > len(self.counts):
            row = self.make_room(k, live)
        self.tail += k
        return row

    def make_room(self, k: int, live: int) -> int:
        """Move the nodes to longer columns, with room for k more, without those before `live`; return `tail`'s row."""
        dead = min(max(live, self.base), self.tail) - self.base
        rows = self.tail - self.base - dead
        capacity = max(_FIRST_ROWS, 2 * rows, rows + k)
        self.release(slice(0, dead))
        (self.counts,) = moved([self.counts], dead, rows, capacity)
        self._hold([tuple(moved(parts, dead, rows, capacity)) for parts in self.columns])
        self._clear(slice(rows, capacity))
        self.base += dead
        return rows

    def restart(self, position: int) -> None:
        """Forget all nodes; the next one is at `position`."""
        self.release(slice(0, self.tail - self.base))
        self.base = self.tail = position

    def truncate(self, position: int) -> None:
        """Forget the nodes from `position` on."""
        position = max(position, self.base)
        if self.has_external:
            self.release(slice(position - self.base, max(self.tail - self.base, 0)))
        self.tail = position

    def count(self, position: int) -> int:
        """Entries under one node."""
        return self.counts.item(position - self.base)  # type: ignore[no-any-return]

    def total(self, start: int, stop: int) -> int:
        """Entries under the nodes start..stop."""
        return int(np.add.reduce(self.counts[start - self.base : stop - self.base]))

    def node(self, position: int) -> list[Partial]:
        """The partials of one node, one per slot."""
        row = position - self.base
        out = []
        for take in self.takers:
            out.append(take(row))  # noqa: PERF401
        return out

    def fold(self, start: int, stop: int, slots: Sequence[int] | None = None) -> list[Partial]:
        """Fold the nodes start..stop, one partial per slot, or for each of some slots."""
        if stop - start == 1 and slots is None:
            return self.node(start)
        a, b = start - self.base, stop - self.base
        wanted = range(len(self.monoids)) if slots is None else slots
        return [self.monoids[slot].fold(tuple([part[a:b] for part in self.columns[slot]])) for slot in wanted]

    def put(self, row: int, count: int, partials: Sequence[Partial]) -> None:
        """Write one node."""
        self.counts[row] = count
        for slot, put in enumerate(self.putters):
            put(row, partials[slot])

    def put_many(self, rows: Array | slice, counts: Array, columns: Sequence[Partials]) -> None:
        """Write k nodes: int64 counts (k,) and, per slot, k partials."""
        self.release(rows)
        self.counts[rows] = counts
        for mine, theirs in zip(self.columns, columns, strict=True):
            for to, source in zip(mine, theirs, strict=False):  # newcomers have no ids: released rows have none either
                to[rows] = source

    def slices(self, start: int, stop: int) -> tuple[Array, list[Partials]]:
        """Counts and partials of the nodes start..stop, as views."""
        a, b = start - self.base, stop - self.base
        return self.counts[a:b], [tuple([part[a:b] for part in parts]) for parts in self.columns]

    # ---------------------------------------------------------------- partials that are kept in a tier

    def numbers(self, position: int, slots: Sequence[int] | None = None) -> list[int]:
        """The ids of those partials of one node that are stored, of all slots or of some."""
        row = position - self.base
        return [
            number
            for slot, _ in self.external
            if (slots is None or slot in slots) and (number := self.columns[slot][1].item(row)) >= 0
        ]

    def ids(self, start: int, stop: int) -> list[Array]:
        """For each slot with large partials the ids of the nodes start..stop (copies), int64; -1 where not stored."""
        return [self.columns[slot][1][start - self.base : stop - self.base].copy() for slot, _ in self.external]

    def pending_partials(self, start: int, stop: int, given: Callable[[], None]) -> list[PendingBlock]:
        """The partials of the nodes start..stop that are to be stored; `given` is called when one gets its id."""
        a, b = start - self.base, stop - self.base
        return [one for slot, monoid in self.external for one in monoid.pending(self.columns[slot], a, b, given)]

    def release(self, rows: Array | slice) -> None:
        """The partials in some rows will not be read again; those that are stored are released."""
        for slot, monoid in self.external:
            monoid.release(self.columns[slot], rows)

    def _clear(self, rows: Array | slice) -> None:
        for slot, monoid in self.external:
            monoid.clear(self.columns[slot], rows)


def moved(columns: Sequence[Array], dead: int, rows: int, capacity: int) -> list[Array]:
    """Longer copies of columns, without their first `dead` rows."""
    out = []
    for column in columns:
        longer = np.empty(capacity, column.dtype)
        longer[:rows] = column[dead : dead + rows]
        out.append(longer)
    return out
