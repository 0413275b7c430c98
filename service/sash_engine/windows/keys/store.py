"""Stores of the entries of one key.

    store         kept as                                             made for
    Forest        column blocks with a tree of partials               keys with many rows
    SmallKey      some rows of shared pages, of which it is a view    keys with few rows
    ByAlgorithm   whatever the algorithm keeps, in memory only        windows that name an algorithm

A row is an entry, or a pane where the window has a granularity; the layout says so.

The number of entries, `evict_while` and answers count entries. `insert`, `evict`, `columns` and `capture` are about
rows. Rows have times and are sorted by (time, arrival); a store of panes has one row of a time.

`tests/windows/test_key_store.py` holds every store to this protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sash_engine.forest import Forest, Layout, RowSlice
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps

__all__ = ["KeyStore", "ReadableForest", "ReadableStore", "Same"]

Same = Callable[[Monoid, Partial, Partial], bool]
"""Compares two partials of a monoid, for `check_invariants`."""


class ReadableForest(Protocol):
    """The rows of a key, as series over many keys read them; see `Forest`."""

    @property
    def rows(self) -> int:
        """How many rows there are."""

    def columns(self) -> list[Array]:
        """All rows as columns."""

    def fold_steps(
        self, starts: Array, stops: Array, part: Layout | None = None
    ) -> Steps[tuple[Array, Array, list[Partials]]]:
        """Fold many ranges of time, in steps; `part` as of `ReadableStore`."""


class ReadableStore(Protocol):
    """The entries of one key, as questions read them: of a window, or of a view, which shows some of them.

    A store that keeps no values raises Unsupported where a method needs them. A method that loads stored blocks raises
    Unavailable or DataLoss where it cannot.

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

    @property
    def forest(self) -> ReadableForest:
        """The forest that the rows are in; raises Unsupported where they are in none."""

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


class KeyStore(ReadableStore, Protocol):
    """Keeps the entries of one key, and answers with their fold. After an error, the store is as it was."""

    @property
    def forest(self) -> Forest:
        """The forest that the rows are in, to store it; raises Unsupported where they are in none."""

    # ---------------------------------------------------------------- inserting

    def check_insert(self, times: Array) -> None:
        """Check that rows with these times, int64 (m,) in any order, can be inserted as one bulk.

        Raises:
            FailedPrecondition: the store takes rows in order only, and one is older than the newest.
        """

    def insert(self, time: int, values: Sequence[Any]) -> None:
        """Insert one row: `values` has a scalar per column after the time. Rows of equal time keep arrival order.

        Raises:
            FailedPrecondition: as `check_insert`.
        """

    def bulk_insert(self, times: Array, columns: Sequence[Array]) -> None:
        """Insert m >= 0 rows: int64 (m,) times, and an array (m,) per column after the time. They are handed over.

        Entries come in any order; the times of panes strictly increase.

        Raises:
            FailedPrecondition: as `check_insert`.
        """

    def replace(self, times: Array, columns: Sequence[Array]) -> None:
        """Give rows other values: int64 (m,) distinct times that there are, and an array (m,) per column after.

        Of several rows with one time the first is changed.
        """

    # ---------------------------------------------------------------- evicting

    def evict(self, count: int = 1) -> int:
        """Evict the `count` >= 0 oldest rows, or as many as there are; return how many."""

    def load_evicted(self, time: int) -> None:
        """Load what `bulk_evict(time)` reads, so that it cannot fail afterwards."""

    def bulk_evict(self, time: int) -> int:
        """Evict all rows with a time <= `time`; return how many entries they had."""

    def load_between(self, start: int, end: int) -> None:
        """Load what `evict_between(start, end)` reads, so that it cannot fail afterwards."""

    def evict_between(self, start: int, end: int) -> int:
        """Remove all rows with start <= time <= end; return how many entries they had."""

    def load_named(self, times: Array, column: int, values: Sequence[Any]) -> None:
        """Load what `remove` and `correct` of these rows read, so that they cannot fail afterwards."""

    def newest_steps(self, column: int, values: Sequence[Any], once: bool) -> Steps[Array]:
        """Find the time of the newest row with a value, for each of many, in steps; see `Finder.newest_steps`."""

    def remove(self, times: Array, column: int, values: Sequence[Any]) -> Array:
        """Remove single rows, each the first of its time that has some value in a column; see `Forest.remove`."""

    def correct(self, times: Array, column: int, values: Sequence[Any], columns: Sequence[Array]) -> Array:
        """Give single rows other values, each the first of its time that has some value; see `Forest.correct`."""

    def evict_while(self, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of oldest rows for which `holds`; see `Forest.evict_while`.

        Returns:
            how many entries left, and the time of the newest of them; None where none left.
        """

    def sweep(self, blocks: int = 256) -> bool:
        """Free some memory of evicted rows; return whether there is more."""

    def drop(self) -> None:
        """Evict all rows and release everything that is stored of them: the key is forgotten."""

    # ---------------------------------------------------------------- reading

    def query(self, part: Layout | None = None) -> list[Any]:
        """The answers over all entries, in the order of the layout's names."""

    def series(self, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        """Answer over many ranges of time at once; see `Forest.series`."""

    def neighbours(self, time: int) -> tuple[int | None, int | None]:
        """The newest time of a row that is <= `time`, and the oldest that is newer; None where there is none."""

    def columns(self) -> list[Array]:
        """All rows as columns (copies): times, then one array per column after."""

    # ---------------------------------------------------------------- other

    def relayout(self, layout: Layout) -> None:
        """Change the aggregates: the same columns and block size; new aggregates are computed from the entries."""

    def check_invariants(self, same: Same | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `same`: equality where None."""
