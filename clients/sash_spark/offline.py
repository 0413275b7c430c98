"""Answers about pairs from a DataFrame of history: a join of two DataFrames, without a service.

    entries   key  time  fields  ──▶ buckets of keys ─┐
                                                      ├──▶ cogroup ──▶ sash_client.offline, for each bucket ──▶ rows
    pairs     key  time  label   ──▶ buckets of keys ─┘

A call deals with all keys of a bucket, because a call costs as much as thousands of rows. A task has the entries and
the pairs of one bucket in memory. The answers do not depend on which keys share a bucket, to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from sash_client.data.bulks import ENTRIES, KEY, TIME
from sash_client.data.features import named_beside
from sash_client.offline import answers_at, spec_of_history
from sash_client.windows.questions import to_lookbacks
from sash_spark.names import named
from sash_spark.reading.answer_columns import FIELD_TYPES, AnswerColumn
from sash_spark.sliding.keys import exact
from sash_spark.sliding.plan import refused
from sash_wire.features import feature, of_aggregate

_BUCKETS = 4
"""Buckets for each partition: a task has one of them in memory."""


def answers_offline(
    entries: DataFrame,
    pairs: DataFrame,
    spec: Mapping[str, Any] | str,
    *,
    entry_time: str | None = None,
    entry_key: str | None = None,
    time: str | None = None,
    key: str | None = None,
    lookbacks: Sequence[str] = (),
    where: Any = None,
    aggregates: str | Sequence[str] | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """Answer about many pairs of a key and a time from a table of history, as a window with these entries answers.

        features = answers_offline(payments, labels, spec, key="card", time="paid", lookbacks=["1h", "1d"])

    Args:
        entries: a table with a column for each field; others are not read. Rows of one key and time count in the order
            of the DataFrame.
        pairs: a table with the times and the keys; its other columns stay.
        spec, entry_time, entry_key, time, key, lookbacks, where, aggregates: as of `sash_client.offline.answers_at`.
            Columns are found in any case of their names, as in Spark.
        buckets: how many buckets the keys are put in, by their hash; four for each partition of a shuffle if None. With
            more of them, a task needs less memory.

    Returns:
        the rows of `pairs`, in any order, with a column for each aggregate and lookback. A column that `pairs` has
        already is in `aggregates.NAME`.

    Raises:
        InvalidArgument: the spec, a column or an argument does not fit. On the executors: missing values, or values of
            another type, in a column that is read.
    """
    if not hasattr(entries.groupBy().cogroup(pairs.groupBy()), "applyInArrow"):
        raise refused("answers_offline needs Spark 4.0", "entries")
    window = spec_of_history(spec)
    parts = window.parts or ((KEY,) if window.keyed else ())
    of_entries = _columns(entries, "entries", entry_time, entry_key, parts, window.fields)
    of_pairs = _columns(pairs, "pairs", time, key, parts, ())
    document, texts = window.document(), to_lookbacks(lookbacks)
    question = {"lookbacks": texts, "where": where, "aggregates": aggregates}
    # Over nothing, here: what is wrong with the question is told at once, and the columns get their names.
    no_keys = {name: pa.array([], pa.string()) for name in parts}
    no_fields = {name: pa.array([], FIELD_TYPES[kind]) for name, kind in window.fields.items()}
    nothing = pa.table({TIME: pa.array([], pa.int64()), **no_keys, **no_fields})
    names = list(answers_at(nothing, nothing[TIME], document, **_keys(nothing, parts), **question).columns)
    answers = _answers(names, document, texts, pairs.columns)
    longer = "_" * (1 + max(map(len, [*entries.columns, *pairs.columns])))  # than the name of every column
    bucket, arrival = longer + "bucket", longer + "arrival"
    count = (buckets or _partitions(entries) * _BUCKETS) if parts else 1
    left = entries.select(
        _bucket(of_entries, parts, count).alias(bucket),
        F.monotonically_increasing_id().alias(arrival),
        *(named(column).alias(name) for name, column in of_entries.items()),
    )
    right = pairs.select("*", _bucket(of_pairs, parts, count).alias(bucket))

    def answer(some: Any, asked: Any) -> Any:
        rows, keys = _in_utc(asked.drop_columns([bucket])), {name: of_pairs[name] for name in parts}
        times = asked[of_pairs[TIME]]
        found = answers_at(some.sort_by(arrival), times, document, **_keys(asked, keys), **question)
        for column, values in zip(answers, found.columns.values(), strict=True):
            rows = rows.append_column(column.name, column.array(values))
        return rows

    result = [StructField(column.name, from_arrow_type(column.type)) for column in answers]
    joined = left.groupBy(bucket).cogroup(right.groupBy(bucket))
    return joined.applyInArrow(answer, StructType([*pairs.schema.fields, *result]))


def _columns(
    frame: DataFrame, what: str, time: str | None, key: str | None, parts: Sequence[str], fields: Collection[str]
) -> dict[str, str]:
    """The columns of a frame: those with the times, the keys or their parts, and the fields, by their own names.

    Raises:
        InvalidArgument: there is no such column, or keys are no strings.
    """
    columns = {TIME: time or TIME, **{name: (key or KEY) if name == KEY else name for name in parts}}
    columns |= {name: name for name in fields}
    found = {name: exact(frame.schema, column) for name, column in columns.items()}
    for column in found.values():
        if column not in frame.columns:
            raise refused(f"{what} have no column {column!r}; there are {', '.join(frame.columns)}", column)
    for name in parts:
        kind = frame.schema[found[name]].dataType
        if not isinstance(kind, StringType):
            raise refused(f"column {found[name]!r} of {what} is a {kind.simpleString()}: cast it to a string", name)
    return found


def _keys(table: Any, columns: Sequence[str] | Mapping[str, str]) -> dict[str, Any]:
    """The keys of a table of Arrow as an argument: by part -> column, or by columns with the names of the parts."""
    if not isinstance(columns, Mapping):
        columns = {name: name for name in columns}
    found = {name: table[column] for name, column in columns.items()}
    return {"keys": found[KEY] if list(found) == [KEY] else found} if found else {}


def _answers(
    names: Sequence[str], spec: Mapping[str, Any], lookbacks: Sequence[str], taken: Sequence[str]
) -> list[AnswerColumn]:
    """The columns of the answers that have these names, behind columns that are there already."""
    known: dict[str, AnswerColumn] = {}
    for lookback in lookbacks or (None,):
        known[feature(ENTRIES, lookback)] = AnswerColumn(ENTRIES, pa.int64())
        for name, aggregate in spec["aggregates"].items():
            known[feature(of_aggregate(name), lookback)] = AnswerColumn.of(name, aggregate, spec["fields"])
    beside = named_beside(names, taken, str.lower)
    return [replace(known[name], name=beside[name]) for name in names]


def _in_utc(table: Any) -> Any:
    """A table of Spark as Spark takes it back: it labels instants with the zone of its session, and wants UTC."""
    return table.cast(pa.schema([field.with_type(_type_in_utc(field.type)) for field in table.schema]))


def _type_in_utc(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        items = [field.with_type(_type_in_utc(field.type)) for field in (kind.key_field, kind.item_field)]
        return pa.map_(*items)
    return kind


def _bucket(columns: Mapping[str, str], parts: Sequence[str], count: int) -> Column:
    if not parts:
        return F.lit(0)
    return F.pmod(F.xxhash64(*(named(columns[name]) for name in parts)), F.lit(count)).cast("int")


def _partitions(frame: DataFrame) -> int:
    return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
