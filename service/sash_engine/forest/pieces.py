"""Cuts the entries of a forest into O(log n) pieces, short ones at the new end: the places where a change may be.

    entries   oldest                                                  newest
    pieces    [ skip.. ][    nodes of levels    ][ blocks ][ rows  |  | ||||]
                         widths at most a fifth of what is newer

The rows of the tail, and of sealed blocks before it up to a block's worth, are cut at rows. Older entries are cut at
blocks and nodes, whose partials are there. So it loads no block but the newest ones and a head that has lost rows.

Cost: O(B) for the rows, and O(log n) nodes.
Source: the exponential histogram of Datar, Gionis, Indyk, Motwani, "Maintaining stream statistics over sliding
windows", SIAM J. Comput. 2002, as ADWIN2 uses it.  Differs: the pieces are read from the forest, and not kept.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sash_engine.forest.directory import Directory
from sash_engine.forest.head_tail import Tail
from sash_engine.forest.layout import Layout
from sash_engine.forest.levels import Levels
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array

__all__ = ["pieces"]

_PER_WIDTH = 5
"""Pieces of each width, as in ADWIN2: a piece is at most a fifth of what is newer."""


def pieces(
    directory: Directory, levels: Levels, tail: Tail, skip: int, layout: Layout, slot: int
) -> tuple[list[int], list[Partial]]:
    """Count and fold the pieces, oldest first.

    Args:
        skip: rows of the first block that have left.
        slot: whose partials.
    """
    monoid, reads = layout.monoids[slot], layout.reads[slot]
    position, head = directory.tail, directory.head
    start = skip if position == head else 0
    rows, parts = tail.rows - start, [[tail.columns[i][start : tail.rows] for i in reads]]
    while position > head and rows < layout.block:
        position -= 1
        start, block = (skip if position == head else 0), directory.block(position)
        parts.append([block.columns[i][start : block.rows] for i in reads])
        rows += len(parts[-1][0])
    columns = [np.concatenate(column) for column in zip(*reversed(parts), strict=True)]
    if not rows:
        return [], []
    starts = _starts(rows)
    counts: list[int] = np.diff(starts, append=rows).tolist()
    partials = monoid.unpack(monoid.reduce_segments(columns, starts))
    if position == head:
        return counts, partials
    older_counts, older = [], []
    if skip:
        block = directory.block(head)
        head_rows = [block.columns[i][skip : block.rows] for i in reads]
        older_counts.append(len(head_rows[0]))
        older.append(monoid.reduce(head_rows))
        head += 1
    for i, index in reversed(levels.widening(head, position, _PER_WIDTH)):
        older_counts.append(levels.entries(i, index))
        older.append(levels.partial(i, index, slot))
    return older_counts + counts, older + partials


@lru_cache(maxsize=4096)
def _starts(rows: int) -> Array:
    """Where n >= 1 rows are cut: the newest five alone, five pieces of two rows, five of four, and so on."""
    starts, stop, width = [], rows, 1
    while stop > 0:
        for _ in range(_PER_WIDTH):
            stop = max(stop - width, 0)
            starts.append(stop)
            if not stop:
                break
        width *= 2
    found = np.array(starts[::-1], np.int64)
    found.flags.writeable = False
    return found
