"""The columns of panes, and the aggregates that read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sash_engine.forest.layout import Layout
from sash_engine.monoids import Count, Monoid, Partial, Partials
from sash_engine.monoids.base import Array, FieldType, object_array
from sash_engine.monoids.pane import Pane

_ENTRIES = ""
"""The name of the aggregate that counts entries. The name of no other aggregate is empty."""

_KINDS: dict[np.dtype[Any], FieldType] = {
    np.dtype(np.float64): "float64",
    np.dtype(np.int64): "int64",
    np.dtype(np.bool_): "bool",
    np.dtype(object): "string",  # as a column: of objects
}


class PaneLayout(Layout):
    """The columns of panes, and the aggregates that read them.

    Column 0 is a pane's start, column 1 how many entries it folds, then come the parts of each distinct aggregate.
    Slot 0 is the number of entries; slot i + 1 is slot i of the layout of entries. `names` and `lower` leave slot 0
    out, `answers` begins with it.

    Args:
        entries: the layout that a window of the same spec without granularity has.
        like: as for `Layout`.
    """

    rows_are_entries: ClassVar[bool] = False
    joins: tuple[tuple[Callable[[Partial, Partial], Partial], int, int], ...]
    """For each slot but the first its combine, its first column and how many it has."""
    _counting: Layout | None

    def __init__(self, entries: Layout, *, like: PaneLayout | None = None) -> None:
        if like is not None:
            super().__init__({}, {}, like=like)
            self.joins, self._counting = like.joins, None
            return
        counted: tuple[Monoid, list[str]] = (Pane(Count()), ["entries"])
        fields: dict[str, FieldType] = {"entries": "int64"}
        panes = []
        for slot, monoid in enumerate(entries.monoids):
            columns = {f"{slot}.{part}": _KINDS[dtype] for part, dtype in enumerate(monoid.dtypes)}
            panes.append((Pane(monoid), list(columns)))
            fields |= columns
        aggregates = {_ENTRIES: counted} | {
            name: counted if slot < 0 else panes[slot]
            for name, slot in zip(entries.names, entries.answers, strict=True)
        }
        super().__init__(fields, aggregates, entries.block)
        self.names = self.names[1:]
        self._lowers = self._lowers[1:]
        self.joins = tuple(
            (monoid.combine, reads[0], len(reads))
            for monoid, reads in zip(entries.monoids, self.reads[1:], strict=True)
        )
        self._counting = None

    def _copy(self) -> PaneLayout:
        return PaneLayout(self, like=self)

    def renamed(self, of: Mapping[str, str]) -> PaneLayout:
        """The same panes with other answers: by new name, the name of an aggregate that there is."""
        other = self._copy()
        slots = dict(zip(self.names, self.answers[1:], strict=True))
        other._answer(tuple(of), [slots[name] for name in of.values()])
        other.answers = (0, *other.answers)
        return other

    def named(self, names: Sequence[str]) -> PaneLayout:
        return self.renamed(dict(zip(names, names, strict=True)))

    def counting(self) -> Layout:
        """The layout that only counts the entries of panes."""
        counting = self._counting
        if counting is None:
            counting = self._counting = self.only([0])
        return counting

    def inner(self, slot: int) -> Monoid:
        """The aggregate whose partials are in the columns of a slot."""
        pane = self.monoids[slot]
        assert isinstance(pane, Pane)
        return pane.inner

    def entries_of(self, rows: Array, partials: Sequence[Partials]) -> Array:
        """How many entries k folds of panes are over, int64 (k,): slot 0."""
        return partials[0][0]

    def counted(self, rows: Array, answers: list[Array]) -> tuple[Array, list[Array]]:
        """The entries and answers of k ranges of time: the first answer is the number of entries."""
        entries, *others = answers
        return entries.astype(np.int64), others

    def combine_columns(self, older: Sequence[Array], newer: Sequence[Array]) -> list[Array]:
        """Combine k panes with as many: columns after the time, of each."""
        out: list[Array] = []
        for monoid, reads in zip(self.monoids, self.reads, strict=True):
            out += monoid.combine_columns(tuple(older[i - 1] for i in reads), tuple(newer[i - 1] for i in reads))
        return out

    def join(self, columns: Sequence[Array], row: int, values: Sequence[Any]) -> None:
        """Combine one row in place with `values`, which is newer: a scalar per column after the time."""
        columns[1][row] += values[0]
        for combine, at, parts in self.joins:
            if parts == 1:
                column = columns[at]
                column[row] = combine(column.item(row), values[at - 1])
            else:
                mine = columns[at : at + parts]
                joined = combine(tuple([column.item(row) for column in mine]), tuple(values[at - 1 : at - 1 + parts]))
                for column, part in zip(mine, joined, strict=True):
                    column[row] = part

    def stored(self, columns: Sequence[Array]) -> list[Array]:
        """Columns of panes (the time first) as they are stored: objects as the bytes that `loaded` reads."""
        return self._coded(columns, lambda monoid: monoid.encode, lambda part: json.dumps(part).encode())

    def loaded(self, columns: Sequence[Array]) -> list[Array]:
        """The opposite of `stored`; raises InvalidArgument or ValueError for what is not."""
        return self._coded(columns, lambda monoid: monoid.decode, json.loads)

    def _coded(
        self,
        columns: Sequence[Array],
        whole: Callable[[Monoid], Callable[[Any], Any]],
        part: Callable[[Any], Any],
    ) -> list[Array]:
        """Code objects: by `whole` of the aggregate where they are its partials, by `part` where they are parts."""
        out = list(columns)
        for monoid, reads in zip(self.monoids, self.reads, strict=True):
            code = whole(monoid) if len(reads) == 1 else part
            for i in reads:
                if self.dtypes[i].hasobject:
                    out[i] = object_array(list(map(code, columns[i].tolist())))
        return out
