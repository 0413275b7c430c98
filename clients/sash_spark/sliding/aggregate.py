"""Fine-sliding windows inside Spark: `sliding_aggregate` for streams and for tables.

    stream     rows ──▶ buckets of keys ──▶ shuffle ──▶ transformWithState ──▶ answers
               stream.py                    operator.py, state.py
    table      rows ──▶ buckets of keys ──▶ shuffle ──▶ answers

Spark's own `window(time, "10 minutes", "1 second")` copies every row into 600 windows. This operator stores a row once,
and folds windows from the partials of runs of rows. Keys are grouped into buckets by their hash, as many as there are
partitions. One call deals with all keys of a bucket, because a call costs as much as thousands of rows.

The windows are those of Spark's `window`: start <= time < start + width, with a start at every multiple of the step
since 1970. Each window that has rows is emitted once, when the watermark passes its end.

Source: the operator is Spark's arbitrary state API v2 (SPARK-46815): on rows since Spark 4.1, through pandas in 4.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DoubleType, FloatType, IntegerType, LongType, StructField, StructType

from sash_spark.names import named
from sash_spark.sliding.keys import KeyColumns, exact
from sash_spark.sliding.plan import EVER, NEVER, Plan, columns_of, refused
from sash_spark.sliding.state import Bucket
from sash_spark.sliding.stream import (
    BUCKET,
    KEY,
    LATE,
    PACKED,
    Pack,
    StreamBuckets,
    Unpack,
    answers_of,
    entries_of,
    spread,
)

_TIME, _FIELD = "time", "field_"
_WATERMARK = "spark.watermarkDelayMs"  # metadata of a column with a watermark
_TABLE_BUCKETS = 4
"""Buckets of a table for each partition: a task has the rows of one in memory."""


def sliding_aggregate(
    frame: DataFrame,
    *,
    key: str | Sequence[str] | None = None,
    time: str,
    windows: Sequence[str],
    aggregates: Mapping[str, Mapping[str, Any]],
    emit: str = "update",
    watermark: str | None = None,
    metrics: str = "sliding",
    nulls: str = "fail",
) -> DataFrame:
    """Aggregate over sliding windows of event time.

    Args:
        frame: a stream or a table. Its columns are found in any case of their names, as in Spark.
        key: the column whose values have windows of their own, or several columns; one for all rows where omitted.
            Several columns are strings, whole numbers, booleans, decimals or dates.
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
        metrics: the name that the query's progress (`observedMetrics`) has for `late`, the rows that came too late for
            every window and were dropped, and `answers`, the rows that came out.
        nulls: ``"fail"``: a null in a column that is read fails the query. ``"ignore"``: an aggregate leaves out rows
            in which a column that it reads is null, as Spark's do; `entries` and `count` count them. Over nulls alone
            the answer is null, or what an aggregate that counts or lists answers over no rows. A null time fails.

    Returns:
        the key (its column or columns), ``width`` (as given in `windows`), ``start``, ``end``, ``entries``, and each
        aggregate. Lists and structures come as arrays and structs; null is no answer. A stream's query runs in append
        or update mode, needs RocksDB as its state store, and keeps its state in its checkpoint.

    Raises:
        InvalidArgument: a column, duration or aggregate that does not fit. On the executors: missing values
            in a column that is read. State of another version or other aggregates is a FailedPrecondition there.

    Watermark. With a step, the column `end` carries the watermark on: `.groupBy(window("end", …))` works behind it.
    Late. A row behind the watermark still counts in windows that are open: as with Spark's `window`, those that end
    after the watermark of the micro-batch before.
    Partitions. State is in as many buckets of keys as `spark.sql.shuffle.partitions` says when the query first starts.
    Later runs must have the same number.
    Order. Entries of one key and time count in order of arrival within a task, and in no order between tasks.
    """
    time, key = exact(frame.schema, time), exact(frame.schema, key)
    aggregates = {name: _exact_aggregate(frame.schema, document) for name, document in aggregates.items()}
    if key is not None and not isinstance(key, str):
        keys = KeyColumns.of(frame.schema, key, aggregates)
        given: dict[str, Any] = {"time": time, "windows": windows, "aggregates": aggregates, "emit": emit}
        given |= {"watermark": watermark, "metrics": metrics, "nulls": nulls}
        return keys.split(sliding_aggregate(keys.joined(frame), key=keys.name, **given))
    plan = Plan.of(frame.schema, key, time, windows, aggregates, emit, nulls)
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


def _exact_aggregate(schema: StructType, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an aggregate with the columns that it reads by their exact names."""
    if not isinstance(document, Mapping):
        return document  # the plan refuses it
    columns = {option: exact(schema, document[option]) for option in ("field", "returns") if option in document}
    return {**document, **columns}


def _of_table(frame: DataFrame, plan: Plan) -> DataFrame:
    if not hasattr(frame.groupBy(), "applyInArrow"):
        raise refused("sliding_aggregate needs Spark 4.0", "frame")
    buckets = _partitions(frame) * _TABLE_BUCKETS if plan.key is not None else 1
    # A shuffle and no more: `groupBy(bucket).applyInArrow(…)` also has Spark sort the rows.
    rows = _selected(frame, plan).repartition(buckets, KEY)
    return _named(rows.mapInArrow(_table_function(plan), StructType(plan.result)), plan)


def _table_function(plan: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Answers all windows of one bucket of a table."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch for batch in batches if batch.num_rows]
        if not held:
            return
        rows = entries_of(plan, pa.Table.from_batches(held))
        held.clear()
        bucket = Bucket(plan)
        bucket.insert(rows[KEY].combine_chunks(), columns_of(plan, rows.drop_columns([KEY])))
        found = bucket.newest() if plan.step is None else bucket.steps(NEVER, EVER)
        yield from answers_of(plan, found)

    return answer


def _of_stream(frame: DataFrame, plan: Plan, time_mode: str, metrics: str) -> DataFrame:
    try:
        from sash_spark.sliding.operator import Operator, PandasOperator
    except ImportError:
        raise refused("sliding_aggregate needs Spark 4.0", "frame") from None
    buckets = _partitions(frame) if plan.key is not None else 1
    packed = StructType([StructField(BUCKET, IntegerType()), StructField(PACKED, BinaryType())])
    settled = StructType([*packed, StructField(LATE, LongType())])
    result = [StructField(LATE, LongType()), *plan.result]
    if plan.step is not None:
        end = next(field for field in result if field.name == "end")
        end.metadata = {_WATERMARK: 0}
    rows = _in_buckets(_selected(frame, plan), buckets)
    grouped = rows.mapInArrow(Pack(plan, spread(buckets)), packed).groupBy(BUCKET)
    processor = StreamBuckets(plan, buckets, time_mode != "None")
    if hasattr(grouped, "transformWithState"):
        states = grouped.transformWithState(Operator(processor), settled, "Append", time_mode)
    else:
        states = grouped.transformWithStateInPandas(PandasOperator(processor), settled, "Append", time_mode)
    answers = (
        states.mapInArrow(Unpack(plan), StructType(result))
        .observe(metrics, F.coalesce(F.sum(LATE), F.lit(0)).alias("late"), F.count("width").alias("answers"))
        .where(F.col("width").isNotNull())
    )
    return _named(answers.drop(LATE), plan)


def _partitions(frame: DataFrame) -> int:
    return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)


def _named(answers: DataFrame, plan: Plan) -> DataFrame:
    return answers.drop(KEY) if plan.key is None else answers.withColumnRenamed(KEY, plan.key)


def _selected(frame: DataFrame, plan: Plan) -> DataFrame:
    """Select key, time and fields, under names that cannot collide."""
    key = F.lit(0).cast("long") if plan.key is None else named(plan.key)
    if isinstance(plan.key_type, DoubleType | FloatType):
        # 0.0 equals -0.0, and NaN equals NaN, as in Spark's own groups.
        key = F.when(key == 0, F.lit(0.0)).when(F.isnan(key), F.lit(float("nan"))).otherwise(key).cast(plan.key_type)
    fields = [named(name).alias(_FIELD + name) for name in plan.fields]
    return frame.select(key.alias(KEY), named(plan.time).alias(_TIME), *fields)


def _in_buckets(rows: DataFrame, buckets: int) -> DataFrame:
    """Put the bucket of each row before its columns."""
    bucket = F.pmod(F.xxhash64(KEY), F.lit(buckets)).cast("int")
    return rows.select(bucket.alias(BUCKET), *rows.columns)
