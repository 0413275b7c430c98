"""Fine-sliding windows inside Spark: `sliding_aggregate` for streams and for tables.

    stream     rows ── packed into columns per key ──▶ shuffle ──▶ transformWithState ──▶ unpacked answers
               (Arrow, in the tasks that read them)   sliding_operator.py, state in blocks: sliding_state.py
    table      rows ──▶ shuffle ──▶ one forest per key, one series per width

Spark's own `window(time, "10 minutes", "1 second")` copies every row into 600 windows. This operator stores a row once,
and folds a window from the partials of blocks. Rows travel to the state as one binary value for each key and Arrow
batch, because PySpark would pass them to a stateful operator one by one, as Python objects.

The windows are those of Spark's `window`: start <= time < start + width, with a start at every multiple of the step
since 1970. Each window that has rows is emitted once, when the watermark passes its end.

Source: the operator is Spark's arbitrary state API v2 (SPARK-46815), on rows since Spark 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from sash_engine.monoids.base import Array
from sash_spark.sliding_operator import Operator
from sash_spark.sliding_plan import EVER, NEVER, Plan, columns_of, refused
from sash_spark.sliding_state import KeyState, Store

if TYPE_CHECKING:
    from sash_engine.forest import Forest

__all__ = ["sliding_aggregate"]

_KEY, _TIME, _FIELD, _LATE, _PACKED = "key", "time", "field_", "late", "packed"
_WATERMARK = "spark.watermarkDelayMs"  # metadata of a column with a watermark


def sliding_aggregate(
    frame: DataFrame,
    *,
    key: str | None = None,
    time: str,
    windows: Sequence[str],
    aggregates: Mapping[str, Mapping[str, Any]],
    emit: str = "update",
    watermark: str | None = None,
    metrics: str = "sliding",
) -> DataFrame:
    """Aggregate over sliding windows of event time.

    Args:
        frame: a stream or a table.
        key: the column whose values have windows of their own; one for all rows where omitted.
        time: the column with the event time: a timestamp, with or without time zone.
        windows: widths, such as ``["10m", "1h"]``.
        aggregates: name -> ``{"function": …, "field": …, parameters}``, as in a window's spec; fields are columns.
        emit: a step such as ``"1s"``: one row per key, width and window, a window starting at every multiple of the
            step; on a stream when the watermark passes its end. ``"update"``: one row per width for each key that a
            micro-batch (or the table) has rows of: the window that ends with, and includes, the key's newest row; its
            `start` is excluded.
        watermark: a delay such as ``"30 seconds"``, for a stream that has no watermark on `time` yet. A step needs one;
            with "update", a key's state goes when the watermark passes its newest row by the longest width, and
            without one it stays for good.
        metrics: name under which the query's progress (`observedMetrics`) has `late`, the rows that came too late for
            every window and were dropped, and `answers`, the rows that came out.

    Returns:
        the key (its column), ``width`` (as given in `windows`), ``start``, ``end``, ``entries``, and each aggregate.
        Lists and structures come as arrays and structs; null is no answer. A stream's query runs in append or update
        mode, needs RocksDB as its state store, and keeps its state in its checkpoint.

    Raises:
        InvalidArgument: a column, duration or aggregate that does not fit. On the executors: missing values
            in a column that is read. State of another version or other aggregates is a FailedPrecondition there.

    Late. A row behind the watermark still counts in windows that are open, as with Spark's `window`. For a key
    without state (new, or long silent) those are the windows that end after the watermark of the micro-batch itself.
    Order. Entries of one key and time count in order of arrival within a task, and in no order between tasks.
    """
    plan = Plan.of(frame.schema, key, time, windows, aggregates, emit)
    if not frame.isStreaming:
        if watermark is not None:
            raise refused("a table has no watermark", "watermark")
        return _of_table(frame, plan)
    if watermark is not None:
        frame = frame.withWatermark(time, watermark)
    has_watermark = _WATERMARK in frame.schema[time].metadata
    if plan.step is not None and not has_watermark:
        raise refused("steps are emitted when a watermark passes: say which", "watermark")
    return _of_stream(frame, plan, "EventTime" if has_watermark else "None", metrics)


# ---------------------------------------------------------------- tables


def _of_table(frame: DataFrame, plan: Plan) -> DataFrame:
    grouped = _selected(frame, plan).groupBy(_KEY)
    key = [StructField(_KEY, plan.key_type)]
    schema = StructType(key + plan.result.fields[0 if plan.key is None else 1 :])
    found = grouped.applyInArrow(_table_function(plan), schema)
    return found.drop(_KEY) if plan.key is None else found.withColumnRenamed(_KEY, plan.key)


def _table_function(plan: Plan) -> Callable[[pa.Table], pa.Table]:
    """Answers all windows of one key of a table."""

    def answer(table: pa.Table) -> pa.Table:
        from sash_engine.forest import Forest

        columns = _sorted(columns_of(plan, _entries(plan, table.select(table.column_names[1:]))))
        forest = Forest(plan.layout)
        forest.bulk_insert(columns[0], columns[1:])
        batches = list(_answers(plan, columns[0], columns[0], NEVER, EVER, _of_forest(forest)))
        answers = pa.Table.from_batches(batches, plan.answers_schema)
        keys = pa.repeat(table[_KEY][0], answers.num_rows)
        return answers.add_column(0, pa.field(_KEY, keys.type), keys)

    return answer


# ---------------------------------------------------------------- streams


def _of_stream(frame: DataFrame, plan: Plan, time_mode: str, metrics: str) -> DataFrame:
    key = StructField(_KEY, plan.key_type)
    packed = StructType([key, StructField(_PACKED, BinaryType())])
    settled = StructType([key, StructField(_LATE, LongType()), StructField(_PACKED, BinaryType())])
    unpacked = StructType(settled.fields[:2] + plan.result.fields[0 if plan.key is None else 1 :])
    answers = (
        _selected(frame, plan)
        .mapInArrow(_Pack(plan), packed)
        .groupBy(_KEY)
        .transformWithState(Operator(_Keys(plan, time_mode != "None")), settled, "Append", time_mode)
        .mapInArrow(_Unpack(plan), unpacked)
        .observe(metrics, F.coalesce(F.sum(_LATE), F.lit(0)).alias("late"), F.count("width").alias("answers"))
        .where(F.col("width").isNotNull())
    )
    answers = answers.drop(_LATE)
    return answers.drop(_KEY) if plan.key is None else answers.withColumnRenamed(_KEY, plan.key)


class _Pack:
    """Packs the rows of each Arrow batch: one row for each key, with its entries as one binary value."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if not batch.num_rows:
                continue
            keys, entries = batch.column(0), _entries(self._plan, batch.select(batch.schema.names[1:]))
            codes = keys.dictionary_encode(null_encoding="encode").indices.to_numpy()
            order = np.argsort(codes, kind="stable")
            codes = codes[order]
            starts = np.flatnonzero(np.diff(codes, prepend=-1))
            stops = np.append(starts[1:], len(codes))
            entries = entries.take(order)
            parts = [
                entries.slice(a, b - a).serialize().to_pybytes()
                for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
            ]
            yield pa.RecordBatch.from_arrays([keys.take(order[starts]), pa.array(parts, pa.binary())], [_KEY, _PACKED])


class _Unpack:
    """Unpacks the answers in each binary value. A count of late rows becomes a row without an answer."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        schema = self._plan.answers_schema
        nothing = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
        for batch in batches:
            if not batch.num_rows:
                continue
            values = batch.column(2)
            parts = [pa.ipc.read_record_batch(v.as_buffer(), schema) if v.is_valid else nothing for v in values]
            rows = np.repeat(np.arange(batch.num_rows), [part.num_rows for part in parts])
            (answers,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
            columns = [batch.column(0).take(rows), batch.column(1).take(rows), *answers.columns]
            yield pa.RecordBatch.from_arrays(columns, [_KEY, _LATE, *schema.names])


class _Keys:
    """Processes the rows and the timer of the current key."""

    def __init__(self, plan: Plan, has_watermark: bool) -> None:
        self._plan = plan
        self._has_watermark = has_watermark

    def rows(self, handle: Any, store: Store, key: Any, rows: Any, timers: TimerValues) -> Iterator[Row]:
        """Insert the rows of a micro-batch, and answer the windows that are due."""
        plan, watermark = self._plan, _micros(timers)
        state = KeyState(plan, store)
        if state.is_new:
            state.mark = watermark
        entries = [pa.ipc.read_record_batch(row[_PACKED], plan.entries_schema) for row in rows]
        columns = [np.concatenate(parts) for parts in zip(*(columns_of(plan, e) for e in entries), strict=True)]
        columns, late = _in_time(plan, _sorted(columns), state, watermark)
        state.insert(columns)
        if late:
            yield Row(key=key[0], late=late, packed=None)
        if plan.step is None:
            if len(columns[0]):
                times = np.array([state.newest])
                yield from _packed(key, _answers(plan, times, times, NEVER, EVER, state.answers))
        else:
            yield from self._emit(key, state, watermark)
        self._settle(handle, state, watermark)

    def expired(self, handle: Any, store: Store, key: Any, timers: TimerValues) -> Iterator[Row]:
        """Answer the windows that the watermark has passed, and delete old state."""
        watermark = _micros(timers)
        state = KeyState(self._plan, store)
        state.timer = -1  # Spark deletes it after this
        if self._plan.step is not None:
            yield from self._emit(key, state, watermark)
        self._settle(handle, state, watermark)

    def _emit(self, key: Any, state: KeyState, watermark: int) -> Iterator[Row]:
        """Answer the windows that the watermark has passed."""
        yield from _packed(key, _answers(self._plan, *state.spans(), state.mark, watermark, state.answers))
        state.mark = max(state.mark, watermark)

    def _settle(self, handle: Any, state: KeyState, watermark: int) -> None:
        """Delete what no window needs any more, set the timer for the next window, and save."""
        plan = self._plan
        if plan.step is None:
            state.evict_before(max(state.newest, watermark) - plan.longest + 1)
            due = state.newest + plan.longest
        else:
            # The start of the oldest open window.
            state.evict_before((watermark - plan.longest) // plan.step * plan.step + plan.step)
            found = plan.due(*state.spans(), watermark)
            due = NEVER if found is None else found
        timer = -(-due // 1000) if len(state) and self._has_watermark else -1
        if timer != state.timer:
            if state.timer >= 0:
                handle.deleteTimer(state.timer)
            if timer >= 0:
                handle.registerTimer(timer)
            state.timer = timer
        if len(state):
            state.save()
        else:
            state.clear()


def _micros(timer_values: TimerValues) -> int:
    """Return the watermark; NEVER before there is one (Spark then has 0 or -1)."""
    milliseconds = timer_values.getCurrentWatermarkInMs()
    return milliseconds * 1000 if milliseconds > 0 else NEVER


def _in_time(plan: Plan, columns: list[Array], state: KeyState, watermark: int) -> tuple[list[Array], int]:
    """Return the rows that fall into a window that is not answered yet, and the number of the other rows."""
    times = columns[0]
    if plan.step is None:
        late = int(times.searchsorted(max(state.newest, watermark) - plan.longest, "right"))
    else:
        late = int(plan.closes(times).searchsorted(state.mark, "right"))
    return [column[late:] for column in columns], late


def _packed(key: Any, batches: Iterator[Any]) -> Iterator[Row]:
    for batch in batches:
        yield Row(key=key[0], late=0, packed=batch.serialize().to_pybytes())


# ---------------------------------------------------------------- both


_Fold = Callable[[Array, Array], tuple[Array, list[Array]]]


def _answers(plan: Plan, first: Array, last: Array, after: int, upto: int, fold: _Fold) -> Iterator[Any]:
    """Yield answers as record batches, by width, then time: windows with entries that end in after < end <= upto.

    Args:
        first, last: spans of time with entries.
        fold: as `KeyState.answers`.
    """
    if not len(last):
        return
    for number, (_, width) in enumerate(plan.widths):
        if plan.step is None:
            newest = last[-1:]
            entries, answers = fold(newest - width + 1, newest + 1)
            yield plan.table(number, newest - width, newest, entries, answers)
            continue
        for starts in plan.starts(first, last, width, after, upto):
            entries, answers = fold(starts, starts + width)
            filled = starts[entries > 0]
            if len(filled):
                yield plan.table(number, filled, filled + width, entries[entries > 0], answers)


def _of_forest(forest: Forest) -> _Fold:
    """Return a forest's series in the form of `KeyState.answers`."""

    def fold(starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        entries, answers = forest.series(starts, stops)
        return entries, [column[entries > 0] for column in answers]

    return fold


def _selected(frame: DataFrame, plan: Plan) -> DataFrame:
    """Select key, time and fields, under names that cannot collide."""
    key = F.lit(0).cast("long") if plan.key is None else _column(plan.key)
    fields = [_column(name).alias(_FIELD + name) for name in plan.fields]
    return frame.select(key.alias(_KEY), _column(plan.time).alias(_TIME), *fields)


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")  # a dot in a name is a dot, not a path


def _entries(plan: Plan, rows: Any) -> Any:
    """Cast the time and the fields of a batch or a table of Spark to the plan's types."""
    for name, column in zip((plan.time, *plan.fields), rows.columns, strict=True):
        if column.null_count:
            raise refused(f"column {name!r} has {column.null_count} missing values", name)
    times = rows.column(0)
    columns = [times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())]
    columns += [c.cast(field.type) for c, field in zip(rows.columns[1:], list(plan.entries_schema)[1:], strict=True)]
    return type(rows).from_arrays(columns, schema=plan.entries_schema)


def _sorted(columns: list[Array]) -> list[Array]:
    """Sort columns by time; rows of equal time keep their order."""
    times = columns[0]
    if not np.count_nonzero(times[1:] < times[:-1]):
        return columns
    order = np.argsort(times, kind="stable")
    return [column[order] for column in columns]
