"""The state of one bucket of keys: the rows that some window may still need, in chunks, by arrival.

    head       version, digest, buckets | mark, timer | directory: number, first, last, rows
    parts      (chunk, 0) its segments     (chunk, 1), (chunk, 2), … its rows       chunk.py

    arrival    [ chunk ][ chunk ][ chunk ][ch][c]  ◀── rows of a micro-batch
    windows    |------------------------|          of chunks between the edges, the segments are enough

A micro-batch writes its rows as one chunk, and deletes chunks whose rows no window needs. It reads the segments of all
chunks, and the rows of those that an edge of a window divides. Small neighbouring chunks are united, as long as the new
one covers less time than an eighth of the longest window, so that a window has some dozen chunks at most.

`mark` is the watermark up to which windows are answered. Each bucket with windows by step is called whenever the
watermark moves, so the mark is the watermark of the micro-batch before. Spark's `window` drops late rows by that one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sash_engine.monoids.base import Array
from sash_engine.windows.keys.ragged import ragged
from sash_spark.sliding.chunk import INLINE, Chunk
from sash_spark.sliding.fold import Answers, Newest, Steps, Windows, answers_over, joined
from sash_spark.sliding.plan import EVER, NEVER, Plan

VERSION = 2
"""Version of the state's layout; it changes when an older program would misread the state."""

_HEAD = struct.Struct("<4sH8sIqqqI")  # magic, version, digest, buckets, mark, timer, next number, chunks
_CHUNK = struct.Struct("<qqqq")  # number, first, last, rows
_MAGIC = b"sash"
_SPANS = 8
"""A united chunk covers at most this part of the longest window."""


class Store(Protocol):
    """Stores the values of one bucket. `get` returns what was put last, until it is removed."""

    def head(self) -> bytes | None: ...

    def put_head(self, value: bytes) -> None: ...

    def clear(self) -> None:
        """Delete everything."""

    def get(self, number: int, part: int) -> bytes | None: ...

    def put(self, number: int, part: int, value: bytes) -> None: ...

    def remove(self, number: int, part: int) -> None: ...


class Bucket:
    """The rows of some keys that some window may still need.

    Args:
        plan: the aggregates and their types.
        store: has the state; the head is read at once, the rest when it is needed; only `save` writes. None where the
            rows are not kept.
        buckets: how many buckets there are.

    Raises:
        FailedPrecondition: the state was written by another version, for other aggregates, or other buckets.
        DataLoss: a value that the head names is not in the store.
    """

    def __init__(self, plan: Plan, store: Store | None = None, buckets: int = 1) -> None:
        self._plan, self._store, self._buckets = plan, store, buckets
        self._chunks: list[Chunk] = []
        self._next = 0
        self._released: list[Chunk] = []
        self._known: _Known | None = None
        self.mark = NEVER
        """Windows that end at or before this time (microseconds) have been answered."""
        self.timer = -1
        """The timer that is set for this bucket, in milliseconds; -1 for none."""
        self._head = store.head() if store is not None else None
        self.is_new = self._head is None
        if self._head is not None:
            self._open(self._head)

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self._chunks)

    def spans(self) -> tuple[Array, Array]:
        """The first and the last times of the chunks, int64."""
        return np.array([c.first for c in self._chunks], np.int64), np.array([c.last for c in self._chunks], np.int64)

    def expires(self, watermark: int) -> int:
        """Return when the newest row of some key leaves the longest window; later than the watermark."""
        due = self._load().newest() + self._plan.longest
        return int(due[due > watermark].min(initial=EVER))

    # ---------------------------------------------------------------- rows come and go

    def insert(self, keys: Any, columns: list[Array]) -> None:
        """Insert n >= 1 rows in order of arrival: their keys in Arrow, times and fields."""
        self._chunks.append(Chunk.of(self._plan, keys, columns))
        self._known = None

    def drop_late(self, watermark: int) -> int:
        """Drop the rows of the newest chunk that no window of their key holds; return how many.

        A key's newest row before them, or the watermark, tells which these are.
        """
        known = self._load()
        chunk, codes = self._chunks[-1], known.codes[-1]
        bounds = np.maximum(known.newest(len(self._chunks) - 1), watermark)[codes] - self._plan.longest + 1
        kept = self._trimmed(chunk, bounds)
        late = chunk.rows - sum(each.rows for each in kept)
        if late:
            self._replace(self._chunks[:-1] + kept)
        return late

    def evict(self, watermark: int, before: int = NEVER) -> None:
        """Delete rows that no window needs any more: whole chunks, and parts where little of a chunk is needed.

        Args:
            watermark: now, in microseconds.
            before: the watermark at the last call.
        """
        plan = self._plan
        if plan.step is not None:
            needed = plan.needed(watermark)
            if not self._chunks or needed == plan.needed(before) or needed <= int(self.spans()[0].min()):
                return
        elif not self._chunks:
            return
        known = self._load()
        segments = known.segments
        if plan.step is not None:
            bounds = np.full(len(segments.key), needed)
        else:
            bounds = (np.maximum(known.newest(), watermark) - plan.longest + 1)[segments.key]
        part = (segments.last - bounds + 1) / (segments.last - segments.first + 1)
        live = np.bincount(segments.chunk, segments.count * np.clip(part, 0, 1), len(self._chunks))
        chunks = []
        for i, chunk in enumerate(self._chunks):
            if live[i] and (chunk.is_inline or live[i] >= chunk.rows / 2):
                chunks.append(chunk)
            elif live[i]:
                chunks += self._trimmed(chunk, bounds[segments.chunk == i])
        self._replace(chunks)

    def _trimmed(self, chunk: Chunk, bounds: Array) -> list[Chunk]:
        """Return a chunk of the rows with time >= bound, int64 by segment; the same if these are all."""
        columns = chunk.columns(self._get)
        needed = columns[0] >= np.repeat(bounds, chunk.counts)
        if needed.all():
            return [chunk]
        rows = np.flatnonzero(needed)
        if not len(rows):
            return []
        return [Chunk.of(self._plan, chunk.row_keys().take(pa.array(rows)), [column[rows] for column in columns])]

    def _unite(self) -> None:
        """Unite the newest chunks, where they are small, or close in time and no longer much larger."""
        span = self._plan.longest // _SPANS
        while len(self._chunks) > 1:
            older, newer = self._chunks[-2:]
            close = max(older.last, newer.last) - min(older.first, newer.first) <= span
            if not (older.rows + newer.rows <= INLINE or (older.rows <= 2 * newer.rows and close)):
                return
            self._load()
            both = [chunk.columns(self._get) for chunk in (older, newer)]
            columns = [np.concatenate(pair) for pair in zip(*both, strict=True)]
            keys = pa.chunked_array([older.row_keys(), newer.row_keys()]).combine_chunks()
            self._replace([*self._chunks[:-2], Chunk.of(self._plan, keys, columns)])

    def _replace(self, chunks: list[Chunk]) -> None:
        kept = set(map(id, chunks))
        self._released += [chunk for chunk in self._chunks if id(chunk) not in kept]
        self._chunks, self._known = chunks, None

    # ---------------------------------------------------------------- answers

    def steps(self, after: int, upto: int) -> Iterator[tuple[Any, Answers]]:
        """Answer the windows with rows and after < end <= upto: keys in Arrow, and answers."""
        due = self._plan.due(*self.spans(), after)
        if due is not None and due <= upto:
            yield from self._answers(Steps(self._plan, after, upto))

    def newest(self, watermark: int = NEVER) -> Iterator[tuple[Any, Answers]]:
        """Answer the windows that end with the newest row, for the keys of the newest chunk.

        Rows that are older than the watermark by the longest width do not count.
        """
        known = self._load()
        newest = known.newest()
        wanted = np.zeros(len(newest), np.bool_)
        wanted[known.codes[-1]] = True
        yield from self._answers(Newest(self._plan, newest, wanted, watermark - self._plan.longest + 1))

    def _answers(self, windows: Windows) -> Iterator[tuple[Any, Answers]]:
        known, plan = self._load(), self._plan
        for found in answers_over(plan.layout, [w for _, w in plan.widths], known.segments, self._read, windows):
            yield known.keys.take(pa.array(found.key)), found

    def _read(self, wanted: Array) -> list[Array]:
        """Return the rows of some segments by their place among all, one segment after the other."""
        known = self._load()
        owner = known.ends.searchsorted(wanted, "right")
        counts = known.segments.count[wanted]
        places = np.cumsum(counts) - counts
        out = [np.empty(int(counts.sum()), dtype) for dtype in self._plan.layout.dtypes]
        for i in np.unique(owner).tolist():
            some = np.flatnonzero(owner == i)
            inside = wanted[some] - (int(known.ends[i - 1]) if i else 0)
            columns = self._chunks[i].read(self._get, inside)
            if len(some) == len(wanted):
                return list(columns)
            into = ragged(places[some], counts[some])
            for column, values in zip(out, columns, strict=True):
                column[into] = values
        return out

    def _load(self) -> _Known:
        """Read the segments of all chunks."""
        if self._known is None:
            for chunk in self._chunks:
                if chunk.keys is None:
                    chunk.load(self._get(chunk.number, 0))
            self._known = _Known(self._chunks)
        return self._known

    def _get(self, number: int, part: int) -> bytes:
        data = None if self._store is None else self._store.get(number, part)
        if data is None:
            from sash_client import DataLoss  # imported here: few Python workers need gRPC

            raise DataLoss(f"part {part} of chunk {number} is not in the state store")
        return data

    # ---------------------------------------------------------------- to and from the store

    def save(self) -> None:
        """Write the changes."""
        assert self._store is not None
        self._unite()
        if not self._chunks and self._plan.step is None:  # with steps, the mark stays
            if not self.is_new:
                self._store.clear()
            return
        for chunk in self._released:
            if chunk.number >= 0:
                for part in chunk.parts:
                    self._store.remove(chunk.number, part)
        for chunk in self._chunks:
            if chunk.number < 0:
                chunk.number, self._next = self._next, self._next + 1
                for part, value in chunk.values().items():
                    self._store.put(chunk.number, part, value)
        facts = (self._buckets, self.mark, self.timer, self._next, len(self._chunks))
        directory = [_CHUNK.pack(c.number, c.first, c.last, c.rows) for c in self._chunks]
        head = _HEAD.pack(_MAGIC, VERSION, self._plan.digest, *facts) + b"".join(directory)
        if head != self._head:
            self._store.put_head(head)
            self._head = head

    def _open(self, head: bytes) -> None:
        magic, version = struct.unpack_from("<4sH", head)
        if magic != _MAGIC or version != VERSION:
            raise _foreign(
                f"the state in this checkpoint has version {version}, this program reads version {VERSION}: start from "
                "a new checkpoint, or with the release that wrote it",
            )
        _, _, digest, buckets, self.mark, self.timer, self._next, chunks = _HEAD.unpack_from(head)
        if digest != self._plan.digest:
            raise _foreign(
                "the state in this checkpoint belongs to other keys, fields, aggregates, windows or steps: start from "
                "a new checkpoint, or with those that it was written with",
            )
        if buckets != self._buckets:
            raise _foreign(
                f"the state in this checkpoint is in {buckets} buckets of keys, and this run has {self._buckets}: set "
                f"spark.sql.shuffle.partitions to {buckets} again, or start from a new checkpoint",
            )
        facts = [_CHUNK.unpack_from(head, _HEAD.size + i * _CHUNK.size) for i in range(chunks)]
        self._chunks = [Chunk(self._plan, *one) for one in facts]


class _Known:
    """The segments of all chunks, with one number for each key.

    Attributes:
        keys: the keys by number, in Arrow.
        codes: by chunk: the number of each segment's key.
        ends: int64, by chunk: how many segments it and the chunks before it have.
        segments: of all chunks, one after the other.
    """

    def __init__(self, chunks: list[Chunk]) -> None:
        encoded = pa.chunked_array([chunk.keys for chunk in chunks]).combine_chunks()
        encoded = encoded.dictionary_encode(null_encoding="encode")
        self.keys = encoded.dictionary
        codes = encoded.indices.to_numpy().astype(np.int64)
        self.ends = np.cumsum([len(chunk.keys) for chunk in chunks])
        self.codes = np.split(codes, self.ends[:-1])
        parts = [chunk.segments(own, i) for i, (chunk, own) in enumerate(zip(chunks, self.codes, strict=True))]
        self.segments = parts[0] if len(parts) == 1 else joined(parts)

    def newest(self, chunks: int | None = None) -> Array:
        """The time of each key's newest row, in the first so many chunks; NEVER without rows."""
        stop = len(self.segments.key) if chunks is None else int(self.ends[chunks - 1]) if chunks else 0
        newest = np.full(len(self.keys), NEVER)
        np.maximum.at(newest, self.segments.key[:stop], self.segments.last[:stop])
        return newest


def _foreign(message: str) -> Exception:
    from sash_client import FailedPrecondition

    return FailedPrecondition(message, field="checkpointLocation")
