"""Reads and parses the records of a pipeline, and finds the bad ones.

source ──▶ columns of the source ──▶ c0, c1, … of the expressions ──▶ verdict   null: good
           (and _corrupt_record)                                                "": left out by `where`
                                                                                else: the reason
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, TimestampType

from sash_client import InvalidArgument
from sash_client.errors import refusing
from sash_spark.config import FileSource, KafkaSource, PipelineConfig, RateSource, Target
from sash_spark.names import named
from sash_spark.writing.casts import check_field
from sash_spark.writing.route import Nulls

VERDICT, RECORD, AT = "verdict", "record", "at"
"""Columns: why a row is bad, its text if it is bad, and its time in microseconds if it is an instant."""
LEFT_OUT = ""
"""The verdict on rows that `where` excludes. Good rows have a null, bad rows a reason."""

_CORRUPT = "_corrupt_record"
_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
_KEY_BYTES_MAX = 512


@dataclass(frozen=True)
class TargetColumns:
    """The columns of judged rows that a window reads, as arguments of `sash_sink`."""

    time: str
    key: str | None
    fields: Mapping[str, str]
    parts: Mapping[str, str] | None = None
    nulls: Nulls = "fail"

    @property
    def keys(self) -> list[str]:
        """The column of the key, or those of its parts."""
        return [self.key] if self.key is not None else list((self.parts or {}).values())


@dataclass(frozen=True)
class Judged:
    """A stream of rows with a verdict.

    Args:
        rows: the columns that windows read and that sort rows, and `verdict`, `record` and `at`.
        targets: the columns for each window.
        order: the columns to sort by.
    """

    rows: DataFrame
    targets: tuple[TargetColumns, ...]
    order: tuple[str, ...]

    def ordered(self, batch: DataFrame) -> DataFrame:
        """Sort a micro-batch; rows of one key (of the first window) stay in one partition."""
        if not self.order:
            return batch
        keys = self.targets[0].keys
        together = batch.repartition(*keys) if keys else batch.coalesce(1)
        return together.sortWithinPartitions(*self.order)


# ---------------------------------------------------------------- reading


def read(spark: SparkSession, source: FileSource | KafkaSource | RateSource) -> DataFrame:
    """Read a source as a stream of its columns, with `_corrupt_record` for records that fail to parse.

    Raises:
        InvalidArgument: its schema is wrong, its directory does not exist, or Spark lacks the connector.
    """
    options = _texts(source.options)
    if isinstance(source, RateSource):
        return spark.readStream.format("rate").options(rowsPerSecond=source.rows_per_second, **options).load()
    try:
        spark.createDataFrame([], source.ddl)
    except (ParseException, AnalysisException) as error:
        raise _not_sql(error, "source.schema") from None
    if isinstance(source, KafkaSource):
        return parsed(_kafka(spark, source, options), source)
    reader, ddl = spark.readStream.format(source.format).options(**options), source.ddl
    if source.format in ("json", "csv"):
        reader, ddl = reader.options(**_PERMISSIVE), f"{ddl}, {_CORRUPT} string"
    try:
        return reader.schema(ddl).load(source.path)
    except AnalysisException as error:
        raise _not_sql(error, "source.path") from None


def parsed(records: DataFrame, source: KafkaSource) -> DataFrame:
    """Parse the records of Kafka: the columns of their values, and `_corrupt_record` for values that fail to parse.

    Args:
        records: the rows of Spark's Kafka source: topic, partition, offset, timestamp, key and value (binary).
        source: the format and the schema of values.

    Returns:
        these columns, and `kafka_topic`, `kafka_partition`, `kafka_offset`, `kafka_time` and `kafka_key` (string).
    """
    parse = F.from_json if source.value == "json" else F.from_csv
    schema, options = f"{source.ddl}, {_CORRUPT} string", _texts(source.parse) | _PERMISSIVE
    found = records.select(
        parse(F.col("value").cast("string"), schema, options).alias("parsed"),
        F.col("value").isNull().alias("kafka_empty"),
        *(F.col(name).alias(f"kafka_{name}") for name in ("topic", "partition", "offset")),
        F.col("timestamp").alias("kafka_time"),
        F.col("key").cast("string").alias("kafka_key"),
    )
    rows = found.select("parsed.*", *found.columns[1:])
    # Without this, a record without a value would count as one whose columns are all null.
    return rows.withColumn(_CORRUPT, F.when(F.col("kafka_empty"), "").otherwise(F.col(_CORRUPT))).drop("kafka_empty")


def _kafka(spark: SparkSession, source: KafkaSource, options: Mapping[str, str]) -> DataFrame:
    where = {"kafka.bootstrap.servers": source.servers, "subscribe": source.topic, "startingOffsets": source.starting}
    try:
        return spark.readStream.format("kafka").options(**(where | dict(options))).load()
    except AnalysisException as error:
        if "Failed to find data source" not in str(error):
            raise
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
        raise InvalidArgument(
            f"source.format: this Spark has no Kafka connector; spark-submit --packages {package} brings it",
            field="source.format",
        ) from None


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


# ---------------------------------------------------------------- judging


def judged(source: DataFrame, config: PipelineConfig, specs: Sequence[Mapping[str, Any]]) -> Judged:
    """Compute the columns that windows read of each record, and its verdict.

    Args:
        source: the columns of the source.
        config: has the expressions.
        specs: of the windows, as the service has them.

    Raises:
        InvalidArgument: an expression is not one, or has a wrong type; `field` is its place in the configuration.
    """
    rows = source
    for name, text in config.columns.items():
        field = f"columns.{name}"
        if name in source.columns:
            raise InvalidArgument(f"{field}: the source has a column of that name", field=field)
        _type_of(rows, text, field)
        rows = rows.withColumn(name, F.expr(text))
    if config.where is not None:
        _type_of(rows, config.where, "where")
    expressions = _Expressions(rows)
    targets = tuple(
        _target_columns(expressions, config, i, target, spec)
        for i, (target, spec) in enumerate(zip(config.windows, specs, strict=True))
    )
    order = tuple(expressions.column(text, f"order_by[{i}]") for i, text in enumerate(config.order_by))
    keys = {tuple(target.keys): target.parts is not None for target in targets if target.keys}
    verdict = _verdict(_CORRUPT in source.columns, config.where, expressions.needed, keys)
    found = rows.select("*", *expressions.selected()).withColumn(VERDICT, verdict)
    record = F.when(F.col(VERDICT) != LEFT_OUT, _record(source.columns)).alias(RECORD)
    instant = isinstance(expressions.types[targets[0].time], TimestampType)
    at = F.unix_micros(targets[0].time) if instant else F.lit(None).cast("bigint")
    return Judged(found.select(*expressions.names.values(), VERDICT, record, at.alias(AT)), targets, order)


class _Expressions:
    """Names SQL expressions c0, c1, …; equal expressions get one column."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows
        self.names: dict[str, str] = {}
        self.types: dict[str, DataType] = {}
        self.needed: dict[str, str] = {}
        """Columns that may not be null -> the verdict on a row in which they are."""

    def column(self, text: str, field: str, why: str | None = None) -> str:
        """Return the name of an expression's column.

        Args:
            text: the expression.
            field: its place in the configuration.
            why: the verdict on a row in which it is null; None: it may be null.
        """
        if text not in self.names:
            name = f"c{len(self.names)}"
            self.types[name] = _type_of(self._rows, text, field)
            self.names[text] = name
        if why is not None:
            self.needed.setdefault(self.names[text], why)
        return self.names[text]

    def typed(self, text: str, kind: str, field: str, why: str | None) -> str:
        """Return the name of an expression's column, cast to the type of a field."""
        found = _type_of(self._rows, text, field)
        try:
            check_field(found, kind, text, decimals=True)
        except InvalidArgument as error:
            raise InvalidArgument(f"{field}: {error.message}", field=field) from None
        if isinstance(found, DecimalType):
            text = f"cast(({text}) as {'double' if kind == 'float64' else 'bigint'})"
        return self.column(text, field, why)

    def selected(self) -> list[Column]:
        """Return all columns."""
        return [F.expr(text).alias(name) for text, name in self.names.items()]


def _target_columns(
    expressions: _Expressions, config: PipelineConfig, i: int, target: Target, spec: Mapping[str, Any]
) -> TargetColumns:
    found = refusing(config.sources)(i, spec)
    place = f"windows[{i}]"
    at = expressions.column(found.time, f"{place}.time" if target.time else "time", f"time ({found.time}) is null")
    key = None
    if found.key is not None:
        field = f"{place}.key" if target.key else "key"
        key = expressions.column(f"cast(({found.key}) as string)", field, f"key ({found.key}) is null")
    path = "parts" if target.parts is None else f"{place}.parts"
    parts = {
        name: expressions.column(f"cast(({text}) as string)", f"{path}.{name}", f"{name} is null")
        for name, text in found.parts.items()
    }
    fields, nullable = {}, spec.get("nullable") or ()
    for name, text in found.fields.items():
        why = None if name in nullable else f"{name} is null"
        fields[name] = expressions.typed(text, spec["fields"][name], f"{place}.fields.{name}", why)
    return TargetColumns(at, key, fields, parts or None, "ignore" if nullable else "fail")


def _verdict(
    may_be_corrupt: bool, where: str | None, needed: Mapping[str, str], keys: Mapping[tuple[str, ...], bool]
) -> Column:
    """Return why a row is bad; `keys` has the columns of keys, and whether they are parts."""
    cases = [(F.col(_CORRUPT).isNotNull(), "cannot be parsed")] if may_be_corrupt else []
    if where is not None:
        cases.append((~F.coalesce(F.expr(where), F.lit(False)), LEFT_OUT))
    cases += [(F.col(name).isNull(), why) for name, why in needed.items()]
    length = f"key is not 1 to {_KEY_BYTES_MAX} bytes long"
    for names, are_parts in sorted(keys.items()):
        # "\\" stands before each "|" and "\\" of a part. An empty part is one; the key of one empty part has two bytes.
        texts = [F.regexp_replace(name, r"[|\\]", "__") if are_parts else F.col(name) for name in names]
        size = sum((F.octet_length(text) for text in texts[1:]), F.octet_length(texts[0]) + len(texts) - 1)
        cases.append((~size.between(0 if are_parts else 1, _KEY_BYTES_MAX), length))
    verdict = F.lit(None).cast("string")
    for condition, why in reversed(cases):
        verdict = F.when(condition, why).otherwise(verdict)
    return verdict


def _record(names: Sequence[str]) -> Column:
    """Return a record as text: its own if it failed to parse, else its columns as JSON."""
    record = F.to_json(F.struct(*(named(name) for name in names if name != _CORRUPT)))
    return F.coalesce(F.col(_CORRUPT), record) if _CORRUPT in names else record


def _type_of(rows: DataFrame, text: str, field: str) -> DataType:
    try:
        return rows.select(F.expr(text)).schema[0].dataType
    except (ParseException, AnalysisException) as error:
        raise _not_sql(error, field) from None


def _not_sql(error: Exception, field: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {str(error).strip().splitlines()[0]}", field=field)
