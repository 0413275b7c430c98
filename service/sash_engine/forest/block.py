"""A block: up to some thousand entries as columns, sorted by (time, arrival).

    columns[0]   times    | 3 | 5 | 5 | 9 |   |   |       rows = 4, room for two more
    columns[1]   field 1  | a | b | c | d |   |   |
    pending      [(columns, 7, 9), …]                     rows 7..9 of those columns belong here as well

A splice puts newcomers behind all rows of the same or an earlier time. A *deferred* splice only notes them as
pending; `settle` sorts them in before the rows are read. Arrays that were handed over are never written to: they have
no room, and a splice without room copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sash_engine.monoids.base import Array

__all__ = ["Block", "Note", "merge"]

Note = tuple[Sequence[Array], int, int]
"""Columns, and which of their rows are meant: first and behind the last."""

_PENDING = 64
"""So many notes at most: each costs some hundred bytes and keeps the arrays that its rows came in."""


class Block:
    """Entries as columns; `columns[i][:rows]` are valid.

    Args:
        columns: times (int64) and one array per field, all of one length >= rows.
        rows: how many rows are used.
    """

    __slots__ = ("columns", "pending", "rows")

    def __init__(self, columns: list[Array], rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.pending: list[Note] | None = None

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
        """Sort pending rows in."""
        if self.pending is not None:
            self.splice(self.take_pending())

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


def merge(columns: Sequence[Array], skip: int, rows: int, newcomers: Sequence[Array], spare: int = 0) -> list[Array]:
    """Merge sorted newcomers into rows skip..rows of sorted columns; rows before `skip` stay in front.

    Returns:
        new arrays of `rows + k + spare` rows, the last `spare` of them unused.
    """
    k = len(newcomers[0])
    at = columns[0][skip:rows].searchsorted(newcomers[0], "right")
    at += np.arange(skip, skip + k)
    others = np.ones(rows + k, np.bool_)
    others[at] = False
    out = []
    for column, newcomer in zip(columns, newcomers, strict=True):
        merged = np.empty(rows + k + spare, column.dtype)
        merged[at] = newcomer
        merged[: rows + k][others] = column[:rows]
        out.append(merged)
    return out
