"""Stores of the entries of one key.

    store       kept as                                             made for
    Forest      column blocks with a tree of partials               keys with many rows
    SmallKey    some rows of shared pages, of which it is a view    keys with few rows
    Newer       either of them, without what is too old             keys of a view (sliding/view_keys.py)

A row is an entry, or a pane where the window has a granularity; the layout says so.

A method that loads stored blocks raises Unavailable or DataLoss where it cannot. `part`, an argument of many methods,
is a layout of some of the slots, in increasing order (`Layout.lean`): only these are folded and answered. None: all
that the store has.

The number of entries, `evict_while` and answers count entries. `insert`, `evict`, `columns` and `capture` are about
rows. Rows have times and are sorted by (time, arrival); a store of panes has one row of a time.

`tests/windows/test_key_store.py` compares forests and small keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sash_engine.forest import Cold, RowSlice
from sash_engine.monoids import Monoid, Partial
from sash_engine.monoids.base import Array

Same = Callable[[Monoid, Partial, Partial], bool]
"""Compares two partials of a monoid, for `check_invariants`."""


def rows_of_slices(slices: Sequence[RowSlice], cold: Cold | None) -> Iterator[list[Array]]:
    """The rows of some slices as columns; all blocks that are stored, in `cold`, come in one round trip."""
    numbers = [rows.block_id for rows in slices if rows.columns is None]
    stored = iter(cold.columns(numbers) if cold is not None and numbers else ())
    for rows in slices:
        columns = next(stored) if rows.columns is None else rows.columns
        yield [column[rows.first : rows.stop] for column in columns]
