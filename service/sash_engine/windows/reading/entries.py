"""The entries of a window as bulks: by key, then time, then arrival.

    capture   small keys    copies of the rows in range
              others        row slices of their stores: columns that nobody writes to, or ids of stored blocks
    bulks     [ a a a | b b | c c c ] [ c c c c c c c c ] [ c c ]        up to `rows` each

The entries are those of the call, whatever is written while the bulks are read. Keys whose entries share pages come
first, then the others; both in the order that was asked for.

Capture: O(rows of small keys + blocks). Each bulk: O(rows), and one round trip where blocks are not in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sash_engine.forest import Cold, RowSlice
from sash_engine.forest.segments import starts_of_runs
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.batches.batch import AnyBatch, Coded
from sash_engine.windows.batches.panes import batch_of
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.store import rows_of_slices
from sash_engine.windows.sliding.view_keys import ReadableKeys, ReadableStore
from sash_engine.windows.spec.window import TICK_MAX, TICK_MIN, WindowSpec

BULK_ROWS = 16_384
"""Rows of a bulk. With a key each, it takes 2 ms to make and 3 ms to write as JSON."""

_STORES_A_STEP, _NAMES_A_STEP = 64, 4096
"""In a millisecond each."""


class Entries:
    """The entries of some keys with start <= time <= end, as of now, to be read bulk by bulk.

    Args:
        spec: of the window.
        keys: what is captured.
        numbers: int64 (k,), which keys.
        start, end: ticks; None: no bound.
        cold: loads stored blocks; None where there are none.
        rows: most rows in a bulk, >= 1.
        limit: at most so many entries; None: all.
        reverse: the last one first. The limit counts from there.

    With panes a row is a pane, and bulks are of partials.
    """

    def __init__(
        self,
        spec: WindowSpec,
        keys: ReadableKeys,
        numbers: Numbers,
        start: int | None,
        end: int | None,
        cold: Cold | None = None,
        rows: int = BULK_ROWS,
        limit: int | None = None,
        reverse: bool = False,
    ) -> None:
        assert rows >= 1
        self._spec, self._layout, self._cold, self._rows, self._reverse = spec, keys.layout, cold, rows, reverse
        self._asked = keys, numbers, start, end, limit

    def captured(self) -> Steps[Entries]:
        """Capture the entries in steps, before they are read; nobody writes to the window until the last one."""
        keys, numbers, start, end, limit = self._asked
        small, lengths, self._small = keys.small(numbers)
        self._of = np.repeat(small, lengths)
        if start is not None or end is not None:
            times = self._small[0]
            inside = (times >= (TICK_MIN if start is None else start)) & (times <= (TICK_MAX if end is None else end))
            self._of, self._small = self._of[inside], [column[inside] for column in self._small]
        self._large = list[tuple[int, RowSlice]]()
        large = list[int]()
        stores: Iterator[tuple[int, ReadableStore]] = keys.with_own_stores(numbers)
        for i, (number, store) in enumerate(stores):
            if i % _STORES_A_STEP == 0:
                yield
            captured = store.capture(start, end)
            self._large += [(number, each) for each in captured]
            if captured:
                large.append(number)
        if limit is not None:
            self._cut(limit)
        self._numbers = np.union1d(small, large).astype(np.int64)
        self._names = np.empty(len(self._numbers), object)
        """Of the keys in `_numbers`, which are sorted."""
        for a, b in spans_of(len(self._numbers), _NAMES_A_STEP):
            self._names[a:b] = [keys.name(number) for number in self._numbers[a:b].tolist()]
            yield
        self.rows = len(self._of) + sum(each.stop - each.first for _, each in self._large)
        """How many rows there are."""
        arrays = self._of, self._numbers, self._names, *self._small
        self.held_bytes = sum(each.nbytes for each in arrays)
        """What was captured, until the bulks have been read."""
        del self._asked
        return self

    def _cut(self, limit: int) -> None:
        """Keep the first `limit` rows; or the last ones, if they are read from there."""
        if self._reverse:
            kept, room = list[tuple[int, RowSlice]](), limit
            for number, rows in reversed(self._large):
                if not room:
                    break
                taken = min(room, rows.stop - rows.first)
                kept.append((number, rows._replace(first=rows.stop - taken)))
                room -= taken
            self._large = kept[::-1]
            some = slice(max(len(self._of) - room, 0), None)
        else:
            some = slice(0, limit)
            kept, room = [], limit - min(limit, len(self._of))
            for number, rows in self._large:
                if not room:
                    break
                taken = min(room, rows.stop - rows.first)
                kept.append((number, rows._replace(stop=rows.first + taken)))
                room -= taken
            self._large = kept
        self._of, self._small = self._of[some], [column[some] for column in self._small]

    def __iter__(self) -> Iterator[AnyBatch]:
        """The bulks, once; what was read is let go. Raises Unavailable or DataLoss where a block cannot be loaded."""
        return self._backward() if self._reverse else self._forward()

    def _forward(self) -> Iterator[AnyBatch]:
        small, self._small = self._small, []
        for a in range(0, len(self._of), self._rows):
            rows = slice(a, a + self._rows)
            yield self._bulk(self._of[rows], [column[rows] for column in small])
        del small
        self._large.reverse()
        for slices in self._groups():
            yield self._bulk(*self._read(slices))

    def _backward(self) -> Iterator[AnyBatch]:
        for slices in self._groups():
            of, columns = self._read(slices[::-1])
            yield self._bulk(_turned(of), [_turned(column) for column in columns])
        small, self._small = self._small, []
        for b in range(len(self._of), 0, -self._rows):
            rows = slice(max(b - self._rows, 0), b)
            yield self._bulk(_turned(self._of[rows]), [_turned(column[rows]) for column in small])

    def _read(self, slices: Sequence[tuple[int, RowSlice]]) -> tuple[Numbers, list[Array]]:
        """The keys and the columns of some slices."""
        of = np.repeat([number for number, _ in slices], [each.stop - each.first for _, each in slices])
        parts = rows_of_slices([each for _, each in slices], self._cold)
        return of, [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _groups(self) -> Iterator[list[tuple[int, RowSlice]]]:
        """The row slices of one bulk after the other, from the end of `_large`."""
        group: list[tuple[int, RowSlice]] = []
        room = self._rows
        while self._large:
            number, rows = self._large.pop()
            taken = min(room, rows.stop - rows.first)
            if self._reverse:
                left, now = rows._replace(stop=rows.stop - taken), rows._replace(first=rows.stop - taken)
            else:
                left, now = rows._replace(first=rows.first + taken), rows._replace(stop=rows.first + taken)
            if left.first < left.stop:
                self._large.append((number, left))
            group.append((number, now))
            room -= taken
            if not room:
                yield group
                group, room = [], self._rows
        if group:
            yield group

    def _bulk(self, of: Numbers, columns: Sequence[Array]) -> AnyBatch:
        keys = self._coded(of) if self._spec.keyed else None
        return batch_of(self._layout, self._spec, columns, keys)

    def _coded(self, of: Numbers) -> Coded:
        """The keys of rows that are sorted by key."""
        starts = starts_of_runs(of)
        codes = np.zeros(len(of), np.int64)
        codes[starts[1:]] = 1
        return Coded(self._names[np.searchsorted(self._numbers, of[starts])].tolist(), np.cumsum(codes))


def _turned(column: Array) -> Array:
    return np.ascontiguousarray(column[::-1])
