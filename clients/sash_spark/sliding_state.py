"""The state of one key of a sliding aggregation: entries in blocks, which are read only when they are needed.

    head        version, digest | mark, timer | directory: id, first, last, count, partials | the open block
    blocks      id -> columns                     [ ]  [ ]  [ ]  [ ]  [..       (in `head`)
    sketches    id -> partials that are large      o    o    o    o

    a window         |---------------------|      the blocks at its ends are read and cut; of the others,
                   [ /]  [ ]  [ ]  [ ] [/ ]       the partials are enough

A micro-batch reads the head, the blocks at the ends of the windows that it answers, and the blocks of late rows. It
writes the head and the blocks that changed. A key with less than one block of entries is only a head: one read, one
write. There is no forest above the blocks, because it would live for one micro-batch only. Runs of partials are folded
by doubling, as in a series (`sash_engine.forest.series`).

Cost for m newcomers and k windows over n entries in blocks of B: O(m + B) in order, and per window O(log n) combines in
vectorised passes, after O(n / B) for the directory.
Requires: associativity.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sash_engine.forest.block import merge
from sash_engine.forest.series import fold_runs
from sash_engine.monoids import Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import finished
from sash_spark.sliding_plan import NEVER, Plan, columns_of, record_batch_of

__all__ = ["VERSION", "KeyState", "Store"]

VERSION = 1
"""Version of the state's layout; it changes when an older program would misread the state."""

_HEAD = struct.Struct("<4sH8sqqqII")  # magic, version, digest, mark, timer, next id, lengths of directory and tail
_MAGIC = b"sash"
_BULK = 8
"""A bulk's full blocks are stored in groups of this many: a call to the state store costs as much as 20,000 rows."""

_SMALL = 64
"""Encoded partials of at most so many bytes are kept in the directory, which is written with every micro-batch; larger
ones (sketches, sets) apart, and written once."""


class Store(Protocol):
    """Stores the values of one key. `get` returns what was put last, until it is removed."""

    def head(self) -> bytes | None: ...

    def put_head(self, value: bytes) -> None: ...

    def clear(self) -> None:
        """Delete everything."""

    def block(self, number: int) -> bytes | None: ...

    def put_block(self, number: int, value: bytes) -> None: ...

    def sketches(self, number: int) -> bytes | None: ...

    def put_sketches(self, number: int, value: bytes) -> None: ...

    def remove(self, number: int) -> None:
        """Delete the block and the sketches of that number, if there are any."""


class _Block:
    """Entries sorted by (time, arrival); `columns` or `partials` may be None, not both unless both are stored."""

    __slots__ = ("columns", "count", "dirty", "first", "last", "number", "partials")

    def __init__(self, first: int, last: int, count: int) -> None:
        self.first, self.last, self.count = first, last, count
        self.number = -1
        """Number under which it is stored; -1 if it is not stored."""
        self.dirty = False
        self.columns: list[Array] | None = None
        self.partials: list[Partial] | None = None

    @classmethod
    def of(cls, columns: list[Array]) -> _Block:
        block = cls(int(columns[0][0]), int(columns[0][-1]), len(columns[0]))
        block.columns = columns
        block.dirty = True
        return block


class KeyState:
    """The entries of one key that some window may still need.

    Args:
        plan: the aggregates and their types.
        store: has the state; it is read at once, and only `save` and `clear` write it.

    Raises:
        FailedPrecondition: the state was written by another version, or for other aggregates.
        DataLoss: a value that the head names is not in the store.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self._plan, self._store, self._layout = plan, store, plan.layout
        self._blocks: list[_Block] = []
        self._next = 0
        self._released: list[int] = []
        self.mark = NEVER
        """Windows that end at or before this time (microseconds) have been answered."""
        self.timer = -1
        """The timer that is set for this key, in milliseconds; -1 for none."""
        head = store.head()
        self.is_new = head is None
        if head is not None:
            self._open(head)

    def __len__(self) -> int:
        return sum(block.count for block in self._blocks)

    @property
    def newest(self) -> int:
        """Time of the newest entry; NEVER without entries."""
        return self._blocks[-1].last if self._blocks else NEVER

    def spans(self) -> tuple[Array, Array]:
        """Spans of time that hold entries: int64 (k,) sorted firsts, and lasts; exact where entries are at hand."""
        first: list[Any] = [[b.first] if b.columns is None else b.columns[0][: b.count] for b in self._blocks]
        last: list[Any] = [[b.last] if b.columns is None else f for b, f in zip(self._blocks, first, strict=True)]
        empty = np.empty(0, np.int64)
        return np.concatenate([empty, *first]), np.concatenate([empty, *last])

    # ---------------------------------------------------------------- entries come and go

    def insert(self, columns: list[Array]) -> None:
        """Insert m >= 0 entries, sorted by time; they go behind entries of equal time."""
        times = columns[0]
        older = int(times.searchsorted(self.newest, "left"))
        if older:
            self._splice([column[:older] for column in columns])
        if older < len(times):
            self._append([column[older:] for column in columns])

    def _append(self, columns: list[Array]) -> None:
        size = self._layout.block
        number = -1
        if self._blocks and self._blocks[-1].count < size:
            open_block = self._blocks.pop()
            number = open_block.number
            columns = [np.concatenate(both) for both in zip(self._columns(open_block), columns, strict=True)]
        rows = len(columns[0])
        full = rows - rows % size
        added = self._cut(columns, [*range(0, full, _BULK * size), *([full] if full < rows else [])])
        added[0].number = number
        self._blocks += added

    def _splice(self, columns: list[Array]) -> None:
        """Insert entries that are older than the newest one into the blocks of their times."""
        firsts, size = np.array([block.first for block in self._blocks]), _BULK * self._layout.block
        owners = np.maximum(firsts.searchsorted(columns[0], "right") - 1, 0)
        touched, starts = np.unique(owners, return_index=True)
        stops = [*starts[1:].tolist(), len(owners)]
        rebuilt: dict[int, list[_Block]] = {}
        for owner, start, stop in zip(touched.tolist(), starts.tolist(), stops, strict=True):
            block = self._blocks[owner]
            merged = merge(self._columns(block), 0, block.count, [column[start:stop] for column in columns])
            rows = len(merged[0])
            pieces = -(-rows // size) if rows > 2 * size else 1
            rebuilt[owner] = self._cut(merged, [rows * i // pieces for i in range(pieces)])
            rebuilt[owner][0].number = block.number
        self._blocks = [b for i, block in enumerate(self._blocks) for b in rebuilt.get(i, (block,))]

    @staticmethod
    def _cut(columns: list[Array], starts: Sequence[int]) -> list[_Block]:
        stops = [*starts[1:], len(columns[0])]
        return [_Block.of([column[a:b] for column in columns]) for a, b in zip(starts, stops, strict=True)]

    def evict_before(self, time: int) -> None:
        """Delete blocks of entries older than `time`. A few such entries may stay in the oldest block."""
        keep = 0
        while keep < len(self._blocks) and self._blocks[keep].last < time:
            keep += 1
        self._released += [block.number for block in self._blocks[:keep] if block.number >= 0]
        del self._blocks[:keep]

    # ---------------------------------------------------------------- answers

    def answers(self, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        """Answer over k ranges start <= time < stop, in any order.

        Returns:
            the number of entries in each, int64 (k,), and the answers of each aggregate over those that have any.
        """
        times, counts, folds = self._atoms(starts, stops)
        before = np.concatenate(([0], np.cumsum(counts)))
        begin, end = times.searchsorted(starts, "left"), times.searchsorted(stops, "left")
        entries = before[end] - before[begin]
        filled = np.flatnonzero(entries)
        begin, length = begin[filled], (end - begin)[filled]
        lowered = []
        for monoid, partials in zip(self._layout.monoids, folds, strict=True):
            some = tuple(part[:0] for part in partials)
            if len(filled):
                some = finished(fold_runs(monoid, partials, begin, length))
            lowered.append(monoid.lower_columns(some))
        return entries, [entries[filled] if slot < 0 else lowered[slot] for slot in self._layout.answers]

    def _atoms(self, starts: Array, stops: Array) -> tuple[Array, Array, list[Partials]]:
        """Return the pieces that no range divides, as first times, counts and partials: blocks and parts of blocks."""
        times: list[int] = []
        counts: list[int] = []
        folds: list[list[Partial]] = [[] for _ in self._layout.monoids]
        cuts = np.unique(np.concatenate((starts, stops)))
        for block, low, high in self._covered(cuts, int(starts.min()), int(stops.max())):
            if low == high:
                times.append(block.first)
                counts.append(block.count)
                for fold, partial in zip(folds, self._partials(block), strict=True):
                    fold.append(partial)
                continue
            columns = self._columns(block)
            pieces = np.unique(np.concatenate(([0], columns[0].searchsorted(cuts[low:high], "left"))))
            times += columns[0][pieces].tolist()
            counts += np.diff(pieces, append=block.count).tolist()
            for fold, monoid, partials in zip(
                folds, self._layout.monoids, self._layout.reduce_segments(columns, pieces), strict=True
            ):
                fold += monoid.unpack(partials)
        packed = [monoid.pack(fold) for monoid, fold in zip(self._layout.monoids, folds, strict=True)]
        return np.array(times, np.int64), np.array(counts, np.int64), packed

    def _covered(self, cuts: Array, start: int, stop: int) -> Iterator[tuple[_Block, int, int]]:
        """Yield the blocks with entries in start <= time < stop, and the cuts that go through each."""
        blocks = [block for block in self._blocks if block.last >= start and block.first < stop]
        low = cuts.searchsorted([block.first for block in blocks], "right").tolist()
        high = cuts.searchsorted([block.last for block in blocks], "right").tolist()
        return zip(blocks, low, high, strict=True)

    def _columns(self, block: _Block) -> list[Array]:
        if block.columns is None:
            data = self._store.block(block.number)
            if data is None:
                raise _lost(f"block {block.number} is")
            block.columns = columns_of(self._plan, pa.ipc.read_record_batch(data, self._plan.entries_schema))
        return block.columns

    def _partials(self, block: _Block) -> list[Partial]:
        if block.partials is None:
            block.partials = self._layout.reduce(self._columns(block))
        if any(partial is _APART for partial in block.partials):
            data = self._store.sketches(block.number)
            if data is None:
                raise _lost(f"the sketches of block {block.number} are")
            for slot, encoded in _unframe(data):
                block.partials[slot] = self._layout.monoids[slot].decode(encoded)
        return block.partials

    # ---------------------------------------------------------------- to and from the store

    def clear(self) -> None:
        """Delete the key."""
        self._blocks, self._released = [], []
        if not self.is_new:
            self._store.clear()

    def save(self) -> None:
        """Write the changes."""
        blocks, tail = self._blocks, b""
        if blocks and blocks[-1].count < self._layout.block:
            blocks, open_block = blocks[:-1], blocks[-1]
            tail = record_batch_of(self._plan, self._columns(open_block)).serialize().to_pybytes()
            if open_block.number >= 0:
                self._released.append(open_block.number)
        for block in blocks:
            if block.dirty:
                self._save_block(block)
        directory = self._directory(blocks)
        for number in self._released:
            self._store.remove(number)
        head = _HEAD.pack(
            *(_MAGIC, VERSION, self._plan.digest, self.mark, self.timer, self._next, len(directory), len(tail))
        )
        self._store.put_head(head + directory + tail)

    def _save_block(self, block: _Block) -> None:
        if block.number < 0:
            block.number, self._next = self._next, self._next + 1
        columns = record_batch_of(self._plan, self._columns(block))
        self._store.put_block(block.number, columns.serialize().to_pybytes())
        large = []
        for slot, (monoid, partial) in enumerate(zip(self._layout.monoids, self._partials(block), strict=True)):
            if _is_object(monoid):
                encoded = monoid.encode(partial)
                if len(encoded) > _SMALL:
                    large.append((slot, encoded))
        if large:
            self._store.put_sketches(block.number, _frame(large))

    def _directory(self, blocks: Sequence[_Block]) -> bytes:
        facts = [(block.number, block.first, block.last, block.count) for block in blocks]
        arrays = [pa.array(column, pa.int64()) for column in (zip(*facts, strict=True) if facts else ([],) * 4)]
        for slot, monoid in enumerate(self._layout.monoids):
            # Partials that were read as _APART and never loaded are still stored under the number of their block.
            partials = [(block.partials or self._partials(block))[slot] for block in blocks]
            if _is_object(monoid):
                encoded = [None if p is _APART else monoid.encode(p) for p in partials]
                arrays.append(pa.array([None if e is None or len(e) > _SMALL else e for e in encoded], pa.binary()))
            else:
                arrays += [pa.array(column) for column in monoid.pack(partials)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._directory_schema())
        return batch.serialize().to_pybytes()  # type: ignore[no-any-return]

    def _directory_schema(self) -> Any:
        fields = [(name, pa.int64()) for name in ("number", "first", "last", "count")]
        for slot, monoid in enumerate(self._layout.monoids):
            if _is_object(monoid):
                fields.append((f"{slot}", pa.binary()))
            else:
                fields += [(f"{slot}.{i}", pa.from_numpy_dtype(dtype)) for i, dtype in enumerate(monoid.dtypes)]
        return pa.schema(fields)

    def _open(self, head: bytes) -> None:
        magic, version = struct.unpack_from("<4sH", head)
        if magic != _MAGIC or version != VERSION:
            raise _foreign(
                f"the state in this checkpoint has version {version}, this program reads version {VERSION}: start from "
                "a new checkpoint, or with the release that wrote it",
            )
        _, _, digest, self.mark, self.timer, self._next, directory, tail = _HEAD.unpack_from(head)
        if digest != self._plan.digest:
            raise _foreign(
                "the state in this checkpoint belongs to other fields, aggregates, windows or steps: start from a new "
                "checkpoint, or with those that it was written with",
            )
        data = pa.py_buffer(head)
        self._read_directory(data.slice(_HEAD.size, directory))
        if tail:
            batch = pa.ipc.read_record_batch(data.slice(_HEAD.size + directory, tail), self._plan.entries_schema)
            self._blocks.append(_Block.of(columns_of(self._plan, batch)))

    def _read_directory(self, data: Any) -> None:
        batch = pa.ipc.read_record_batch(data, self._directory_schema())
        columns, at, partials = batch.columns, 4, []
        for monoid in self._layout.monoids:
            if _is_object(monoid):
                encoded = columns[at].to_pylist()
                partials.append([_APART if e is None else monoid.decode(e) for e in encoded])
                at += 1
            else:
                width = len(monoid.dtypes)
                parts = tuple(column.to_numpy(zero_copy_only=False) for column in columns[at : at + width])
                partials.append(monoid.unpack(parts))
                at += width
        folds = zip(*partials, strict=True) if partials else [()] * batch.num_rows
        facts = zip(*(column.to_pylist() for column in columns[:4]), strict=True)
        for (number, first, last, count), fold in zip(facts, folds, strict=True):
            block = _Block(first, last, count)
            block.number, block.partials = number, list(fold)
            self._blocks.append(block)


def _lost(what: str) -> Exception:
    from sash_client import DataLoss  # imported here, because every Python worker imports this module and few need gRPC

    return DataLoss(f"{what} not in the state store")


def _foreign(message: str) -> Exception:
    from sash_client import FailedPrecondition

    return FailedPrecondition(message, field="checkpointLocation")


_APART: Any = object()
"""Stands for a partial that is stored with the sketches of its block."""


def _is_object(monoid: Any) -> bool:
    return any(dtype.hasobject for dtype in monoid.dtypes)


def _frame(parts: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack("<HI", slot, len(data)) + data for slot, data in parts)


def _unframe(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        slot, length = struct.unpack_from("<HI", data, at)
        at += 6
        yield slot, data[at : at + length]
        at += length
