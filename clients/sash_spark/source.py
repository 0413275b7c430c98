"""`format("sash")`: reads and writes windows as Spark tables and streams.

    register(spark)
    spark.read.format("sash").option("target", …).option("window", …).option("what", "series").load()
    spark.readStream.format("sash").option(…).load()
    df.write.format("sash").mode("append").option(…).save()
    df.writeStream.format("sash").option(…).start()

Reading is in `reading/reader.py`, of streams in `stream_reader.py`. Writing is exactly once, as with `sash_sink`:
tasks stage their rows as Arrow columns and send the driver the names of the stages, the driver commits them
(`writing/route.py`).

    writeStream    (query id, batch id)     Spark's own ids; a repeated batch changes nothing
    write          (a new name, 0)          every save() is a new write, however often its tasks run
                   (query, batch)           with the option query: the same save() again changes nothing

Source: Spark's Python data sources (SPARK-44076); since Spark 4.0; Arrow writers of streams and pushed filters
since Spark 4.1.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.types import StructType

from sash_client import DeadlineExceeded, InvalidArgument, Unavailable
from sash_spark.login import LOGIN_OPTIONS, Login
from sash_spark.options import Options
from sash_spark.writing.keys import check_keys
from sash_spark.writing.route import Route, check_nulls, sort_columns
from sash_spark.writing.writers import BatchWriter

_OPTIONS = {
    "target",
    "window",
    "time",
    "key",
    "parts",
    "fields",
    "query",
    "batch",
    "rows_per_call",
    "timeout_s",
    "bad_rows",
    "sort",
    "op",
    "nulls",
    *LOGIN_OPTIONS,
}


_REACHED_S = 10.0
"""How long `save` tries to reach the service before it fails: a wrong target is the likely reason."""


def register(spark: SparkSession) -> None:
    """Register `format("sash")` in a session, unless Spark has found it in `pyspark_sash` by itself."""
    session = getattr(spark, "_jsparkSession", None)  # Spark Connect has none; its server knows what it has found
    if session is not None and session.sessionState().dataSourceManager().dataSourceExists("sash"):
        return  # to replace it changes nothing, and Spark would warn of it
    try:
        spark.dataSource.register(SashDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # The server of Spark Connect 4.0 has found it. Later versions register it again.


class SashDataSource(DataSource):
    """The data source; `register` adds it to a session.

    Options to read: `target`, `window`; `what` (entries, the default, answers or series); `keys` (comma-separated);
    `combine` (true: one answer over all keys); `lookback` (comma-separated) and `as_of` for answers; `start` and `end`
    (ticks, or ISO 8601) for entries and series; `step` and `width` for series; `aggregates` (comma-separated; all where
    omitted); `partitions`; `pushdown` (true: use Spark's filters; `reading/reader.py` says why it is off by default);
    `timeout_s`.

    Options to read a stream: `target`, `window`, `what` (entries or series), `keys`, `combine`, `start`, `step`,
    `aggregates`, `partitions`, `timeout_s`, and `delay`; `stream_reader.py` describes them.

    Options to write: `target`, `window`, `time`, `key`; `parts` and `fields` (comma-separated: names, or field=column);
    `query`, `batch`; `rows_per_call`; `timeout_s`; `bad_rows` (fail or drop); `sort` (true, or columns with commas);
    `op`; `nulls` (fail or ignore). They mean what the arguments of `sash_sink` mean.

    Options of both: `token`, or `token_file`; `tls`, `tls.ca`, `tls.cert`, `tls.key`, `tls.name`, as in `Login`.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "sash"

    def schema(self) -> StructType:
        """Return the columns of a read; `schema(…)` may name some of them."""
        from sash_spark.reading.question import Question

        return Question.of(Options(self.options)).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader."""
        from sash_spark.reading.question import Question  # imported here, because tasks that write do not need it
        from sash_spark.reading.reader import PushedReader, Reader

        options = Options(self.options)
        kind = PushedReader if options.flag("pushdown") else Reader
        return kind(Question.of(options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make the reader of a streaming query."""
        from sash_spark.reading.question import Question
        from sash_spark.reading.stream_reader import StreamReader

        return StreamReader(Question.of(Options(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Make the writer of `save`."""
        options = Options(self.options)
        options.only(_OPTIONS)
        batch = options.number("batch", 0, least=0)
        query = options.text("query")
        if query is None and batch:
            raise InvalidArgument("a batch is one of a query: name it, too", field="query")
        return BatchWriter(_route(options, schema, overwrite, waits=False), query or f"save-{uuid.uuid4()}", batch)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Make the writer of a streaming query."""
        try:
            from sash_spark.writing.stream_writer import StreamWriter
        except ImportError:
            raise ImportError(
                'writeStream.format("sash") needs Spark 4.1; foreachBatch(sash_sink(…)) works with this version'
            ) from None
        options = Options(self.options)
        options.only(_OPTIONS - {"batch"} | {"checkpointlocation", "queryname"})  # Spark passes these, too
        return StreamWriter(_route(options, schema, overwrite, waits=True), options.text("query"))


def _route(options: Options, schema: StructType, overwrite: bool, *, waits: bool) -> Route:
    """Read the options.

    Args:
        waits: whether a service that is away now is waited for when rows come; else that is an error here.
    """
    if overwrite:
        raise InvalidArgument('a window is appended to: write with mode("append")', field="mode")
    route = Route(
        target=options.required("target"),
        window=options.required("window"),
        time=options.required("time"),
        key=options.text("key"),
        fields=_columns(options, "fields"),
        rows_per_call=options.number("rows_per_call", 131_072, least=1),
        timeout_s=options.seconds("timeout_s", 60.0),
        drops_bad_rows=_drops(options),
        sort=_sort(options),
        login=Login.of(options),
        parts=_columns(options, "parts"),
        op=options.text("op"),
        nulls=check_nulls(options.text("nulls") or "fail"),
    )
    # A stream outlives a service that is away for a while, and finds its errors later.
    with suppress(*((Unavailable, DeadlineExceeded) if waits else ())):
        if not waits:
            with route.client() as client:
                client.wait_until_ready(min(route.timeout_s, _REACHED_S))
        route = route.fitted(schema)
    check_keys(schema, [route.key] if route.key else (route.parts or {}).values())
    return route


def _drops(options: Options) -> bool:
    chosen = options.text("bad_rows") or "fail"
    if chosen not in ("fail", "drop"):
        raise InvalidArgument(f"bad_rows {chosen!r} is unknown", field="bad_rows", limit="fail or drop")
    return chosen == "drop"


def _sort(options: Options) -> tuple[str, ...]:
    chosen = (options.text("sort") or "false").strip()
    if chosen.lower() in ("true", "false"):
        return sort_columns(chosen.lower() == "true", options.required("time"))
    return sort_columns(options.names("sort") or [], "")


def _columns(options: Options, option: str) -> Mapping[str, str] | None:
    names = options.names(option)
    if names is None:
        return None
    split: list[tuple[str, str, str]] = [name.partition("=") for name in names]
    return {name.strip(): column.strip() or name.strip() for name, _, column in split}
