"""Writes that come in parts, as the commit of a staged batch: their rows are never all in one place.

    parts     [ rows ] [ rows ] [ rows ] …        each is sorted by time
    slices    [ 1,048,576 rows ] [ … ] …          by time, over all parts: time_slices.py
                └─ sorted by key, inserted, then the next one …  then the slide policy, once

A slice is newer than those before it, so each key is sent its entries in order. The window has the same entries as
after one bulk with all rows. One bulk would have the rows twice while it sorts them, and sort them in one long step.

Windows that must see all rows of a write together get one bulk: those with panes, sessions, rollups, cascades or an
algorithm, those that reject entries or keep one per time, and those that slide by ADWIN, which cuts between the blocks
that a bulk has made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Array, object_array
from sash_engine.steps import Steps
from sash_engine.windows.answers import WriteResult
from sash_engine.windows.batch import AnyBatch, Batch, Coded
from sash_engine.windows.joined import joined
from sash_engine.windows.keys import NEVER
from sash_engine.windows.time_slices import time_slices
from sash_engine.windows.writer import Writer

__all__ = ["PartWriter"]

_SLICE_ROWS = 1 << 20
_ROWS_OF_KEY = 512
"""Rows that a slice has on average for each key with a store of its own: each insert of such a key costs 10 us."""


class PartWriter(Writer):
    """A `Writer` that takes parts, too."""

    def bulk_insert_parts_steps(self, parts: list[AnyBatch]) -> Steps[WriteResult]:
        """Insert the entries of parts, in steps, as `bulk_insert_steps` inserts those of one bulk.

        Args:
            parts: bulks that `check` takes, in the order of arrival; a column of strings has one dictionary in all of
                them. Emptied as they are taken in.
        """
        rows = sum(len(part.times) for part in parts)
        for i, part in enumerate(parts):
            parts[i] = self._uniform(part)
        if rows > _SLICE_ROWS and self._takes_slices() and not any(part.of_partials for part in parts):
            some = yield from self._rows_of_slice(parts)
            if some < rows:
                return (yield from self._insert_slices(parts, some))
        whole = joined(_taken(parts), rows)
        if whole is None:
            return WriteResult()
        steps = self.bulk_insert_steps(whole)
        del whole
        return (yield from steps)

    def _uniform(self, part: AnyBatch) -> AnyBatch:
        """A part with the columns that all parts have."""
        if isinstance(part, Batch):
            uniform = part.columns.keys() == self._spec.columns.keys()
            return part if uniform else replace(part, columns=self._with_marks(part))
        counts = [name for name, (monoid, _) in self._spec.monoids().items() if monoid.counts_entries]
        return replace(part, partials={name: each for name, each in part.partials.items() if name not in counts})

    def _with_marks(self, part: Batch) -> dict[str, Array | Coded]:
        """The columns of a part, all with a mark of what is null that may be: a part without nulls may lack it."""
        there = np.ones(len(part.times), np.bool_)
        return {name: part.columns.get(name, there) for name in self._spec.columns}

    def _takes_slices(self) -> bool:
        """Whether the window may take some rows of a write before it has seen the others."""
        order = self._order
        decides = order.guards or order.in_order_only or order.one_per_time or order.rejects_late or self._check_store
        gathers = self._panes is not None or self._slide.sessions is not None or self._spec.slide.adaptive is not None
        return not (decides or gathers or self._rollups or self._cascades)

    def _rows_of_slice(self, parts: list[AnyBatch]) -> Steps[int]:
        """How many rows a slice should have: enough for every key that does not share pages with others."""
        if parts[0].keys is None:
            return _SLICE_ROWS
        names = parts[0].keys.dictionary
        sent = np.zeros(len(names), np.int64)
        for part in parts:
            assert part.keys is not None
            sent += np.bincount(part.keys.codes, minlength=len(names))
            yield
        return max(_SLICE_ROWS, _ROWS_OF_KEY * self._keys.count_large(self._keys.find_each(names), sent))

    def _insert_slices(self, parts: list[AnyBatch], slice_rows: int) -> Steps[WriteResult]:
        """Insert the rows in slices of about so many rows, and slide."""
        names, texts = self._dictionaries(parts[0])
        columns = yield from self._columns_of(parts)
        floor = self._slide.refused_through()
        self._check_new(names, columns, floor)
        result, numbers, lengths = WriteResult(), list[Array](), list[Array]()
        for some in time_slices(columns, slice_rows, names is not None):
            coded = None if names is None else Coded(names, some.pop(1))
            for i, table in texts.items():
                some[i] = table[some[i]]
            rows = yield from self._rows(coded, some)
            del coded, some
            self._order.drop_late(rows, floor)
            result.late += rows.late
            result.inserted += len(rows.columns[0])
            yield from self._create(rows)
            yield from self._insert_sorted(rows)
            numbers.append(rows.numbers)
            lengths.append(rows.lengths)
            del rows
            yield
        written, of = np.unique(np.concatenate(numbers), return_inverse=True)
        sent = np.bincount(of, np.concatenate(lengths), len(written)).astype(np.int64)
        self._touch(written)
        result.evicted = yield from self._slid(written, sent)
        return result

    def _dictionaries(self, part: AnyBatch) -> tuple[list[str] | None, dict[int, Array]]:
        """The keys that codes stand for, None where there are none; and of each column of strings its texts."""
        assert isinstance(part, Batch)
        columns = [part.columns[name] for name in self._spec.columns]
        texts = {i: object_array(each.dictionary) for i, each in enumerate(columns, 1) if isinstance(each, Coded)}
        return (None if part.keys is None else part.keys.dictionary), texts

    def _columns_of(self, parts: list[AnyBatch]) -> Steps[list[list[Array]]]:
        """Of each part the times, the codes of the keys, and the columns of the fields, sorted by time."""
        found = []
        for part in _taken(parts):
            assert isinstance(part, Batch)
            fields = [part.columns[name] for name in self._spec.columns]
            columns = [part.times, *([] if part.keys is None else [part.keys.codes])]
            columns += [each.codes if isinstance(each, Coded) else each for each in fields]
            if np.count_nonzero(part.times[1:] < part.times[:-1]):
                order = np.argsort(part.times, kind="stable")
                columns = [column[order] for column in columns]
            if len(part.times):
                found.append(columns)
            del part, fields, columns
            yield
        return found

    def _check_new(self, names: list[str] | None, parts: list[list[Array]], floor: int) -> None:
        """Check what `_rows` and `_create` would refuse, as the keys of all slices must be right before the first one.

        Raises:
            InvalidArgument: two codes stand for one key.
            ResourceExhausted: the keys of these rows are too many.
        """
        if names is None:
            return
        if len(set(names)) < len(names):
            raise InvalidArgument("the dictionary of column 'key' repeats a key", field="key")
        present = np.zeros(len(names), np.bool_)
        for times, codes, *_ in parts:
            present[codes if floor == NEVER else codes[times > floor]] = True
        self.check_room(int(np.count_nonzero(self._keys.find_each(names)[present] < 0)))


def _taken(parts: list[AnyBatch]) -> Iterator[AnyBatch]:
    """Yield the parts; each is let go before the next one is taken."""
    parts.reverse()
    while parts:
        yield parts.pop()
