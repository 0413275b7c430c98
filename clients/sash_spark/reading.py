"""Reading a window with Spark: what to ask for, split into tasks, narrowed by what Spark filters by.

    entries    key  time  fields …                             the rows that are in the window
    answers    key  lookback  start  end  entries  aggregates …    one row per key and lookback
    series     key  time  entries  aggregates …                one row per key and bucket

    options ──▶ which keys, which times ──┬─ task: keys 0 of 2   00:00 to 12:00 ─▶ Arrow
                                          ├─ task: keys 0 of 2   12:00 to 24:00 ─▶ Arrow
                                          └─ task: keys 1 of 2   …

Every task asks as of its own now, so that a table read from a window that is written to meanwhile is no snapshot. Keys
are dealt out by a hash of their names, and looked up by the tasks, so that one that comes later is read, too; the
buckets of a series are those there were when it was planned.

Filters. What `keys`, `start` and `end` leave out is not read. With the option `pushdown`, Spark also hands over its
filters on `key` (=, IN) and `time` (=, IN, <, <=, >, >=), which narrow what is read, and evaluates them itself all the
same. It is off by itself because Spark (4.3 at least) plans a DataFrame of a Python source with the filters of any
query on it that came last: another query on the same DataFrame, with other filters or none, misses rows. So a DataFrame
with `pushdown` is for one query.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sash_client import ALL_KEYS, Client, InvalidArgument, Unsupported, Window, WindowInfo
from sash_client.times import to_tick
from sash_spark.columns import FIELD_TYPES, AnswerColumn, instants, time_type
from sash_spark.login import LOGIN_OPTIONS, Login
from sash_spark.options import Options

__all__ = ["PushedReader", "Question", "Reader", "Share"]

ENTRIES_PER_TASK = 250_000
"""A Python worker starts in some 100 ms, in which 250,000 entries are read."""

ANSWERS_PER_TASK = 50_000
TASKS_MAX = 32
KEYS_PER_CALL = 1000
KEYS_PER_STREAM = 10_000
BUCKETS_PER_CALL = 50_000

_OPTIONS = {
    *("target", "window", "what", "keys", "combine", "lookback", "as_of", "start", "end", "step", "width"),
    *("aggregates", "partitions", "pushdown", "timeout_s"),
    *LOGIN_OPTIONS,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MICROSECONDS = {"us": 1, "ms": 1000, "s": 1_000_000}


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads.

    Args:
        keys: of these keys; None: of all, or of a window without.
        part, parts: where `keys` is None: of those keys whose hash, modulo `parts`, is `part`.
        start, end: in this range of ticks, inclusive; None: no bound.
        step: ticks between buckets, of a series.
    """

    keys: tuple[str, ...] | None = None
    start: int | None = None
    end: int | None = None
    step: int = 0
    part: int = 0
    parts: int = 1

    def names(self, window: Window) -> tuple[str, ...] | None:
        """The keys, as there are now; None for all of them."""
        if self.keys is not None or self.parts == 1:
            return self.keys
        return tuple(name for name in window.keys(limit=None) if zlib.crc32(name.encode()) % self.parts == self.part)


@dataclass(frozen=True)
class Question:
    """What the options ask for; make it with `Question.of`."""

    target: str
    window: str
    what: str
    keys: tuple[str, ...] | None
    combine: bool
    lookbacks: tuple[str, ...]
    as_of: str | None
    start: str | None
    end: str | None
    step: str | None
    width: str | None
    aggregates: tuple[str, ...] | None
    partitions: int
    timeout_s: float
    login: Login

    @classmethod
    def of(cls, options: Options) -> Question:
        """Read the options.

        Raises:
            InvalidArgument: an option that is unknown, missing, or no value of its kind.
        """
        options.only(_OPTIONS)
        found = cls(
            target=options.required("target"),
            window=options.required("window"),
            what=options.text("what") or "entries",
            keys=options.names("keys"),
            combine=options.flag("combine"),
            lookbacks=options.names("lookback") or (),
            as_of=options.text("as_of"),
            start=options.text("start"),
            end=options.text("end"),
            step=options.text("step"),
            width=options.text("width"),
            aggregates=options.names("aggregates"),
            partitions=options.number("partitions", 0, least=1),
            timeout_s=options.seconds("timeout_s", 60.0),
            login=Login.of(options),
        )
        if found.what not in _READS:
            raise InvalidArgument(f"what is one of {', '.join(_READS)}, not {found.what!r}", field="what")
        if found.what == "series":
            options.required("step")
        return found

    def client(self) -> Client:
        """A connection."""
        return self.login.client(self.target, self.timeout_s)

    def schema(self) -> StructType:
        """The columns there are, as Spark calls them."""
        with self.client() as client:
            return from_arrow_schema(Shape.of(self, client.window(self.window).describe()).schema)


@dataclass(frozen=True)
class Shape:
    """A window as far as reading it goes: its unit, whether rows have a key, and the columns of them."""

    unit: str
    keyed: bool
    by_key: bool
    columns: dict[str, Any]
    answers: tuple[AnswerColumn, ...] = ()

    @classmethod
    def of(cls, question: Question, info: WindowInfo) -> Shape:
        """See what a question will be answered with.

        Raises:
            InvalidArgument: an aggregate that is not there, or has the name of another column.
            Unsupported: entries of a window that keeps none.
        """
        spec = info.spec
        unit, keyed, fields = spec["time_unit"], spec["keyed"], spec["fields"]
        if not keyed and (question.keys is not None or question.combine):
            raise InvalidArgument(f"window {info.name!r} is not keyed", field="keys" if question.keys else "combine")
        by_key = keyed and not (question.combine and question.what != "entries")
        instant = time_type(unit)
        columns = {"key": pa.string()} if by_key else {}
        if question.what == "entries":
            if spec.get("granularity"):
                raise Unsupported(f"window {info.name!r} keeps panes, no entries: read its answers or a series")
            columns |= {"time": instant, **{name: FIELD_TYPES[kind] for name, kind in fields.items()}}
            return cls(unit, keyed, by_key, columns)
        if question.what == "answers":
            columns |= {"lookback": pa.string(), "start": instant, "end": instant, "entries": pa.int64()}
        else:
            columns |= {"time": instant, "entries": pa.int64()}
        known = spec["aggregates"]
        answers = []
        for name in known if question.aggregates is None else question.aggregates:
            if name not in known:
                raise InvalidArgument(
                    f"window {info.name!r} has no aggregate {name!r}; it has {', '.join(known)}", field="aggregates"
                )
            if name.lower() in columns:
                raise InvalidArgument(
                    f"an aggregate and a column of the {question.what} are both called {name!r}: "
                    "name the others in the option aggregates",
                    field="aggregates",
                )
            answers.append(AnswerColumn.of(name, known[name], fields))
        return cls(unit, keyed, by_key, columns | {one.name: one.type for one in answers}, tuple(answers))

    @cached_property
    def schema(self) -> Any:
        """All columns, as Arrow has them."""
        return pa.schema(list(self.columns.items()))

    def tick(self, text: str, name: str) -> int:
        """An option that is a time: ticks, or ISO 8601 (UTC where it says nothing else)."""
        try:
            return int(text)
        except ValueError:
            pass
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(f"{name} {text!r} is neither ticks nor a time (ISO 8601)", field=name) from None
        return to_tick(instant if instant.tzinfo else instant.replace(tzinfo=UTC), self.unit, name)

    def pushed(self, value: Any) -> int | None:
        """The last tick that is not after a value of the column `time`; None where it is no such value."""
        if isinstance(value, datetime) and self.unit in _MICROSECONDS:
            instant = value if value.tzinfo else value.replace(tzinfo=UTC)
            return int((instant - _EPOCH) // _MICROSECOND // _MICROSECONDS[self.unit])
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def key_filter(self, keys: Sequence[str] | None) -> Any:
        """What to ask for with `keys=`."""
        return (list(keys) if keys is not None else ALL_KEYS) if self.keyed else None


@dataclass
class Narrowed:
    """What filters leave: no time before `low` or after `high`, no other keys; None is no bound."""

    low: int | None = None
    high: int | None = None
    keys: frozenset[str] | None = None

    def apply(self, shape: Shape, condition: Filter) -> None:
        """Take a filter into account, as far as it can be."""
        (name, *deeper) = getattr(condition, "attribute", ("", ""))
        if deeper or name not in ("key", "time") or name not in shape.columns:
            return
        wanted = condition.value if isinstance(condition, In) else (getattr(condition, "value", None),)
        if name == "key":
            if isinstance(condition, EqualTo | EqualNullSafe | In) and all(isinstance(one, str) for one in wanted):
                self.keys = frozenset(wanted) if self.keys is None else self.keys & frozenset(wanted)
            return
        ticks = [shape.pushed(one) for one in wanted]
        found = [tick for tick in ticks if tick is not None]
        if not found or len(found) < len(ticks):
            return
        # A time between two ticks is taken for the earlier one: at most one tick more than needed is asked for.
        if isinstance(condition, EqualTo | EqualNullSafe | In | GreaterThan | GreaterThanOrEqual):
            self.low = min(found) if self.low is None else max(self.low, min(found))
        if isinstance(condition, EqualTo | EqualNullSafe | In | LessThan | LessThanOrEqual):
            self.high = max(found) if self.high is None else min(self.high, max(found))


class Reader(DataSourceReader):
    """Plans on the driver, and reads in the tasks; pickled in between, with what was pushed.

    Args:
        question: what to read.
        wanted: the columns that Spark wants: those of `Question.schema`, or some of them.
    """

    def __init__(self, question: Question, wanted: StructType) -> None:
        self._question = question
        with question.client() as client:
            self._info = client.window(question.window).describe()
        self._shape = Shape.of(question, self._info)
        self._narrowed = Narrowed()
        known = self._shape.schema
        for name in wanted.fieldNames():
            if name not in known.names:
                raise InvalidArgument(f"no column {name!r}; there are {', '.join(known.names)}", field=name)
        self._wanted = pa.schema([known.field(name) for name in wanted.fieldNames()])
        for one, other in zip(from_arrow_schema(self._wanted), wanted, strict=True):
            if one.dataType != other.dataType:
                raise InvalidArgument(
                    f"column {one.name!r} is a {one.dataType.simpleString()}, no {other.dataType.simpleString()}: "
                    "cast it afterwards",
                    field=one.name,
                )

    def partitions(self) -> Sequence[Share]:
        """What each task reads."""
        with self._question.client() as client:
            plan = _Plan(self._question, self._shape, self._info, self._narrowed, client.window(self._question.window))
            shares = getattr(plan, self._question.what)()
        # For Spark no partition at all is one without anything said about it.
        return shares or [Share(keys=())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a task's rows, as Arrow batches."""
        assert isinstance(partition, Share)
        if partition.keys == ():
            return
        with self._question.client() as client:
            window = client.window(self._question.window)
            for columns in _READS[self._question.what](self._question, self._shape, window, partition):
                yield pa.RecordBatch.from_arrays([columns[name] for name in self._wanted.names], schema=self._wanted)


class PushedReader(Reader):
    """A reader that takes Spark's filters, for a DataFrame that is used in one query: see above."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Narrow what is read; leave all filters to Spark."""
        for condition in filters:
            self._narrowed.apply(self._shape, condition)
        return filters


# ---------------------------------------------------------------- on the driver


@dataclass(frozen=True)
class _Plan:
    """Splits what is asked for into tasks."""

    question: Question
    shape: Shape
    info: WindowInfo
    narrowed: Narrowed
    window: Window

    def entries(self) -> list[Share]:
        """By keys, then by time where its bounds are known."""
        low, high = self._bounds()
        tasks = self._tasks(self.info.entries, ENTRIES_PER_TASK)
        shares = self._by_key(tasks)
        ranges = self._ranges(low, high, tasks // max(len(shares), 1))
        return [replace(share, start=first, end=last) for share in shares for first, last in ranges]

    def answers(self) -> list[Share]:
        """By keys."""
        return self._by_key(self._tasks(self.info.keys, ANSWERS_PER_TASK))

    def series(self) -> list[Share]:
        """By keys, then by buckets."""
        names = self._names()
        span = None if names == () else self._span(names)
        if span is None:
            return []
        start, end, step = span
        keys = 1 if not self.shape.by_key else self.info.keys if names is None else len(names)
        buckets = -((start - end) // step)
        tasks = self._tasks(buckets * keys, 10 * ANSWERS_PER_TASK)
        shares = self._by_key(tasks)
        return [
            replace(share, start=start + first * step, end=min(start + last * step, end) - 1, step=step)
            for share in shares
            for first, last in pairwise(_edges(0, buckets, tasks // len(shares)))
        ]

    def _by_key(self, tasks: int) -> list[Share]:
        names = self._names()
        if not self.shape.by_key:
            return [Share(names)]
        if names is not None:
            size = max(math.ceil(len(names) / tasks), 1)
            return [Share(names[at : at + size]) for at in range(0, len(names), size)]
        parts = min(tasks, max(self.info.keys, 1))
        return [Share(part=part, parts=parts) for part in range(parts)]

    def _tasks(self, rows: int, rows_per_task: int) -> int:
        return self.question.partitions or min(max(-(-rows // rows_per_task), 1), TASKS_MAX)

    def _bounds(self) -> tuple[int | None, int | None]:
        low, high = self.narrowed.low, self.narrowed.high
        if self.question.start is not None:
            start = self.shape.tick(self.question.start, "start")
            low = start if low is None else max(low, start)
        if self.question.end is not None:
            end = self.shape.tick(self.question.end, "end")
            high = end if high is None else min(high, end)
        return low, high

    def _names(self) -> tuple[str, ...] | None:
        """The keys that were asked for; None where that is all of them."""
        asked, pushed = self.question.keys, self.narrowed.keys
        if asked is not None:
            return tuple(name for name in dict.fromkeys(asked) if pushed is None or name in pushed)
        if pushed is not None:
            # An answer over a key that is not there would be a row that no other plan has.
            return tuple(name for name in sorted(pushed) if name in self.window.keys(name, limit=None))
        return None

    def _ranges(self, low: int | None, high: int | None, parts: int) -> list[tuple[int | None, int | None]]:
        """Ranges that follow each other; the outermost have the bounds that were asked for, if any."""
        first = self.info.oldest if low is None else low
        last = self.info.newest if high is None else high
        if low is not None and high is not None and low > high:
            return []
        if parts < 2 or first is None or last is None or first >= last:
            return [(low, high)]
        starts = _edges(first, last + 1, parts)[:-1]
        return [
            (low if i == 0 else start, high if i == len(starts) - 1 else starts[i + 1] - 1)
            for i, start in enumerate(starts)
        ]

    def _oldest(self, names: tuple[str, ...] | None) -> int | None:
        """The time of the oldest entry of these keys; None if there is none."""
        every = tuple(self.window.keys(limit=None)) if names is None else names
        answers = (self.window.query(keys=list(some)) for some in _in_chunks(every, KEYS_PER_CALL))
        return min((one.start for found in answers for one in found if one.start is not None), default=None)

    def _span(self, names: tuple[str, ...] | None) -> tuple[int, int, int] | None:
        """Where the first bucket starts, what all of them start before, and the step; None where there is none."""
        assert self.question.step is not None
        key = {"key": "-"} if self.shape.keyed else {}  # any will do
        # The service knows how long a step is in ticks.
        step = self.window.series(0, 1, step=self.question.step, **key).width
        start = None if self.question.start is None else self.shape.tick(self.question.start, "start")
        end = None if self.question.end is None else self.shape.tick(self.question.end, "end")
        if start is None:
            oldest = self._oldest(names) if self.shape.keyed else self.info.oldest
            start = None if oldest is None else oldest // step * step
        if end is None:
            end = None if self.info.newest is None else self.info.newest + 1
        if start is None or end is None:
            return None
        if self.narrowed.low is not None and self.narrowed.low > start:
            start += -((start - self.narrowed.low) // step) * step
        if self.narrowed.high is not None:
            end = min(end, self.narrowed.high + 1)
        return None if start >= end else (start, end, step)


def _in_chunks(names: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    return [names[at : at + size] for at in range(0, len(names), size)]


def _edges(first: int, stop: int, parts: int) -> list[int]:
    """Bounds of `parts` even parts of a range, or of fewer where it is too short."""
    parts = max(min(parts, stop - first), 1)
    return [first + (stop - first) * i // parts for i in range(parts + 1)]


# ---------------------------------------------------------------- in the tasks


def _entries(question: Question, shape: Shape, window: Window, share: Share) -> Iterator[dict[str, Any]]:
    names = share.names(window)
    if names == ():
        return
    chunks: list[Any] = [names]
    if names is not None:
        chunks = _in_chunks(names, KEYS_PER_STREAM)
    for bulk in chain.from_iterable(
        window.entries(share.start, share.end, keys=shape.key_filter(some)) for some in chunks
    ):
        columns = {"time": instants(bulk.times, shape.unit)}
        if shape.keyed:
            columns["key"] = pa.array(bulk.keys, pa.string())
        for name, values in bulk.columns.items():
            columns[name] = pa.array(values, shape.columns[name])
        yield columns


def _answers(question: Question, shape: Shape, window: Window, share: Share) -> Iterator[dict[str, Any]]:
    as_of = None if question.as_of is None else shape.tick(question.as_of, "as_of")
    names = share.names(window)
    chunks: list[Any] = [names]
    if shape.by_key:
        # All answers of one call are in memory at once, so the service limits how many there are.
        names = tuple(window.keys(limit=None)) if names is None else names
        chunks = _in_chunks(names, KEYS_PER_CALL)
    for some in chunks:
        found = window.query(
            keys=shape.key_filter(some),
            lookbacks=question.lookbacks,
            as_of=as_of,
            combine=shape.keyed and not shape.by_key,
        )
        yield {
            "key": pa.array([one.key for one in found], pa.string()),
            "lookback": pa.array([one.lookback for one in found], pa.string()),
            "start": instants([one.start for one in found], shape.unit),
            "end": instants([one.end for one in found], shape.unit),
            "entries": pa.array([one.entries for one in found], pa.int64()),
        } | {column.name: column.array([one.aggregates[column.name] for one in found]) for column in shape.answers}


def _series(question: Question, shape: Shape, window: Window, share: Share) -> Iterator[dict[str, Any]]:
    assert share.start is not None
    assert share.end is not None
    span = share.step * BUCKETS_PER_CALL
    asked: list[dict[str, Any]] = [{"keys": shape.key_filter(share.keys)}]
    if shape.by_key:
        names = share.names(window)
        asked = [{"key": name} for name in (window.keys(limit=None) if names is None else names)]
    for of in asked:
        for start in range(share.start, share.end + 1, span):
            end = min(start + span, share.end + 1)
            found = window.series(start, end, step=share.step, width=question.width, **of)
            yield {
                "key": pa.array(np.full(len(found), of.get("key"), object), pa.string()),
                "time": instants(found.times, shape.unit),
                "entries": pa.array(found.entries, pa.int64()),
            } | {column.name: column.array(found.aggregates[column.name]) for column in shape.answers}


_READS = {"entries": _entries, "answers": _answers, "series": _series}
