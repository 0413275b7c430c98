"""The layout of all forests of one window: columns, aggregates and the block size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import NUMPY_TYPES, Array, FieldType

BLOCK = 1024
"""Entries in a sealed block. At 1,024 a NumPy reduction's fixed cost (about 1 µs) is 1 ns an entry, and a splice
still moves only 8 KiB a column."""


_DISTANCES = (np.uint8, np.uint16, np.uint32, np.int64)
"""Types of the distances of values from the least of them, the narrowest first."""

_MANY = 8
"""Slots that a fold of some others leaves out. A fold of all entries is kept from question to question, for all slots
together, at 1 to 2 µs a slot after a write. To fold a part anew takes some 15 µs."""


class Layout:
    """The columns and aggregates of a window, resolved once.

    Columns are numbered: 0 is the time, i the i-th field. Aggregates that are written twice (or that are a
    count, which every node has anyway) are computed once: `slots` are the distinct ones without counts.

    Args:
        fields: name -> type, in order.
        aggregates: name -> (monoid, the columns it reads by name, "time" for the time).
        block: entries in a sealed block, >= 1.
        hidden: aggregates that have partials and no answers.
        near: fields of int64 whose values are near each other in a block: they are stored as distances from the least.
        like: a layout to be the same as; then the other arguments say nothing.
    """

    rows_are_entries: ClassVar[bool] = True
    """Whether each row is an entry; else it is a pane, which folds some; see `PaneLayout`."""
    names: tuple[str, ...]
    answers: tuple[int, ...]
    """For each name its slot, or -1 for the count of entries."""
    hidden: tuple[int, ...]
    """For each hidden aggregate its slot."""
    _lowers: tuple[tuple[int, Callable[[Partial], Any] | None], ...]

    def __init__(
        self,
        fields: Mapping[str, FieldType],
        aggregates: Mapping[str, tuple[Monoid, Sequence[str]]],
        block: int = BLOCK,
        hidden: Sequence[tuple[Monoid, Sequence[str]]] = (),
        near: Sequence[str] = (),
        *,
        like: Layout | None = None,
    ) -> None:
        if like is not None:
            self._take(like)
            return
        assert block >= 1
        number = {"time": 0} | {name: i for i, name in enumerate(fields, 1)}
        self.block = block
        self.dtypes: tuple[np.dtype[Any], ...] = (
            np.dtype(np.int64),
            *(NUMPY_TYPES[kind] for kind in fields.values()),
        )
        slots: dict[Any, int] = {}
        monoids: list[Monoid] = []
        reads: list[tuple[int, ...]] = []
        answers: list[int] = []
        for monoid, columns in (*aggregates.values(), *hidden):
            if monoid.counts_entries:
                answers.append(-1)
                continue
            numbers = tuple(number[column] for column in columns)
            key = (type(monoid), numbers, _parameters(monoid))
            if key not in slots:
                slots[key] = len(monoids)
                monoids.append(monoid)
                reads.append(numbers)
            answers.append(slots[key])
        self.keys: tuple[Any, ...] = tuple(slots)
        """For each slot what tells its aggregate from others."""
        self.slots: Sequence[int] = range(len(monoids))
        """For each aggregate its slot in the forests."""
        self._fold(monoids, reads)
        self._answer(tuple(aggregates), answers[: len(aggregates)])
        self.hidden = tuple(answers[len(aggregates) :])
        self._number = number
        self._near = tuple([number[name] for name in near])
        self.is_small_part = False
        """Whether it is made of few slots of a layout whose others cost much to fold."""

    def _fold(self, monoids: Sequence[Monoid], reads: Sequence[tuple[int, ...]]) -> None:
        """Fold these aggregates, each of which reads some columns."""
        self.monoids: tuple[Monoid, ...] = tuple(monoids)
        self.reads: tuple[tuple[int, ...], ...] = tuple(reads)
        self.identities: tuple[Partial, ...] = tuple([monoid.identity for monoid in monoids])
        self.commutative = all(monoid.commutative for monoid in monoids)
        self.used = tuple({i for read in reads for i in read})
        """The columns that some aggregate reads."""
        self.first = _first_with_same_partials(monoids, reads)
        """For each slot the first one with the same partials."""
        # The hot paths run these in plain loops: on CPython 3.11 a comprehension costs 0.3 µs, and `zip(strict=True)`
        # in one 1.3 µs, as much as the work itself.
        picks = [(read[0], itemgetter(*read) if len(read) > 1 else None) for read in reads]
        owns = [first == slot for slot, first in enumerate(self.first)]
        each = list(zip(monoids, picks, owns, strict=True))
        self._combines = tuple([m.combine if own else None for m, _, own in each])
        self._lifts = tuple([(m.lift, m.combine if own else None, *pick) for m, pick, own in each])
        self._reduces = tuple([(m.reduce if own else None, m.reducer(), *pick) for m, pick, own in each])

    def _copy(self) -> Layout:
        """The same layout once more, to be given other slots or answers: `copy.copy` cannot copy compiled classes."""
        return Layout({}, {}, like=self)

    def _take(self, other: Layout) -> None:
        """Have all that another layout has."""
        self.block, self.dtypes, self._number, self._near = other.block, other.dtypes, other._number, other._near
        self.slots, self.keys, self.monoids, self.reads = other.slots, other.keys, other.monoids, other.reads
        self.identities, self.commutative, self.used = other.identities, other.commutative, other.used
        self.first, self._combines, self._lifts = other.first, other._combines, other._lifts
        self._reduces, self.is_small_part = other._reduces, other.is_small_part
        self.names, self.answers, self.hidden, self._lowers = other.names, other.answers, other.hidden, other._lowers

    def answering(self, aggregates: Mapping[str, tuple[Monoid, Sequence[str]]]) -> Layout:
        """A layout of the same columns and slots with other answers: those of aggregates that have slots here."""
        other, answers = self._copy(), list[int]()
        for monoid, columns in aggregates.values():
            numbers = tuple([self._number[column] for column in columns])
            key = (type(monoid), numbers, _parameters(monoid))
            answers.append(-1 if monoid.counts_entries else self.keys.index(key))
        other._answer(tuple(aggregates), answers)
        return other

    def _answer(self, names: tuple[str, ...], answers: Sequence[int]) -> None:
        """Give these answers: for each name a slot, or -1."""
        self.names, self.answers, self.hidden = names, tuple(answers), ()
        self._lowers = tuple([(slot, None if slot < 0 else self.monoids[slot].lower) for slot in answers])

    def lean(self) -> Layout:
        """A layout of the slots that have answers, to fold these alone; this one if all have."""
        slots = sorted({slot for slot in self.answers if slot >= 0})
        if len(slots) == len(self.monoids):
            return self
        other, at = self.only(slots), {-1: -1} | {slot: i for i, slot in enumerate(slots)}
        more = len(self.answers) - len(self.names)
        other._answer(self.names, [at[slot] for slot in self.answers[more:]])
        other.answers = (*[at[slot] for slot in self.answers[:more]], *other.answers)
        return other

    @property
    def answering_monoids(self) -> list[Monoid]:
        """The aggregates that have answers: not the hidden ones."""
        return [self.monoids[slot] for slot in self.answers if slot >= 0]

    def named(self, names: Sequence[str]) -> Layout:
        """A layout of the same columns and slots that answers some of the names."""
        other, slots = self._copy(), dict(zip(self.names, self.answers, strict=True))
        other._answer(tuple(names), [slots[name] for name in names])
        return other

    def only(self, slots: Sequence[int]) -> Layout:
        """A layout of some slots, in this order, to fold these alone: the same columns, and no answers."""
        narrow = self._copy()
        narrow.keys = tuple([self.keys[slot] for slot in slots])
        narrow.slots = [self.slots[slot] for slot in slots]
        narrow._fold([self.monoids[slot] for slot in slots], [self.reads[slot] for slot in slots])
        narrow.answers = narrow._lowers = ()
        others = [monoid for slot, monoid in enumerate(self.monoids) if slot not in slots]
        narrow.is_small_part = len(others) > _MANY or any(monoid.external for monoid in others)
        return narrow

    def reduce(self, columns: Sequence[Array]) -> list[Partial]:
        """Fold n >= 0 rows, one partial per slot."""
        return self.reduce_rows(columns, 0, len(columns[0]))

    def reduce_rows(self, columns: Sequence[Array], start: int, stop: int) -> list[Partial]:
        """Fold rows start..stop, one partial per slot."""
        out: list[Partial] = []
        rows: list[Array] | None = None
        for slot, (reduce, reducer, single, several) in enumerate(self._reduces):
            if reduce is None:
                out.append(out[self.first[slot]])
            elif reducer is not None:
                out.append(reducer(columns[single], start, stop))
            else:
                if rows is None:
                    rows = list(columns)
                    for i in self.used:
                        rows[i] = columns[i][start:stop]
                out.append(reduce((rows[single],) if several is None else several(rows)))
        return out

    def reduce_segments(self, columns: Sequence[Array], starts: Array) -> list[Partials]:
        """Fold each of k segments of n >= 1 rows: per slot, k partials; see `Monoid.reduce_segments`."""
        out: list[Partials] = []
        for slot, (monoid, reads) in enumerate(zip(self.monoids, self.reads, strict=True)):
            first = self.first[slot]
            out.append(out[first] if first < slot else monoid.reduce_segments([columns[i] for i in reads], starts))
        return out

    def scan_suffix(self, columns: Sequence[Array], start: int, stop: int) -> list[tuple[Partial, ...]]:
        """For each row i of start..stop the fold of rows i..stop, one partial per slot."""
        scans = [
            monoid.scan_suffix([columns[i][start:stop] for i in reads])
            for monoid, reads in zip(self.monoids, self.reads, strict=True)
        ]
        return list(zip(*scans, strict=True)) if scans else [()] * (stop - start)

    def extend(self, partials: list[Partial], columns: Sequence[Array], start: int, stop: int) -> None:
        """Combine rows start..stop of the columns into `partials`, one by one and in place."""
        for slot, (lift, combine, single, several) in enumerate(self._lifts):
            if combine is None:
                partials[slot] = partials[self.first[slot]]
                continue
            partial, column = partials[slot], columns[single]
            for row in range(start, stop):
                value = column.item(row) if several is None else tuple([c.item(row) for c in several(columns)])
                partial = combine(partial, lift(value))
            partials[slot] = partial

    def combine(self, older: Sequence[Partial], newer: Sequence[Partial]) -> list[Partial]:
        """Combine slot by slot."""
        out: list[Partial] = []
        for slot, combine in enumerate(self._combines):
            out.append(out[self.first[slot]] if combine is None else combine(older[slot], newer[slot]))
        return out

    def entries_of(self, rows: Array, partials: Sequence[Partials]) -> Array:
        """How many entries k folds are over, int64 (k,): here, one for each row.

        Args:
            rows: int64 (k,), how many rows each fold is over.
            partials: per slot the k partials.
        """
        return rows

    def counted(self, rows: Array, answers: list[Array]) -> tuple[Array, list[Array]]:
        """The entries and answers of k ranges of time, from how many rows each has and the answers of all slots."""
        return rows, answers

    def stored(self, columns: Sequence[Array]) -> list[Array]:
        """Columns (the time first) as they are stored: numbers, bools, strings or bytes.

        The least value of each column of distances stands behind all columns.
        """
        stored = list(columns)
        for i in self._near:
            least = columns[i].min(keepdims=True) if len(columns[i]) else columns[i]
            distances = columns[i] - least
            most = int(distances.max(initial=0))
            stored[i] = distances.astype(next(dtype for dtype in _DISTANCES if most <= np.iinfo(dtype).max))
            stored.append(least)
        return stored

    def loaded(self, columns: Sequence[Array]) -> list[Array]:
        """The opposite of `stored`."""
        loaded = list(columns)
        for i in reversed(self._near):
            least = loaded.pop()
            loaded[i] = loaded[i].astype(np.int64) + least
        return loaded

    def lower(self, entries: int, partials: Sequence[Partial]) -> list[Any]:
        """The answers, in the order of `names`."""
        out = []
        for slot, lower in self._lowers:
            out.append(entries if lower is None else lower(partials[slot]))
        return out


def _first_with_same_partials(monoids: Sequence[Monoid], reads: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """For each slot the first one whose partials are the same; see `Monoid.partials_as`."""
    known: dict[Any, int] = {}
    out = []
    for slot, (monoid, numbers) in enumerate(zip(monoids, reads, strict=True)):
        key = (monoid.partials_as or slot, numbers, _parameters(monoid))
        out.append(known.setdefault(key, slot))
    return tuple(out)


def _parameters(monoid: Monoid) -> str:
    return repr(sorted(vars(monoid).items(), key=lambda item: item[0]))
