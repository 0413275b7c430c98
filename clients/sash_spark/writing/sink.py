"""A `foreachBatch` sink: every task stages its own partition, and the driver commits the micro-batch once.

    driver      is it committed already? ──┐                          ┌── commit in the order of partitions, count
    executors                              ├─ rows ─▶ Arrow ─▶ stage ─┤
                                           └─ rows ─▶ Arrow ─▶ stage ─┘   names of stages, and how many rows

Rows travel as Arrow columns from Spark to the client, and as bytes from there: no Python object per row. The
driver sees the names of the stages and no data.

Guarantee: each micro-batch of a streaming query is applied exactly once, however often tasks, the micro-batch or the
driver run again, if the window's `durability` survives the service's crashes. `route.py` shows how. Spark stores the
query's id in its checkpoint. A query with another checkpoint is another query and writes everything again; a query with
a copied checkpoint is the same query.

Order: the micro-batch is one bulk, with the rows in the order of partitions and in each partition's own order. If the
order of arrival matters (for equal times), keep the rows of a key in one partition, and pass `sort=`.
"""

from __future__ import annotations

import json
import os
import pickle
import time as clock
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StringType

from sash_client import FailedPrecondition, InvalidArgument, WriteResult
from sash_spark.login import Login
from sash_spark.writing.bad_rows import bad_rows_of
from sash_spark.writing.paths import column_of, flat
from sash_spark.writing.preaggregate import prepared
from sash_spark.writing.route import QUERY_ID, Outcome, Route, batch_name, check_nulls, named_fields, sort_columns

_OUTCOME = "outcome binary"

_OUTCOMES = (
    *("inserted", "late", "evicted", "duplicates", "already_applied"),
    *("ahead", "corrected", "retracted", "missing"),
)
"""What a report has of the result of the commit."""

_RUN_ID = "spark.jobGroup.id"  # Spark runs each run of a streaming query as one group of jobs
_CONNECT_WORKER = "SPARK_CONNECT_LOCAL_URL"
"""Set in the Python process that Spark Connect starts for each run of a streaming query's `foreachBatch`."""
_PROCESS_ID = uuid.uuid4().hex
"""Used in place of the run's id with Spark Connect, which does not provide it."""

_done: dict[tuple[str, str, str], tuple[str, int]] = {}
"""(target, window, query) -> the last batch that sinks of this process have written, and its run."""


def sash_sink(
    target: str,
    *,
    window: str,
    time: str,
    key: str | None = None,
    parts: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | Sequence[str] | str | None = None,
    query: str | None = None,
    checkpoint: str | None = None,
    rows_per_call: int = 131_072,
    timeout_s: float = 60.0,
    preaggregate: bool = False,
    on_batch: Callable[[BatchReport], None] | None = None,
    bad_rows: Literal["fail", "drop"] | Callable[[DataFrame, int], None] = "fail",
    sort: bool | str | Sequence[str] = False,
    op: str | None = None,
    login: Login | None = None,
    nulls: Literal["fail", "ignore"] = "fail",
) -> SashSink:
    """Return a sink for `DataFrame.writeStream.foreachBatch`.

    Args:
        target: host and port of the gRPC edge, as the executors reach it.
        window: name of a window that exists.
        time: the column with the time: a timestamp, or integers (ticks).
        key: the column with the key, for a keyed window; cast to string.
        parts: columns for the parts of keys, for a window with `keys`: part -> column. Other parts are columns of their
            own name. They are cast to string.
        fields: columns for the window's fields: field -> column, or names where both are called the same; all
            of the window's fields, by their own names, where omitted.
        query: a name for each of several sinks that one streaming query has for one window. Needed where there is no
            streaming query (a batch DataFrame): then it alone tells who writes. Its batch ids only grow, and one that
            is not above the last is taken for a retry.
        checkpoint: the streaming query's `checkpointLocation`. Pass it over Spark Connect, which does not tell the
            query's id: the sink reads it there, in the micro-batch's own session. It is not used elsewhere.
        rows_per_call: rows that a task gathers before it sends them.
        timeout_s: seconds that one call may take, retries included.
        preaggregate: have tasks fold rows into panes, and write those: for a window with a granularity; see
            `preaggregate.py`.
        on_batch: called on the driver after each micro-batch.
        bad_rows: what to do with rows that the window would refuse: a null time, key or value, an empty or long key,
            a time that does not fit. "fail" fails the micro-batch and names a column and a row; "drop" leaves them out.
            A function gets them as a DataFrame, with the micro-batch's id, before the others are committed; after a
            failure it gets them again. They are counted in the reports.
        sort: columns that each task sorts its rows by before it sends them, or True for the time; the task then holds
            all of its rows in memory. Rows that are equal keep their order.
        op: the column of a change feed that says what becomes of the entry: insert, update or delete. For a window with
            an `identity`; all rows of an entry must be in one partition, in order; see `changes.py`.
        login: the credentials for the service: token and TLS.
        nulls: "ignore" writes nulls of fields that may be null (`nullable` in the window's spec), which its aggregates
            ignore, as Spark's do. "fail" takes rows with nulls for bad rows.
    """
    if rows_per_call < 1:
        raise InvalidArgument("rows_per_call must be positive", field="rows_per_call")
    if isinstance(bad_rows, str) and bad_rows not in ("fail", "drop"):
        raise InvalidArgument(f"bad_rows {bad_rows!r} is unknown", field="bad_rows", limit="fail, drop or a function")
    if preaggregate and nulls != "fail":
        raise InvalidArgument("panes have no nulls: leave nulls out, or write rows", field="nulls")
    if preaggregate and (bad_rows != "fail" or sort or op):
        raise InvalidArgument(
            "panes are neither checked nor sorted here, and have no changes: filter rows before",
            field="bad_rows" if bad_rows != "fail" else "sort" if sort else "op",
        )
    if op is not None and not isinstance(bad_rows, str):
        raise InvalidArgument("a change feed drops bad rows, or fails", field="bad_rows", limit="fail or drop")
    route = Route(
        *(target, window, time, key, named_fields(fields), rows_per_call, timeout_s),
        panes=preaggregate,
        drops_bad_rows=bad_rows != "fail",
        sort=sort_columns(sort, time),
        login=login or Login(),
        parts=parts,
        op=op,
        nulls=check_nulls(nulls),
    )
    return SashSink(route, query, on_batch, checkpoint, None if isinstance(bad_rows, str) else bad_rows)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The outcome of the rows of one micro-batch, or of several:

    `inserted + late + duplicates + ahead + bad + corrected + retracted + missing + merged == arrived`.

    Args:
        batch_id: Spark's id of the (last) micro-batch; -1 before the first.
        arrived: rows that the tasks have read.
        inserted: rows that are, or were, in the window.
        late: rows older than what the window has evicted.
        evicted: entries that the window's slide policy has evicted.
        seconds: time that it took, end to end.
        duplicates: rows of a time that the window already has, if it keeps one entry of each time.
        already_applied: the micro-batch (of several: one of them) was committed before, by a run that ended before
            Spark knew. This changed nothing and is in no other count, except `arrived` if it showed only at the end.
        staged: rows that went to the service; panes with pre-aggregation.
        ahead: rows too far ahead of wall time, by the window's `order.ahead`.
        bad: rows that were dropped because the window would refuse them.
        corrected, retracted: entries that the rows of a change feed have updated, and deleted.
        missing: entries that such rows name, and that are not in the window.
        merged: rows of a change feed that became part of another row of the same entry, or of nothing.
    """

    batch_id: int = -1
    arrived: int = 0
    inserted: int = 0
    late: int = 0
    evicted: int = 0
    seconds: float = 0.0
    duplicates: int = 0
    already_applied: bool = False
    staged: int = 0
    ahead: int = 0
    bad: int = 0
    corrected: int = 0
    retracted: int = 0
    missing: int = 0
    merged: int = 0

    def plus(self, later: BatchReport) -> BatchReport:
        """Add a later report to this one."""
        both = {each.name: getattr(self, each.name) + getattr(later, each.name) for each in fields(self)}
        already_applied = self.already_applied or later.already_applied
        return BatchReport(**both | {"batch_id": later.batch_id, "already_applied": already_applied})


@dataclass
class SashSink:
    """Writes micro-batches to one window; made by `sash_sink`, and called once for each micro-batch.

    `total` adds up the reports of all micro-batches. Errors of the service (`SashClientError`)
    fail the micro-batch; those about its shape are raised on the driver before anything is staged.
    """

    route: Route
    query: str | None = None
    on_batch: Callable[[BatchReport], None] | None = None
    checkpoint: str | None = None
    on_bad_rows: Callable[[DataFrame, int], None] | None = None
    total: BatchReport = field(default_factory=BatchReport, init=False)
    _fitted: Route | None = field(default=None, init=False, repr=False)
    _checkpoint_id: str | None = field(default=None, init=False, repr=False)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch.

        Raises:
            InvalidArgument: it does not fit the window; there is no id and no `query`; or the streaming query has
                another sink for the window, which `query` does not tell from this one.
            FailedPrecondition: a stage has expired, as the micro-batch took more than an hour; or an earlier run wrote
                a batch of this number and name, and it is not sure that it wrote these rows.
        """
        started_s = clock.perf_counter()
        route = self._fitted = self._fitted or self.route.fitted(batch.schema)
        query_id, run_id = self._running(batch)
        query = batch_name(query_id, self.query)
        known = route.target, route.window, query
        if run_id is not None and _done.get(known) == (run_id, batch_id):
            # The service would take it for a retry and ignore its rows.
            raise InvalidArgument(
                f"batch {batch_id} has come to window {route.window!r} in this run before: "
                "where a streaming query has two sinks for one window, each needs a name, query=…",
                field="query",
            )
        # An earlier run can have committed only the first micro-batch of this run: check before computing it.
        if _done.get(known) != (run_id, batch_id - 1) and route.is_committed(query, batch_id):
            if run_id is not None:
                _check_replay(route, query, batch_id, query_id is None)
            outcomes, result = list[Outcome](), WriteResult(already_applied=True)
        else:
            outcomes, result = self._written(route, batch, query, batch_id, run_id is not None)
        if run_id is not None:
            _done[known] = run_id, batch_id
        self._report(batch_id, outcomes, result, clock.perf_counter() - started_s)

    def _running(self, batch: DataFrame) -> tuple[str | None, str | None]:
        """Return the ids of the current streaming query and of its run; None if they are unknown."""
        context = getattr(batch.sparkSession, "sparkContext", None)  # Spark Connect has none
        if context is None:
            return self._read_checkpoint_id(batch), _PROCESS_ID if _CONNECT_WORKER in os.environ else None
        if (query_id := context.getLocalProperty(QUERY_ID)) is None:
            return None, None
        return query_id, context.getLocalProperty(_RUN_ID)

    def _read_checkpoint_id(self, batch: DataFrame) -> str | None:
        """Return the query's id that the checkpoint has; None without a checkpoint.

        Raises:
            InvalidArgument: the directory is not a checkpoint, or cannot be read.
        """
        if self.checkpoint is not None and self._checkpoint_id is None:
            path = f"{self.checkpoint.rstrip('/')}/metadata"
            try:
                (row,) = batch.sparkSession.read.text(path).collect()
                self._checkpoint_id = str(json.loads(row[0])["id"])
            except Exception as error:  # of Spark, of any file system, or of the file's form
                raise InvalidArgument(
                    f"checkpoint {self.checkpoint!r} does not tell the query's id: {path} cannot be read: {error}",
                    field="checkpoint",
                ) from error
        return self._checkpoint_id

    def _written(
        self, fitted: Route, batch: DataFrame, query: str, batch_id: int, streaming: bool
    ) -> tuple[list[Outcome], WriteResult]:
        rows, route = _rows(batch, fitted)
        # Spark takes one result of each task, however often it ran; collect() returns them in the order of partitions.
        found = rows.mapInArrow(_Stage(route, query, batch_id), _OUTCOME).collect()
        outcomes: list[Outcome] = [pickle.loads(row["outcome"]) for row in found]
        if self.on_bad_rows is not None and any(each.bad for each in outcomes):
            self.on_bad_rows(batch.mapInArrow(_BadRows(fitted), batch.schema), batch_id)
        return outcomes, route.commit(query, batch_id, outcomes, streaming)

    def _report(self, batch_id: int, outcomes: Sequence[Outcome], result: WriteResult, seconds: float) -> None:
        read = {name: sum(getattr(each, name) for each in outcomes) for name in ("arrived", "staged", "bad", "merged")}
        report = BatchReport(batch_id, seconds=seconds, **read, **{name: getattr(result, name) for name in _OUTCOMES})
        self.total = self.total.plus(report)
        if self.on_batch is not None:
            self.on_batch(report)


def _rows(batch: DataFrame, route: Route) -> tuple[DataFrame, Route]:
    """Return the rows that tasks stage. Spark takes names with dots for paths, so columns have other names here."""
    own = {name: f"c{i}" for i, name in enumerate(route.paths)}
    rows = batch.select(*(column_of(path).alias(own[name]) for name, path in route.paths.items()))
    keys = [own[name] for name in ([route.key] if route.key else (route.parts or {}).values())]
    for key in keys:
        if not isinstance(rows.schema[key].dataType, StringType | IntegralType):
            rows = rows.withColumn(key, F.col(key).cast("string"))
    if route.panes:
        fields = {field: own[name] for field, name in (route.fields or {}).items()}
        rows = prepared(rows, route.spec, own[route.time], keys, fields)
    return rows, replace(route, paths={name: (column,) for name, column in own.items()})


def _check_replay(route: Route, query: str, batch_id: int, checkpoint_unknown: bool) -> None:
    """Check that a committed micro-batch is the one that this checkpoint has committed; raises as the sink does."""
    if batch_id == 0 and checkpoint_unknown:
        raise FailedPrecondition(
            f"batch 0 of query {query!r} was not written to window {route.window!r}: the window has a batch 0 "
            "of this name, and Spark Connect does not tell whether it came from this checkpoint. With a new "
            "checkpoint: pass checkpoint=…, or choose another name, query=…. If a run with this checkpoint ended "
            "in its first batch: the window has these rows, so do not call the sink for batch 0",
            field="checkpoint",
        )
    route.check_last(query, batch_id)


@dataclass(frozen=True)
class _Stage:
    """Stages a partition, in a task. It is pickled to the executors, so it has settings only."""

    route: Route
    query: str
    batch_id: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = self.route.stage(batches, self.query, self.batch_id)
        yield pa.RecordBatch.from_pydict({"outcome": pa.array([pickle.dumps(outcome)], pa.binary())})


@dataclass(frozen=True)
class _BadRows:
    """Finds the bad rows of a partition, in a task."""

    route: Route

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            bad = bad_rows_of(rows, pa.Table.from_batches([flat(batch, self.route.paths)]), self.route.columns)
            if bad is not None:
                yield from bad.to_batches()
