"""The entries of a forest in a time range, as they are now, for somebody who reads them later.

    block 3   stored: its id              rows 17..1024
    block 4   in memory: its columns      rows 0..1024
    tail      a copy                      rows 0..200

Arrays in memory are referred to where nobody will write to them, and copied where somebody may: where they have room.
So this costs a few µs a block, and what is read of it is the same whatever happens to the forest meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sash_engine.forest.block import Block
from sash_engine.monoids.base import Array

__all__ = ["Piece", "piece_of"]


class Piece(NamedTuple):
    """Rows first..stop, at least one, of a block.

    Args:
        source: columns (times, then one array per field), or the id under which they are stored.
    """

    source: Sequence[Array] | int
    first: int
    stop: int


def piece_of(source: Block | int, first: int, stop: int) -> Piece:
    """Rows of a block without pending ones, or of a stored one."""
    if isinstance(source, int):
        return Piece(source, first, stop)
    if len(source.columns[0]) > source.rows:
        return Piece([column[first:stop].copy() for column in source.columns], 0, stop - first)
    return Piece(list(source.columns), first, stop)
