"""Row slices: the entries of a forest in a time range as they are now, to be read later.

    block 3   stored: its id              rows 17..1024
    block 4   in memory: its columns      rows 0..1024
    tail      a copy                      rows 0..200

A slice refers to arrays in memory that nobody writes to. It copies arrays that have room, because a writer may fill
it. So taking a slice costs a few µs a block, and its rows stay the same whatever happens to the forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sash_engine.forest.block import Block
from sash_engine.monoids.base import Array

__all__ = ["RowSlice"]


class RowSlice(NamedTuple):
    """Rows first..stop, at least one, of a block.

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
