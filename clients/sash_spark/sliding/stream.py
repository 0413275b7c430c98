"""`sliding_aggregate` over a stream, on the executors: rows go to their buckets, and answers come back.

    Pack             rows ──▶ one binary value per bucket, with the rows as Arrow columns
    StreamBuckets    ──▶ state of the bucket ──▶ answers as Arrow columns, in binary values
    Unpack           ──▶ rows of answers

PySpark passes rows to a stateful operator one by one, as Python objects. A packed value is one such row.

Spark's `window` drops rows that are late by the watermark of the micro-batch before. A bucket knows that watermark,
because it is called in each micro-batch: by an empty value from `Pack`, and without rows by a timer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Row

from sash_engine.monoids.base import Array
from sash_spark.sliding.fold import Answers
from sash_spark.sliding.plan import NEVER, Plan, columns_of, refused
from sash_spark.sliding.state import Bucket, Store

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import TimerValues

BUCKET, KEY, LATE, PACKED = "bucket", "key", "late", "packed"
"""Columns between the steps; `LATE` counts rows that were dropped."""

_NO_VALUE = {pa.float64(): 0.0, pa.int64(): 0, pa.string(): "", pa.bool_(): False}
"""What columns have in place of a null."""

_TOGETHER = 65_536
"""Rows that are packed together: a packed value costs as much as some thousand rows."""


def spread(buckets: int) -> Array:
    """One int32 for each bucket, such that Spark's hash partitioning puts each into a partition of its own."""
    found: dict[int, int] = {}
    candidates = np.arange(0, dtype=np.int32)
    while len(found) < buckets:
        candidates = np.arange(len(candidates), len(candidates) + 8 * buckets, dtype=np.int32)
        for partition, number in zip((_murmur3(candidates) % buckets).tolist(), candidates.tolist(), strict=True):
            found.setdefault(partition, number)
    return np.array([found[i] for i in range(buckets)], np.int32)


def _murmur3(numbers: Array) -> Array:
    """Spark's hash of integers: Murmur3 of 32 bits with seed 42, as int32."""
    with np.errstate(over="ignore"):
        k = numbers.astype(np.uint32) * np.uint32(0xCC9E2D51)
        k = (k << np.uint32(15) | k >> np.uint32(17)) * np.uint32(0x1B873593)
        h = k ^ np.uint32(42)
        h = (h << np.uint32(13) | h >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
        h ^= np.uint32(4)
        h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
        h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
        return (h ^ h >> np.uint32(16)).astype(np.int32)


def entries_of(plan: Plan, rows: Any) -> Any:
    """Cast the key, the time and the fields of a batch or a table of Spark to the plan's types."""
    for name, column in zip((plan.time, *plan.fields), rows.columns[1:], strict=True):
        if column.null_count and (name == plan.time or not plan.marks):
            raise refused(f"column {name!r} has {column.null_count} missing values", name)
    times = rows.column(1)
    columns = [rows.column(0).cast(plan.key_arrow_type), times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())]
    marks = [column.is_valid() for column in rows.columns[2:]] if plan.marks else []
    for column, field in zip(rows.columns[2:], list(plan.rows_schema)[2:], strict=False):
        values = column.cast(field.type)
        columns.append(pc.fill_null(values, _NO_VALUE[field.type]) if values.null_count else values)
    columns += marks
    return type(rows).from_arrays(columns, schema=plan.rows_schema)


def answers_of(plan: Plan, found: Iterable[tuple[Any, Answers]]) -> Iterator[Any]:
    """Answers as record batches. The start of the newest window is excluded, and its end included."""
    shift = 1 if plan.step is None else 0
    for keys, one in found:
        yield plan.table(keys, one.width, (one.start - shift, one.stop - shift), one.entries, one.answers)


class Pack:
    """Packs rows of (bucket, key, time, fields) into rows of (number of the bucket, rows as one binary value).

    Args:
        plan: the aggregates and their types.
        numbers: int32, by bucket.
    """

    def __init__(self, plan: Plan, numbers: Array) -> None:
        self._plan, self._numbers = plan, numbers

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        waiting: list[Any] = []
        for batch in batches:
            if batch.num_rows:
                waiting.append(batch)
            if sum(each.num_rows for each in waiting) >= _TOGETHER:
                yield self._packed(pa.Table.from_batches(waiting).combine_chunks())
                waiting.clear()
        if waiting:
            yield self._packed(pa.Table.from_batches(waiting).combine_chunks())
        task = TaskContext.get()
        if self._plan.step is not None and task is not None and task.partitionId() == 0:
            yield self._batch(self._numbers, [None] * len(self._numbers))

    def _packed(self, table: Any) -> Any:
        buckets = table.column(0).to_numpy()
        rows = entries_of(self._plan, table.select(table.column_names[1:]))
        order = np.argsort(buckets.astype(np.uint16) if len(self._numbers) <= 65_536 else buckets, kind="stable")
        buckets = buckets[order]
        starts = np.flatnonzero(np.diff(buckets, prepend=-1))
        stops = np.append(starts[1:], len(buckets))
        (batch,) = rows.take(pa.array(order)).combine_chunks().to_batches()
        values = [
            batch.slice(a, b - a).serialize().to_pybytes() for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        return self._batch(self._numbers[buckets[starts]], values)

    def _batch(self, numbers: Array, values: list[bytes | None]) -> Any:
        return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(values, pa.binary())], [BUCKET, PACKED])


class Unpack:
    """Unpacks the answers in each binary value. A count of late rows becomes a row without an answer."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        schema = self._plan.answers_schema
        nothing = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
        for batch in batches:
            for value, late in zip(batch.column(1), batch.column(2), strict=True):
                part = pa.ipc.read_record_batch(value.as_buffer(), schema) if value.is_valid else nothing
                counts = pa.repeat(late, part.num_rows)
                yield pa.RecordBatch.from_arrays([counts, *part.columns], [LATE, *schema.names])


class StreamBuckets:
    """Processes the rows and the timer of the current bucket."""

    def __init__(self, plan: Plan, buckets: int, has_watermark: bool) -> None:
        self._plan, self._buckets, self._has_watermark = plan, buckets, has_watermark

    def rows(self, handle: Any, store: Store, bucket: int, rows: Iterable[Row], timers: TimerValues) -> Iterator[Row]:
        """Insert the rows of a micro-batch, and answer the windows that are due."""
        plan, watermark = self._plan, _micros(timers)
        state = Bucket(plan, store, self._buckets)
        if state.is_new:
            state.mark = watermark
        parts = [pa.ipc.read_record_batch(row[PACKED], plan.rows_schema) for row in rows if row[PACKED] is not None]
        late, came = 0, False
        if parts:
            (batch,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
            late, came = self._insert(state, batch, watermark)
        if late:
            yield Row(bucket=bucket, packed=None, late=late)
        if plan.step is None and came:
            yield from self._packed(bucket, state.newest(watermark))
        yield from self._settle(handle, state, bucket, watermark)

    def expired(self, handle: Any, store: Store, bucket: int, timers: TimerValues) -> Iterator[Row]:
        """Answer the windows that the watermark has passed, and delete old state."""
        state = Bucket(self._plan, store, self._buckets)
        state.timer = -1  # Spark deletes it after this
        yield from self._settle(handle, state, bucket, _micros(timers))

    def _insert(self, state: Bucket, batch: Any, watermark: int) -> tuple[int, bool]:
        """Insert rows; return how many are too late for every window, and whether there are others."""
        plan = self._plan
        if plan.step is None:
            state.insert(batch.column(0), columns_of(plan, batch.select(batch.schema.names[1:])))
            late = state.drop_late(watermark)
            return late, late < batch.num_rows
        in_time = plan.closes(batch.column(1).to_numpy()) > state.mark
        late = len(in_time) - int(np.count_nonzero(in_time))
        if late:
            batch = batch.filter(pa.array(in_time))
        if batch.num_rows:
            state.insert(batch.column(0), columns_of(plan, batch.select(batch.schema.names[1:])))
        return late, batch.num_rows > 0

    def _settle(self, handle: Any, state: Bucket, bucket: int, watermark: int) -> Iterator[Row]:
        """Answer the windows that end with a step, delete what no window needs, set the timer, and save."""
        before = state.mark
        if self._plan.step is not None:
            yield from self._packed(bucket, state.steps(before, watermark))
            state.mark = max(before, watermark)
        state.evict(watermark, before)
        if self._plan.step is not None:
            timer = max(state.mark // 1000, 0) + 1  # Spark may not look for timers that are not after the watermark
        else:
            timer = -(-state.expires(watermark) // 1000) if len(state) and self._has_watermark else -1
        if timer != state.timer:
            if state.timer >= 0:
                handle.deleteTimer(state.timer)
            if timer >= 0:
                handle.registerTimer(timer)
            state.timer = timer
        state.save()

    def _packed(self, bucket: int, found: Iterable[tuple[Any, Answers]]) -> Iterator[Row]:
        for batch in answers_of(self._plan, found):
            yield Row(bucket=bucket, packed=batch.serialize().to_pybytes(), late=0)


def _micros(timer_values: TimerValues) -> int:
    """Return the watermark; NEVER before there is one (Spark then has 0 or -1)."""
    milliseconds = timer_values.getCurrentWatermarkInMs()
    return milliseconds * 1000 if milliseconds > 0 else NEVER
