"""Writes a batch to a window exactly once: tasks stage its rows, and the driver commits the stages.

    driver      is the batch committed? ──┐                                    ┌── commit(query, batch, a1 b2)
    task a                                ├─ rows ─▶ stage ─▶ a1 ──────────────┤
    task b, first attempt, lost           ├─ rows ─▶ stage ─▶ b1 ─▶ ✗          │   nobody names b1: it stays invisible
    task b, second attempt                └─ rows ─▶ stage ─▶ b2 ──────────────┘

A stage is invisible until a commit names it, and the service commits each (query, batch) once. The driver names only
the stages of the attempts whose results Spark took. So tasks may run any number of times, and Spark may give some up.
The service applies the stages in the order of partitions, as one write.

The next commit of the query drops the stages that nobody named. Without one, they expire after an hour.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql.types import DataType, IntegralType, StructType, TimestampNTZType, TimestampType

from sash_client import Client, FailedPrecondition, InvalidArgument, WriteResult
from sash_spark.login import Login
from sash_spark.writing.bad_rows import good_rows
from sash_spark.writing.casts import check_field
from sash_spark.writing.changes import Changes, apply_changes, net_changes
from sash_spark.writing.keys import fitted_parts, key_values
from sash_spark.writing.paths import find, flat
from sash_wire.rows import Columns

_log = logging.getLogger("sash_spark")
_T = TypeVar("_T")
Nulls: TypeAlias = Literal["fail", "ignore"]
_NULLS: tuple[Nulls, ...] = ("fail", "ignore")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties of Spark: the ids of the streaming query (stored in its checkpoint) and of the micro-batch."""


_NO_ROWS = pa.table({})


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task.

    Args:
        arrived: rows that reached the task; for panes, the rows that they fold.
        stages: the names of what it staged, in order.
        committed: whether the service has committed the batch already; the task then stages nothing more.
        staged: rows or panes that it staged.
        bad: rows that it dropped because the window would refuse them.
        merged: rows that became part of a later row of the same entry, in a change feed.
        changes: the updates and deletions of a change feed, for the driver; see `changes.py`.
    """

    arrived: int
    stages: tuple[str, ...]
    committed: bool = False
    staged: int = 0
    bad: int = 0
    merged: int = 0
    changes: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Route:
    """The window that rows go to, and how their columns map to its fields; pickled to the executors.

    Args:
        target: host and port of the gRPC edge, as the executors reach it.
        window: its name.
        time: the column with the time: a timestamp, or integers (ticks).
        key: the column with the key, for a keyed window; None where columns have its parts.
        fields: field -> column; None: all of the window's fields, by their own names.
        rows_per_call: rows that a task gathers before it sends them.
        timeout_s: seconds that one call may take.
        panes: whether tasks fold rows into panes; see `preaggregate.py`.
        drops_bad_rows: whether to drop and count rows that the window would refuse; else they fail the task.
        sort: columns that a task sorts its rows by before it stages them; it then holds them all in memory.
        login: the credentials for the service.
        parts: part of the key -> column; other parts of the window's keys are columns of their own name.
        op: the column that says what becomes of the entry, in a change feed; None: each row is an entry to insert.
        paths: name of a column -> its path in the DataFrame; empty where rows have the columns by these names.
        nulls: "ignore" writes nulls of fields that may be null; "fail" takes them for bad rows.
        spec: the window's; empty where it is not known yet, as the service was away.
    """

    target: str
    window: str
    time: str
    key: str | None
    fields: Mapping[str, str] | None
    rows_per_call: int
    timeout_s: float
    panes: bool = False
    drops_bad_rows: bool = False
    sort: tuple[str, ...] = ()
    login: Login = field(default_factory=Login)
    parts: Mapping[str, str] | None = None
    op: str | None = None
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nulls: Nulls = "fail"
    spec: Mapping[str, Any] = field(default_factory=dict)

    def fitted(self, schema: StructType) -> Route:
        """Check it against the window and the DataFrame, and return it with all fields named.

        Args:
            schema: the DataFrame's.

        Raises:
            InvalidArgument: names the column or the option that does not fit.
            NotFound: there is no such window.
        """
        with self.client() as client:
            return _fitted(self.known(client.window(self.window).describe().spec), schema)

    def client(self) -> Client:
        """A connection."""
        return self.login.client(self.target, self.timeout_s)

    @property
    def columns(self) -> Columns:
        """The columns that the window reads of a table, where its spec is known."""
        nullable = self.spec.get("nullable") or () if self.nulls == "ignore" else None
        return Columns(self.time, self.key, self.parts or {}, self.fields or {}, self.spec["time_unit"], nullable)

    def is_committed(self, query: str, batch: int) -> bool:
        """Whether the service has a batch, or a later one of its query: it then refuses even an empty stage of it."""
        with self.client() as client:
            window = client.window(self.window)
            nothing: dict[str, list[Any]] = {name: [] for name in window.spec["fields"]}
            keys: list[str] | None = [] if window.spec["keyed"] else None
            return _staged(window, [], {"columns": nothing}, keys, query, batch) is None

    def check_last(self, query: str, batch: int) -> None:
        """Check that a committed batch of a streaming query is the last one, as Spark replays no other.

        Raises:
            FailedPrecondition: later batches are committed. The checkpoint is not the one that they came from, so the
                rows of this batch may be others, and were not written.
        """
        if self.is_committed(query, batch + 1):
            raise FailedPrecondition(
                f"batch {batch} of query {query!r} was not written to window {self.window!r}: later batches of this "
                "query are there already. The checkpoint is older than the window, or belongs to another run. Go on "
                "with the checkpoint that wrote the later batches, or write everything again with a new name, query=…, "
                "into a new window",
                field="query",
            )
        _log.info("%s: batch %d was applied already", self.window, batch)

    def stage(self, batches: Iterator[pa.RecordBatch], query: str, batch: int) -> Outcome:
        """Stage the rows of a task: some are on their way while Spark makes the next ones.

        Raises:
            InvalidArgument: the window cannot take a row, and `drops_bad_rows` is not set.
        """
        arrived, staged, bad, stages = 0, 0, 0, list[str]()
        if self.paths:
            batches = (flat(each, self.paths) for each in batches)
        batches, changes = self._sorted(batches), None
        with self.client() as client:
            window = client.window(self.window)
            if self.op is not None:
                changes = self._net_changes(window, batches)
                batches = iter(changes.inserts.to_batches())
            calls = (
                partial(self._stage_table, window, table, query, batch)
                for table in gathered(batches, self.rows_per_call)
            )
            for outcome in _one_ahead(calls):
                if outcome.committed:
                    return outcome
                arrived, staged, bad = arrived + outcome.arrived, staged + outcome.staged, bad + outcome.bad
                stages += outcome.stages
        if changes is None:
            return Outcome(arrived, tuple(stages), staged=staged, bad=bad)
        arrived += changes.bad + changes.merged + changes.changed
        return Outcome(arrived, tuple(stages), False, staged, bad + changes.bad, changes.merged, changes.others)

    def _net_changes(self, window: Any, batches: Iterator[pa.RecordBatch]) -> Changes:
        """Join the changes of each entry of a task."""
        assert self.op is not None
        if not (held := list(batches)):
            return Changes(_NO_ROWS, _NO_ROWS, 0, 0)
        known = self.known(window.spec)
        table = pa.Table.from_batches(held)
        return net_changes(table, self.op, known.identity, known.columns, self.drops_bad_rows)

    def _sorted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a task in the order that was asked for; those that are equal stay as they came."""
        if not self.sort:
            return batches
        all_batches = [batch for batch in batches if batch.num_rows]
        if not all_batches:
            return iter(())
        table = pa.Table.from_batches(all_batches)
        return iter(table.sort_by([(column, "ascending") for column in self.sort]).to_batches())

    def _stage_table(self, window: Any, table: Any, query: str, batch: int) -> Outcome:
        """Stage some rows, or the panes of them."""
        known, rows = self.known(window.spec), table.num_rows
        columns = known.columns
        table, refusal = good_rows(table, columns)
        if refusal is not None and not self.drops_bad_rows:
            raise refusal
        times, keys = table[columns.time], key_values(table, columns.key, columns.parts)
        content: dict[str, Any] = {"columns": {name: table[column] for name, column in columns.fields.items()}}
        if self.panes:
            from sash_spark.writing.preaggregate import panes_of  # here, as most tasks do without

            times, keys, content = panes_of(known.spec, table, columns)
        stages = _staged(window, times, content, keys, query, batch)
        if stages is None:
            return Outcome(0, (), committed=True)
        return Outcome(rows, tuple(stages), staged=len(times), bad=rows - table.num_rows)

    def known(self, spec: Mapping[str, Any]) -> Route:
        """The route with all columns named. One that was made while the service was away learns them of the spec."""
        if self.spec:
            return self
        fields = {name: name for name in spec["fields"]} if self.fields is None else self.fields
        return replace(self, spec=spec, fields=fields, parts=fitted_parts(spec, self.window, self.key, self.parts))

    @property
    def identity(self) -> str:
        """The field that is the window's identity."""
        return self.spec.get("identity") or ""

    def commit(self, query: str, batch: int, outcomes: Sequence[Outcome], streaming: bool = False) -> WriteResult:
        """Commit a batch whose tasks have all staged their rows; outcomes are in the order of partitions.

        Args:
            streaming: the batch is one of a streaming query, whose checkpoint numbers its batches.

        Raises:
            FailedPrecondition: a stage has expired; or as `check_last`.
        """
        if any(each.committed for each in outcomes):
            # Others had staged nothing, or what no commit needs any more.
            done = WriteResult(already_applied=True)
        else:
            with self.client() as client:
                window = client.window(self.window)
                changed = self._change(window, query, batch, [each.changes for each in outcomes])
                done = window.commit(query, batch, [s for each in outcomes for s in each.stages])
                done = replace(done + changed, already_applied=done.already_applied)
        arrived = sum(each.arrived for each in outcomes)
        if done.already_applied and streaming:
            self.check_last(query, batch)
        elif done.already_applied:
            _log.info("%s: batch %d was applied already", self.window, batch)
        else:
            _log.info(
                "%s: batch %d, %d rows from %d tasks: %d inserted, %d late, "
                "%d duplicates, %d ahead, %d bad, %d evicted",
                *(self.window, batch, arrived, len(outcomes), done.inserted, done.late),
                *(done.duplicates, done.ahead, sum(each.bad for each in outcomes), done.evicted),
            )
        return done

    def _change(self, window: Any, query: str, batch: int, changes: Sequence[bytes]) -> WriteResult:
        """Apply the updates and deletions of a batch, before it is committed."""
        if not any(changes):
            return WriteResult(durability="sync")  # takes nothing away from that of the commit
        known = self.known(window.spec)
        return apply_changes(window, known.columns, known.identity, query, batch, changes)


def batch_name(streaming: str | None, query: str | None) -> str:
    """What the service knows the maker of batches by.

    Args:
        streaming: the id of the streaming query, where there is one.
        query: a name that was given, which tells several sinks of one streaming query apart.

    Raises:
        InvalidArgument: there is neither.
    """
    if streaming is None and not query:
        raise InvalidArgument(
            "there is no streaming query here whose id could tell batches apart: name their maker with query=…",
            field="query",
        )
    return "/".join(name for name in (streaming, query) if name)


def named_fields(fields: Mapping[str, str] | Iterable[str] | str | None) -> Mapping[str, str] | None:
    """Fields by name: as they are, or each with the column of its own name."""
    if fields is None or isinstance(fields, Mapping):
        return fields
    return {name: name for name in ([fields] if isinstance(fields, str) else fields)}


def sort_columns(sort: bool | str | Iterable[str], time: str) -> tuple[str, ...]:
    """The columns to sort by: those that are named, or the time."""
    if isinstance(sort, bool):
        return (time,) if sort else ()
    return (sort,) if isinstance(sort, str) else tuple(sort)


def check_nulls(nulls: str) -> Nulls:
    """Return what to do with nulls; raises InvalidArgument for anything else."""
    for known in _NULLS:
        if nulls == known:
            return known
    raise InvalidArgument(f"nulls is 'fail' or 'ignore', not {nulls!r}", field="nulls", limit="fail or ignore")


def check_time(schema: StructType, name: str, unit: str, window: str) -> None:
    """Check that a column has times of a window; raises InvalidArgument."""
    kind = find(schema, name)[1]
    if not isinstance(kind, TimestampType | TimestampNTZType | IntegralType):
        raise InvalidArgument(
            f"column {name!r} is a {kind.simpleString()}: cast it to a timestamp, or to ticks", field=name
        )
    if unit == "none" and not isinstance(kind, IntegralType):
        raise InvalidArgument(
            f"window {window!r} has logical time: column {name!r} is a {kind.simpleString()}, integers are wanted",
            field=name,
        )


def gathered(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[Any]:
    """Yield the rows of small batches as tables of `rows` rows; the last one may be shorter."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            some = batch.slice(start, rows - count)
            held.append(some)
            start, count = start + some.num_rows, count + some.num_rows
            if count == rows:
                yield pa.Table.from_batches(held)
                held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _one_ahead(calls: Iterable[Callable[[], _T]]) -> Iterator[_T]:
    """Yield what each call returns, in order; while one runs, in a thread, the next is got ready."""
    with ThreadPoolExecutor(1) as thread:
        running: Future[_T] | None = None
        for call in calls:
            if running is not None:
                yield running.result()
            running = thread.submit(call)
        if running is not None:
            yield running.result()


def _staged(window: Any, times: Any, content: Any, keys: Any, query: str, batch: int) -> list[str] | None:
    """Stage some rows; None where their batch is committed already."""
    try:
        return [staged.stage for staged in window.stage(times, keys=keys, query=query, batch=batch, **content)]
    except FailedPrecondition as error:
        if error.field != "batch":
            raise
        return None


def _fitted(route: Route, schema: StructType) -> Route:
    """Check a route whose spec is known, and return it with paths; takes and raises as `Route.fitted`."""
    kinds, fields, parts = route.spec["fields"], route.fields or {}, route.parts or {}
    if set(fields) != set(kinds):
        raise InvalidArgument(
            f"window {route.window!r} has the fields {', '.join(kinds)}, not {', '.join(fields)}", field="fields"
        )
    if route.nulls == "ignore" and not route.spec.get("nullable"):
        raise InvalidArgument(
            f"nulls='ignore': no field of window {route.window!r} may be null. A window says which may be when it is "
            f"created, such as nullable: [{', '.join(kinds)}]",
            field="nulls",
        )
    columns: dict[str, DataType] = {}
    paths: dict[str, tuple[str, ...]] = {}
    keys = [route.key] if route.key else parts.values()
    if route.op is not None and not route.identity:
        raise InvalidArgument(
            f"window {route.window!r} has no identity, so its entries cannot be updated and deleted", field="op"
        )
    for wanted in [route.time, *keys, *fields.values(), *route.sort, *([route.op] if route.op else [])]:
        renamed = (
            '. Where a field has a column of another name: fields="FIELD=COLUMN"' if wanted in fields.values() else ""
        )
        paths[wanted], columns[wanted] = find(schema, wanted, renamed)
    check_time(schema, route.time, route.spec["time_unit"], route.window)
    for name, column in fields.items():
        check_field(columns[column], kinds[name], column, f"field {name!r} of window {route.window!r}", route.panes)
    return replace(route, paths=paths)
