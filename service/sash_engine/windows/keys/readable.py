"""Keys and slides as questions see them: those of a window, or of a view, which shows a part of a window.

Reader, GroupReader, …  ──▶ ReadableKeys ──▶ Keys                    all entries
                        └─▶ Now          └─▶ ViewKeys ──▶ Keys       the newest ones of each key (view_keys.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sash_engine.forest import Layout
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.keys.allocator import Numbers
from sash_engine.windows.keys.store import ReadableForest, ReadableStore
from sash_engine.windows.keys.totals import KeyTotals


class ReadableKeys(Protocol):
    """The keys of a window, and their entries; see `Keys`. `some`: the aggregates that are asked for; None: all."""

    @property
    def layout(self) -> Layout:
        """The columns of all rows, and the aggregates."""

    @property
    def now(self) -> Numbers:
        """By number, the newest time that was ever inserted."""

    @property
    def now_of(self) -> Sequence[int]:
        """The same memory for access to one."""

    @property
    def filled(self) -> int:
        """How many keys have entries."""

    def __len__(self) -> int:
        """How many keys are remembered."""

    def find(self, name: str, /) -> int | None:
        """The number of a key; None where there is no such key."""

    def find_each(self, names: Sequence[str]) -> Numbers:
        """The numbers of keys; -1 where there is no such key."""

    @property
    def numbered(self) -> int:
        """All numbers of keys are below this one."""

    def name(self, number: int) -> str:
        """The name of a key."""

    def names_of(self, numbers: Iterable[int]) -> list[str | None]:
        """The names of some keys; None for a number that no key has."""

    def chunks(self, size: int) -> Iterator[tuple[list[str], Numbers]]:
        """All names and their numbers, `size` at a time."""

    def store(self, number: int) -> ReadableStore:
        """The entries of a key."""

    def any_own(self, numbers: Numbers) -> bool:
        """Whether one of some keys has a store of its own."""

    def with_own_stores(self, numbers: Numbers) -> Iterator[tuple[int, ReadableForest]]:
        """Of some keys those that have a store of their own."""

    def small(self, numbers: Numbers) -> tuple[Numbers, Numbers, list[Array]]:
        """The rows of those of some keys that share pages."""

    def entries(self, number: int) -> int:
        """How many entries a key has."""

    def query(self, number: int, some: Layout | None = None) -> tuple[int, list[Any]]:
        """How many entries a key has, and the answers over them."""

    def span(self, number: int) -> tuple[int | None, int | None]:
        """Times of a key's oldest and newest row."""

    def range_query(self, number: int, start: int, end: int, some: Layout | None = None) -> tuple[int, list[Any]]:
        """The entries of a key over a range of time, and the answers."""

    def totals(self, number: int, some: Layout | None = None) -> list[Partial]:
        """The partials over all entries of a key."""

    def range_totals(self, number: int, start: int, end: int, some: Layout | None = None) -> tuple[int, list[Partial]]:
        """The entries of a key over a range of time, and their partials."""

    def newest_each(self, numbers: Numbers) -> Numbers:
        """Times of the newest rows; `NEVER` where a key has none."""

    def oldest_each(self, numbers: Numbers) -> Numbers:
        """Times of the oldest rows; the greatest int64 where a key has none."""

    def filled_each(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which keys have entries."""

    def whole_each(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which keys count with all of their rows."""

    def shared_rows(self, numbers: Numbers) -> Numbers:
        """How many rows keys have in shared pages."""

    def layout_of(self, slots: Sequence[int]) -> Layout:
        """A layout of some aggregates."""

    def kept_totals(self, slots: Sequence[int]) -> KeyTotals | None:
        """Totals of keys in shared pages that are kept of some aggregates."""

    def rows_each(
        self, numbers: Numbers, counts: Numbers, wanted: Sequence[int], start: Numbers | None, end: Numbers | None
    ) -> tuple[Numbers, list[Array]]:
        """The rows of keys in shared pages."""

    def answers_steps(
        self, numbers: Numbers, lengths: Numbers, starts: Array, stops: Array, some: Layout | None = None
    ) -> Steps[tuple[Array, list[Array]]]:
        """Answers over many ranges of time of many keys, each as of `range_query`."""


class Now(Protocol):
    """The part of a `Slide` that questions need: now, and the entries that leave while nothing is written."""

    @property
    def wall(self) -> bool:
        """Whether now is wall time."""

    @property
    def until(self) -> bool:
        """Whether now is `punctuated`."""

    @property
    def punctuated(self) -> int:
        """Entries of this time and older are final."""

    def now(self) -> int:
        """Wall time in ticks."""

    def late_through(self) -> int:
        """Entries of this time and older are late for every key, by wall time."""

    def gone_through(self) -> int:
        """Entries of this time and older have left every key."""

    def by_age(self, number: int) -> None:
        """Evict the entries of one key that are too old."""

    def by_age_each(self, numbers: Numbers) -> None:
        """As `by_age`, of many keys."""
