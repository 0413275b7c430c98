"""What all forests of one window share: columns, aggregates and the block size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sash.monoids import Count, Monoid, Partial
from sash.monoids.base import NUMPY_TYPES, Array, FieldType, Values

__all__ = ["BLOCK", "Layout"]

BLOCK = 1024
"""Entries in a sealed block. At 1,024 a NumPy reduction's fixed cost (about 1 µs) is 1 ns an entry, and a splice
still moves only 8 KiB a column."""


class Layout:
    """The columns and aggregates of a window, resolved once.

    Columns are numbered: 0 is the time, i the i-th field. Aggregates that are written twice (or that are a
    count, which every node has anyway) are computed once: `slots` are the distinct ones without counts.

    Args:
        fields: name -> type, in order.
        aggregates: name -> (monoid, the columns it reads by name, "time" for the time).
        block: entries in a sealed block, >= 1.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldType],
        aggregates: Mapping[str, tuple[Monoid, Sequence[str]]],
        block: int = BLOCK,
    ) -> None:
        assert block >= 1
        number = {"time": 0} | {name: i for i, name in enumerate(fields, 1)}
        self.block = block
        self.dtypes: tuple[np.dtype[Any], ...] = (
            np.dtype(np.int64),
            *(NUMPY_TYPES[kind] for kind in fields.values()),
        )
        self.names = tuple(aggregates)
        slots: dict[Any, int] = {}
        monoids: list[Monoid] = []
        reads: list[tuple[int, ...]] = []
        answers: list[int] = []
        for monoid, columns in aggregates.values():
            if type(monoid) is Count:
                answers.append(-1)
                continue
            numbers = tuple(number[column] for column in columns)
            key = (type(monoid), numbers, repr(sorted(vars(monoid).items(), key=lambda item: item[0])))
            if key not in slots:
                slots[key] = len(monoids)
                monoids.append(monoid)
                reads.append(numbers)
            answers.append(slots[key])
        self.monoids: tuple[Monoid, ...] = tuple(monoids)
        self.reads: tuple[tuple[int, ...], ...] = tuple(reads)
        self.answers: tuple[int, ...] = tuple(answers)
        """For each aggregate its slot, or -1 for the count of entries."""
        # The hot paths run these plain loops: on CPython 3.11 `zip(strict=True)` in a comprehension costs 1.3 µs,
        # as much as the work itself.
        self._lifts = tuple((monoid.lift, read, len(read) == 1 and read[0]) for monoid, read in zip(monoids, reads))
        self._combines = tuple(monoid.combine for monoid in monoids)
        self._lowers = tuple((slot, None if slot < 0 else monoids[slot].lower) for slot in answers)
        self._reduces = tuple((monoid.reduce, read) for monoid, read in zip(monoids, reads))
        self.identities: tuple[Partial, ...] = tuple(monoid.identity for monoid in monoids)
        self.commutative = all(monoid.commutative for monoid in monoids)

    def values(self, slot: int, columns: Sequence[Array], start: int, stop: int) -> Values:
        """The rows start..stop of the columns that aggregate `slot` reads."""
        return [columns[i][start:stop] for i in self.reads[slot]]

    def reduce(self, columns: Sequence[Array], start: int, stop: int) -> list[Partial]:
        """Fold rows start..stop, one partial per slot."""
        if start >= stop:
            return list(self.identities)
        out = []
        for reduce, reads in self._reduces:
            out.append(reduce([columns[i][start:stop] for i in reads]))
        return out

    def extend(self, partials: list[Partial], columns: Sequence[Array], row: int) -> None:
        """Combine row `row` of the columns into `partials`, in place."""
        slot = 0
        for lift, reads, single in self._lifts:
            value = columns[single].item(row) if single is not False else tuple(columns[i].item(row) for i in reads)
            partials[slot] = self._combines[slot](partials[slot], lift(value))
            slot += 1

    def combine(self, older: Sequence[Partial], newer: Sequence[Partial]) -> list[Partial]:
        """Combine slot by slot."""
        out, slot = [], 0
        for combine in self._combines:
            out.append(combine(older[slot], newer[slot]))
            slot += 1
        return out

    def lower(self, entries: int, partials: Sequence[Partial]) -> list[Any]:
        """The answers, in the order of `names`."""
        out = []
        for slot, lower in self._lowers:
            out.append(entries if lower is None else lower(partials[slot]))
        return out
