"""A `foreachBatch` sink: every task pushes its own partition into a window.

    driver      check the schema once ──┐                        ┌── add up and log the counts
    executors                           ├─ rows -> Arrow -> bulks ─┤
                                        └─ rows -> Arrow -> bulks ─┘   one row of counts per partition

Rows travel as Arrow columns from Spark to the client, and as bytes from there: no Python object per row. The
driver sees four counts per partition and no data.

Order. Rows of one partition arrive in their order; partitions arrive in none. Where arrival order matters (equal
times; what is late), keep a key in one partition: `repartition(key).sortWithinPartitions(…)`.

Guarantee: at least once. A task that Spark retries pushes its rows again.
"""

from __future__ import annotations

import logging
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, TimestampNTZType, TimestampType

from sash_client import Client, InvalidArgument, WriteResult

__all__ = ["BatchReport", "SashSink", "sash_sink"]

_log = logging.getLogger("sash_spark")

_COUNTS = "arrived long, inserted long, late long, evicted long"
_TIME, _KEY, _FIELD = "time", "key", "field_"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What became of the rows of one micro-batch, or of several: `inserted + late == arrived`.

    Args:
        batch_id: Spark's id of the (last) micro-batch; -1 before the first.
        arrived: rows that the tasks pushed.
        inserted: rows that are, or were, in the window.
        late: rows older than what the window had evicted already.
        evicted: entries that the window's slide policy evicted meanwhile.
        seconds: time that the pushes took, end to end.
    """

    batch_id: int = -1
    arrived: int = 0
    inserted: int = 0
    late: int = 0
    evicted: int = 0
    seconds: float = 0.0

    def plus(self, later: BatchReport) -> BatchReport:
        """This report and a later one, together."""
        return BatchReport(
            later.batch_id,
            self.arrived + later.arrived,
            self.inserted + later.inserted,
            self.late + later.late,
            self.evicted + later.evicted,
            self.seconds + later.seconds,
        )


def sash_sink(
    target: str,
    *,
    window: str,
    time: str,
    key: str | None = None,
    fields: Mapping[str, str] | Sequence[str] | str | None = None,
    rows_per_call: int = 65_536,
    timeout_s: float = 60.0,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> SashSink:
    """Return a sink for `DataFrame.writeStream.foreachBatch`.

    Args:
        target: host and port of the gRPC edge, as the executors reach it.
        window: name of a window that exists.
        time: the column with the time: a timestamp, or integers (ticks).
        key: the column with the key, for a keyed window; cast to string.
        fields: columns for the window's fields: field -> column, or names where both are called the same; all
            of the window's fields, by their own names, where omitted.
        rows_per_call: rows that a task gathers before it sends them.
        timeout_s: seconds that one such call may take.
        on_batch: called on the driver after each micro-batch.
    """
    if rows_per_call < 1:
        raise InvalidArgument("rows_per_call must be positive", field="rows_per_call")
    if isinstance(fields, str):
        fields = [fields]
    if fields is not None and not isinstance(fields, Mapping):
        fields = {name: name for name in fields}
    return SashSink(target, window, time, key, fields, rows_per_call, timeout_s, on_batch)


@dataclass
class SashSink:
    """Pushes micro-batches into one window; make it with `sash_sink`.

    `total` adds up all micro-batches that this object has pushed. Errors of the service (`SashClientError`)
    fail the micro-batch; those about its shape are raised on the driver before anything is pushed.
    """

    target: str
    window: str
    time: str
    key: str | None
    fields: Mapping[str, str] | None
    rows_per_call: int
    timeout_s: float
    on_batch: Callable[[BatchReport], None] | None = None
    total: BatchReport = field(default_factory=BatchReport, init=False)
    _push: _Push | None = field(default=None, init=False, repr=False)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Push one micro-batch, whole, before returning."""
        if self._push is None:
            self._push = self._checked(batch)
        started_s = clock.perf_counter()
        parts = self._columns(batch).mapInArrow(self._push, _COUNTS).collect()
        arrived, inserted, late, evicted = (sum(part[i] for part in parts) for i in range(4))
        report = BatchReport(batch_id, arrived, inserted, late, evicted, clock.perf_counter() - started_s)
        self.total = self.total.plus(report)
        _log.info(
            "%s: batch %d, %d rows from %d tasks: %d inserted, %d late, %d evicted; %.2f s",
            *(self.window, batch_id, arrived, len(parts), inserted, late, evicted, report.seconds),
        )
        if self.on_batch is not None:
            self.on_batch(report)

    def _columns(self, batch: DataFrame) -> DataFrame:
        # Aliases keep the columns apart in the executors, whatever the window's fields are called.
        columns = [_column(self.time).alias(_TIME)]
        if self.key is not None:
            columns.append(_column(self.key).cast("string").alias(_KEY))
        assert self.fields is not None
        columns += [_column(column).alias(_FIELD + name) for name, column in self.fields.items()]
        return batch.select(*columns)

    def _checked(self, batch: DataFrame) -> _Push:
        with Client(self.target, timeout_s=self.timeout_s) as client:
            spec = client.window(self.window).describe().spec
        known = list(spec["fields"])
        if self.fields is None:
            self.fields = {name: name for name in known}
        if spec["keyed"] != (self.key is not None):
            raise InvalidArgument(
                f"window {self.window!r} is {'keyed: name the key column' if spec['keyed'] else 'not keyed'}",
                field="key",
            )
        if set(self.fields) != set(known):
            raise InvalidArgument(
                f"window {self.window!r} has the fields {', '.join(known)}, not {', '.join(self.fields)}",
                field="fields",
            )
        columns = {f.name: f.dataType for f in batch.schema.fields}
        for wanted in [self.time, *([self.key] if self.key else []), *self.fields.values()]:
            if wanted not in columns:
                raise InvalidArgument(f"no column {wanted!r}; there are {', '.join(columns)}", field=wanted)
        kind = columns[self.time]
        if not isinstance(kind, TimestampType | TimestampNTZType | IntegralType):
            raise InvalidArgument(
                f"column {self.time!r} is a {kind.simpleString()}: cast it to a timestamp, or to ticks",
                field=self.time,
            )
        return _Push(
            self.target, self.window, tuple(self.fields), self.key is not None, self.rows_per_call, self.timeout_s
        )


@dataclass(frozen=True)
class _Push:
    """What a task runs over its partition; pickled to the executors, so it holds settings only."""

    target: str
    window: str
    fields: tuple[str, ...]
    keyed: bool
    rows_per_call: int
    timeout_s: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived, done = 0, WriteResult()
        with Client(self.target, timeout_s=self.timeout_s) as client:
            window = client.window(self.window)
            for table in _gathered(batches, self.rows_per_call):
                arrived += table.num_rows
                done += window.bulk_insert(
                    table[_TIME],
                    {name: table[_FIELD + name] for name in self.fields},
                    keys=table[_KEY] if self.keyed else None,
                )
        counts = {"arrived": arrived, "inserted": done.inserted, "late": done.late, "evicted": done.evicted}
        yield pa.RecordBatch.from_pydict({name: pa.array([n], pa.int64()) for name, n in counts.items()})


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")  # a dot in a name is a dot, not a path


def _gathered(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[Any]:
    """Yield the rows of small batches as tables of `rows` rows; the last one may be shorter."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, rows - count)
            held.append(part)
            start, count = start + part.num_rows, count + part.num_rows
            if count == rows:
                yield pa.Table.from_batches(held)
                held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)
