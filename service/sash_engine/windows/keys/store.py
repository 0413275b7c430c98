"""Stores of the entries of one key.

    store       kept as                                             made for
    Forest      column blocks with a tree of partials               keys with many rows
    SmallKey    some rows of shared pages, of which it is a view    keys with few rows
    Newer       either of them, without what is too old             keys of a view

A row is an entry, or a pane where the window has a granularity; the layout says so.

The number of entries, `evict_while` and answers count entries. `insert`, `evict`, `columns` and `capture` are about
rows. Rows have times and are sorted by (time, arrival); a store of panes has one row of a time.

`tests/windows/test_key_store.py` compares forests and small keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from sash_engine.forest import Cold, Layout, RowSlice
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps

Same = Callable[[Monoid, Partial, Partial], bool]
"""Compares two partials of a monoid, for `check_invariants`."""


class ReadableStore(Protocol):
    """The entries of one key, as questions read them: of a window, or of a view, which shows some of them.

    A method that loads stored blocks raises Unavailable or DataLoss where it cannot.

    `part`, an argument of many methods, is a layout of some of the slots, in increasing order (`Layout.lean`): only
    these are folded and answered. None: all that the store has.
    """

    def __len__(self) -> int:
        """How many entries there are."""

    @property
    def oldest(self) -> int | None:
        """Time of the oldest row, in ticks; None where empty."""

    @property
    def newest(self) -> int | None:
        """Time of the newest row, in ticks; None where empty. Loads nothing."""

    def totals(self, part: Layout | None = None) -> list[Partial]:
        """The partials over all entries, one per slot."""

    def range_query(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Any]]:
        """The number of entries with start <= time <= end, and the answers over them."""

    def range_totals(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of entries with start <= time <= end, and their partials."""

    def series_steps(self, starts: Array, stops: Array, part: Layout | None = None) -> Steps[tuple[Array, list[Array]]]:
        """Answer over many ranges of time, in steps; nothing may be written from the first to the last."""

    def capture(self, start: int | None, end: int | None) -> list[RowSlice]:
        """The rows with start <= time <= end (None: no bound) as they are now, in order, to be read later."""


class ReadableForest(ReadableStore, Protocol):
    """The entries of a key with a forest of its own; see `Forest`."""

    @property
    def rows(self) -> int:
        """How many rows there are."""

    def columns(self) -> list[Array]:
        """All rows as columns."""

    def fold_steps(
        self, starts: Array, stops: Array, part: Layout | None = None
    ) -> Steps[tuple[Array, Array, list[Partials]]]:
        """Fold many ranges of time, in steps; `part` as of `ReadableStore`."""


def rows_of_slices(slices: Sequence[RowSlice], cold: Cold | None) -> Iterator[list[Array]]:
    """The rows of some slices as columns; all blocks that are stored, in `cold`, come in one round trip."""
    numbers = [rows.block_id for rows in slices if rows.columns is None]
    stored = iter(cold.columns(numbers) if cold is not None and numbers else ())
    for rows in slices:
        columns = next(stored) if rows.columns is None else rows.columns
        yield [column[rows.first : rows.stop] for column in columns]
