"""A chunk: rows of many keys that arrived together, as few values in a state store.

    rows        | a a a a a b b c c c c c c c c |       sorted by (key, time, arrival)
    segments    [====a====][=b=][=====c====][=c=]       at most SEGMENT rows of one key: times, count, partials
    values      0: the segments      1: [ page of rows ]   2: [ page of rows ]
                a small chunk is one value: its segments and all of its rows

Pages are read when a window's edge lies inside one of their segments. Pages begin with segments.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sash_engine.monoids import Partials
from sash_engine.monoids.base import Array
from sash_engine.windows.keys.ragged import ragged
from sash_spark.sliding.fold import Segments
from sash_spark.sliding.plan import Plan, columns_of, record_batch_of

SEGMENT = 1024
"""Rows of a segment at most: as many as a block of the engine has."""

INLINE = 4096
"""A chunk of so many rows is one value: a call to the state store costs as much as 20,000 rows."""

_PAGE = 32_768
"""About so many rows have a page: half a megabyte with one number besides the time."""

_SKETCHED = 256
"""Large partials (sketches, collections) are stored for segments of so many rows. Those of fewer rows are folded again
from the rows, which are smaller."""

_LENGTH = struct.Struct("<q")


class Chunk:
    """Rows sorted by (key, time, arrival), with their segments. The columns may be in the store only.

    Attributes:
        number: under which it is stored; -1 before it is.
        first, last: the times of the oldest and of the newest row.
        rows: how many there are.
        keys: the key of each segment, in Arrow.
    """

    def __init__(self, plan: Plan, number: int, first: int, last: int, rows: int) -> None:
        self._plan, self._layout = plan, plan.layout
        self.number, self.first, self.last, self.rows = number, first, last, rows
        self.keys: Any = None
        self._segments: Segments
        self._columns: list[Array] | None = None
        self._pages: dict[int, list[Array]] = {}

    @classmethod
    def of(cls, plan: Plan, keys: Any, columns: Sequence[Array]) -> Chunk:
        """Make one of n >= 1 rows in order of arrival.

        Args:
            keys: (n,) in Arrow.
            columns: times, and the fields, (n,) each.
        """
        encoded = keys.dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy()
        columns, codes = _ordered(columns, codes, len(encoded.dictionary))
        times, rows = columns[0], len(codes)
        chunk = cls(plan, -1, int(times.min()), int(times.max()), rows)
        chunk._columns = list(columns)
        new = np.ones(rows, np.bool_)
        new[1:] = codes[1:] != codes[:-1]
        runs = np.flatnonzero(new)
        if rows > SEGMENT:
            within = np.arange(rows) - np.repeat(runs, np.diff(runs, append=rows))
            starts = np.flatnonzero(within % SEGMENT == 0)
        else:
            starts = runs
        stops = np.append(starts[1:], rows)
        chunk.keys = encoded.dictionary.take(pa.array(codes[starts]))
        chunk._describe(times[starts], times[stops - 1], stops - starts, None)
        return chunk

    def _describe(self, first: Array, last: Array, count: Array, partials: list[Partials] | None) -> None:
        nothing = np.zeros(len(count), np.int64)
        known = np.zeros(len(count), np.bool_)
        if partials is None:
            partials = [tuple([np.empty(len(count), d) for d in m.dtypes]) for m in self._layout.monoids]
        else:
            known = self._summarised(count)
        self._segments = Segments(nothing, first, last, count, nothing, known, partials)
        self._starts = np.cumsum(count) - count
        self._page_of = self._starts // _PAGE

    def _summarised(self, count: Array) -> Array:
        """Which segments have stored partials."""
        fixed = all(monoid.fixed for monoid in self._layout.monoids)
        return count >= (1 if fixed else _SKETCHED)

    # ---------------------------------------------------------------- reading

    @property
    def is_inline(self) -> bool:
        """Whether it is one value."""
        return self.rows <= INLINE

    @property
    def counts(self) -> Array:
        """How many rows each segment has, int64."""
        return self._segments.count

    def segments(self, keys: Array, arrival: int) -> Segments:
        """Return its segments, with other numbers for keys, and of the chunk."""
        own = self._segments
        chunk = np.full(len(keys), arrival)
        return Segments(keys, own.first, own.last, own.count, chunk, own.known, own.partials)

    def read(self, store: Callable[[int, int], bytes], wanted: Array) -> list[Array]:
        """Return the rows of some segments, one after the other; `store` has the values by number and part."""
        counts = self._segments.count[wanted]
        if self._columns is not None:
            if len(wanted) == len(self._starts) and (np.diff(wanted) == 1).all():
                return self._columns
            rows = ragged(self._starts[wanted], counts)
            return [column[rows] for column in self._columns]
        out = [np.empty(int(counts.sum()), dtype) for dtype in self._layout.dtypes]
        places = np.cumsum(counts) - counts
        pages = self._page_of[wanted]
        for page in np.unique(pages).tolist():
            some = np.flatnonzero(pages == page)
            begin = int(self._starts[self._page_of.searchsorted(page)])
            source = ragged(self._starts[wanted[some]] - begin, counts[some])
            into = ragged(places[some], counts[some])
            for column, values in zip(out, self._page(store, page), strict=True):
                column[into] = values[source]
        return out

    def columns(self, store: Callable[[int, int], bytes]) -> list[Array]:
        """Return all rows."""
        return self.read(store, np.arange(len(self._starts)))

    def row_keys(self) -> Any:
        """The key of each row."""
        return self.keys.take(pa.array(np.repeat(np.arange(len(self._starts)), self._segments.count)))

    def _page(self, store: Callable[[int, int], bytes], page: int) -> list[Array]:
        found = self._pages.get(page)
        if found is None:
            batch = pa.ipc.read_record_batch(pa.py_buffer(store(self.number, page + 1)), self._plan.entries_schema)
            found = self._pages[page] = columns_of(self._plan, batch)
        return found

    # ---------------------------------------------------------------- to and from the store

    @property
    def parts(self) -> list[int]:
        """The parts that it has in the store."""
        return [0] if self.is_inline else [0, *(int(page) + 1 for page in np.unique(self._page_of))]

    def values(self) -> dict[int, bytes]:
        """Its parts as bytes; all of its rows are at hand."""
        columns = self._columns
        assert columns is not None
        if self.is_inline:
            summary = self._summary(None)
            return {0: _LENGTH.pack(len(summary)) + summary + self._encoded(columns, 0, self.rows)}
        if not self._segments.known.any():
            self._segments.known = self._summarised(self._segments.count)
            self._segments.partials = self._folded(columns)
        summary = self._summary(self._segments.partials)
        out = {0: _LENGTH.pack(len(summary)) + summary}
        begins = np.unique(self._page_of, return_index=True)
        stops = [*self._starts[begins[1][1:]].tolist(), self.rows]
        for page, at, stop in zip(begins[0].tolist(), self._starts[begins[1]].tolist(), stops, strict=True):
            out[page + 1] = self._encoded(columns, at, stop)
        return out

    def load(self, data: bytes) -> None:
        """Read the segments from part 0."""
        buffer = pa.py_buffer(data)
        (length,) = _LENGTH.unpack_from(data)
        schema = self._summary_schema(not self.is_inline)
        batch = pa.ipc.read_record_batch(buffer.slice(_LENGTH.size, length), schema)
        self.keys = batch.column(0)
        first, last, count = (column.to_numpy() for column in batch.columns[1:4])
        partials = None if self.is_inline else self._decoded(batch.columns[4:])
        self._describe(first, last, count.astype(np.int64), partials)
        if self.is_inline:
            rows = pa.ipc.read_record_batch(buffer.slice(_LENGTH.size + length), self._plan.entries_schema)
            self._columns = columns_of(self._plan, rows)

    def _encoded(self, columns: Sequence[Array], at: int, stop: int) -> bytes:
        batch = record_batch_of(self._plan, [column[at:stop] for column in columns])
        return batch.serialize().to_pybytes()  # type: ignore[no-any-return]

    def _folded(self, columns: Sequence[Array]) -> list[Partials]:
        """Fold each summarised segment; the others have any value."""
        known = np.flatnonzero(self._segments.known)
        out: list[Partials] = []
        for monoid, reads in zip(self._layout.monoids, self._layout.reads, strict=True):
            values = [columns[i] for i in reads]
            if monoid.fixed:
                out.append(monoid.reduce_segments(values, self._starts))
                continue
            spans = [(int(self._starts[i]), int(self._starts[i] + self._segments.count[i])) for i in known.tolist()]
            some = monoid.pack([monoid.reduce([column[a:b] for column in values]) for a, b in spans])
            full = tuple([np.empty(len(self._starts), dtype) for dtype in monoid.dtypes])
            for column, folded in zip(full, some, strict=True):
                column[known] = folded
            out.append(full)
        return out

    def _summary(self, partials: list[Partials] | None) -> bytes:
        own = self._segments
        arrays = [self.keys, pa.array(own.first), pa.array(own.last), pa.array(own.count.astype(np.int32))]
        for monoid, columns in zip(self._layout.monoids, partials or [], strict=partials is not None):
            if monoid.fixed:
                arrays += [pa.array(column) for column in columns]
            else:
                unpacked = zip(monoid.unpack(columns), own.known.tolist(), strict=True)
                arrays.append(pa.array([monoid.encode(one) if known else None for one, known in unpacked], pa.binary()))
        schema = self._summary_schema(partials is not None)
        return pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()  # type: ignore[no-any-return]

    def _summary_schema(self, with_partials: bool) -> Any:
        fields = [("key", self._plan.key_arrow_type), ("first", pa.int64()), ("last", pa.int64())]
        fields.append(("count", pa.int32()))
        for slot, monoid in enumerate(self._layout.monoids if with_partials else ()):
            if monoid.fixed:
                fields += [(f"{slot}.{i}", pa.from_numpy_dtype(dtype)) for i, dtype in enumerate(monoid.dtypes)]
            else:
                fields.append((f"{slot}", pa.binary()))
        return pa.schema(fields)

    def _decoded(self, arrays: Sequence[Any]) -> list[Partials]:
        out: list[Partials] = []
        at = 0
        for monoid in self._layout.monoids:
            if monoid.fixed:
                width = len(monoid.dtypes)
                out.append(tuple([column.to_numpy(zero_copy_only=False) for column in arrays[at : at + width]]))
                at += width
                continue
            encoded = arrays[at].to_pylist()
            known = [i for i, one in enumerate(encoded) if one is not None]
            some = monoid.pack([monoid.decode(encoded[i]) for i in known])
            full = tuple([np.empty(len(encoded), dtype) for dtype in monoid.dtypes])
            for column, decoded in zip(full, some, strict=True):
                column[known] = decoded
            out.append(full)
            at += 1
        return out


def _ordered(columns: Sequence[Array], codes: Array, keys: int) -> tuple[list[Array], Array]:
    """Sort rows by key, then time, then arrival."""
    order = None
    times = columns[0]
    if np.count_nonzero(times[1:] < times[:-1]):
        order = np.argsort(times, kind="stable")
        codes = codes[order]
    if keys > 1:
        # NumPy sorts numbers of 16 bits by radix, in a tenth of the time.
        by_key = np.argsort(codes.astype(np.uint16) if keys <= 65_536 else codes, kind="stable")
        codes = codes[by_key]
        order = by_key if order is None else order[by_key]
    return list(columns) if order is None else [column[order] for column in columns], codes
