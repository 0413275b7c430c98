"""A block: up to some thousand entries as columns, sorted by (time, arrival).

    columns[0]   times    | 3 | 5 | 5 | 9 |   |   |       rows = 4, room for two more
    columns[1]   field 1  | a | b | c | d |   |   |
    pending      [(columns, 7, 9), …]                     rows 7..9 of those columns belong here as well
    gone         [1]                                      row 1 has left, and is still in the columns

A splice puts newcomers behind all rows of the same or an earlier time. A *deferred* splice only notes them as
pending; `settle` sorts them in before the rows are read. A deferred removal notes rows as gone, and `settle` takes them
out, before it sorts others in. Folding a block and looking for single rows leaves them in the columns (`kept`). Arrays
that were handed over are never written to: they have no room, and a splice without room copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sash_engine.kernels import merge
from sash_engine.monoids.base import Array

Note = tuple[Sequence[Array], int, int]
"""Columns, and which of their rows are meant: first and behind the last."""

_PENDING = 64
"""So many notes at most: each costs some hundred bytes and keeps the arrays that its rows came in."""

_GONE = 64
"""So many rows at most that are gone and still in the columns: 36 bytes each."""


class Block:
    """Entries as columns; `columns[i][:rows]` are valid.

    Args:
        columns: times (int64) and one array per field, all of one length >= rows.
        rows: how many rows are used.
    """

    __slots__ = ("columns", "gone", "pending", "rows")

    def __init__(self, columns: list[Array], rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.pending: list[Note] | None = None
        self.gone: list[int] | None = None

    def lose(self, rows: list[int]) -> None:
        """Note that rows, distinct and at least one, leave; not all, and none was noted before. None are pending."""
        gone = self.gone = rows if self.gone is None else self.gone + rows
        if len(gone) > _GONE:
            self.settle()

    def defer(self, columns: Sequence[Array], start: int, stop: int) -> None:
        """Note rows start..stop of `columns`, sorted by time, as belonging here."""
        pending = self.pending
        if pending is None:
            self.pending = [(columns, start, stop)]
            return
        pending.append((columns, start, stop))
        if len(pending) > _PENDING:
            self.settle()

    def settle(self) -> None:
        """Take out rows that are gone, and sort pending rows in."""
        if self.gone is not None:
            gone, self.gone = self.gone, None
            self.columns = without(self.columns, 0, self.rows, gone)
            self.rows -= len(gone)
        if self.pending is not None:
            self.splice(self.take_pending())

    def kept(self, i: int) -> list[Array]:
        """The rows of column i that are here and stay, in order, as views; none are pending."""
        column, gone, start = self.columns[i], self.gone, 0
        if gone is None:
            return [column[: self.rows]]
        parts = list[Array]()
        for row in sorted(gone) if len(gone) > 1 else gone:
            parts.append(column[start:row])
            start = row + 1
        parts.append(column[start : self.rows])
        return parts

    def take_pending(self) -> list[Array]:
        """The rows of all notes, of which there is one at least, sorted; the notes are gone."""
        pending, self.pending = self.pending, None
        assert pending
        if len(pending) == 1:
            columns, start, stop = pending[0]
            return [column[start:stop] for column in columns]
        newcomers = [
            np.concatenate([columns[i][start:stop] for columns, start, stop in pending])
            for i in range(len(pending[0][0]))
        ]
        order = np.argsort(newcomers[0], kind="stable")
        return [column[order] for column in newcomers]

    def splice(self, newcomers: Sequence[Array], skip: int = 0) -> None:
        """Sort in k >= 1 rows that are sorted by time, none of them before row `skip`."""
        k, rows = len(newcomers[0]), self.rows
        if k == 1 and rows < len(self.columns[0]):
            at = skip + int(self.columns[0][skip:rows].searchsorted(newcomers[0][0], "right"))
            for column, newcomer in zip(self.columns, newcomers, strict=True):
                column[at + 1 : rows + 1] = column[at:rows]
                column[at] = newcomer[0]
        else:
            spare = rows >> 3 if k == 1 else 0  # more will come: splices tend to hit the same few blocks
            self.columns = merge(self.columns, skip, rows, newcomers, spare)
        self.rows = rows + k


class DeferredBlock(Block):
    """A stored block with pending rows: only the pending rows are in memory; see directory.py.

    Args:
        stored_id: the id of the other rows.
    """

    __slots__ = ("stored_id",)

    def __init__(self, stored_id: int) -> None:
        super().__init__([], 0)
        self.stored_id = stored_id

    def settle(self) -> None:
        """Make one note of all notes: the stored rows are not here to sort them into."""
        newcomers = self.take_pending()
        self.defer(newcomers, 0, len(newcomers[0]))


class RowSlice(NamedTuple):
    """Rows first..stop, at least one, of a block as they are now, to be read later.

    block 3   stored: its id              rows 17..1024
    block 4   in memory: its columns      rows 0..1024
    tail      a copy                      rows 0..200

    A slice refers to arrays in memory that nobody writes to. It copies arrays that have room, because a writer may fill
    it. So taking a slice costs a few µs a block, and its rows stay the same whatever happens to the forest.

    Args:
        columns: times, then one array per field; None where the block is stored.
        block_id: the id under which the block is stored; -1 where its columns are in memory.
        first, stop: which rows of the block.
    """

    columns: Sequence[Array] | None
    block_id: int
    first: int
    stop: int

    @classmethod
    def of_block(cls, block: Block, first: int, stop: int) -> RowSlice:
        """Rows of a block in memory that has no pending rows."""
        if len(block.columns[0]) > block.rows:
            return cls.copied(block.columns, first, stop)
        return cls(list(block.columns), -1, first, stop)

    @classmethod
    def of_stored(cls, block_id: int, first: int, stop: int) -> RowSlice:
        """Rows of a stored block."""
        return cls(None, block_id, first, stop)

    @classmethod
    def copied(cls, columns: Sequence[Array], first: int, stop: int) -> RowSlice:
        """Rows of columns that may still be written to."""
        return cls([column[first:stop].copy() for column in columns], -1, 0, stop - first)


def without(columns: Sequence[Array], start: int, stop: int, gone: Sequence[int]) -> list[Array]:
    """Rows start..stop of columns without those that are gone, in new arrays."""
    if len(gone) == 1:
        (row,) = gone
        return [np.concatenate((column[start:row], column[row + 1 : stop])) for column in columns]
    stay = np.ones(stop, np.bool_)
    stay[:start] = False
    stay[gone] = False
    return [column[:stop][stay] for column in columns]
