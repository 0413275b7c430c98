"""Reading a window with Spark: the driver plans the tasks, and the tasks read.

    options ──▶ which keys, which times ──┬─ task: keys 0 of 2   00:00 to 12:00 ─▶ Arrow
                                          ├─ task: keys 0 of 2   12:00 to 24:00 ─▶ Arrow
                                          └─ task: keys 1 of 2   …

Each task reads the window as it is when the task runs. If somebody writes meanwhile, the table is not a snapshot. Tasks
look keys up themselves and take those whose hash is theirs, so a key that is created after planning is read, too. The
buckets of a series are fixed when the read is planned.

Filters: the options `keys`, `start` and `end` limit what is read. With the option `pushdown`, Spark also passes its
filters on `key` (=, IN) and `time` (=, IN, <, <=, >, >=). They limit what is read, and Spark evaluates them again.
`pushdown` is off by default, because Spark (at least 4.3) plans a DataFrame of a Python source with the filters of the
last query on it. Another query on the same DataFrame then misses rows. Use a DataFrame with `pushdown` for one query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sash_client import InvalidArgument, Window
from sash_spark.names import meant
from sash_spark.reading.answer_columns import instants
from sash_spark.reading.planning import KEYS_PER_CALL, Narrowed, Share, TaskPlan, in_chunks
from sash_spark.reading.question import Question, Shape

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

KEYS_PER_STREAM = 10_000
BUCKETS_PER_CALL = 50_000


class Reader(DataSourceReader):
    """Plans on the driver and reads in the tasks. Spark pickles it in between, with the pushed filters.

    Args:
        question: what to read.
        wanted: the columns that Spark wants: all of `Question.schema`, or some.

    Attributes:
        info: the window, as it was when the reader was made.
        shape: what a read needs to know of it.
    """

    def __init__(self, question: Question, wanted: StructType) -> None:
        if question.delay is not None:
            raise InvalidArgument("delay is an option of streams: spark.readStream", field="delay")
        self._question = question
        with question.client() as client:
            self.info = client.window(question.window).describe()
        self.shape = Shape.of(question, self.info)
        self._narrowed = Narrowed()
        known = self.shape.schema
        self._own = {name: _own(name, known.names) for name in wanted.fieldNames()}
        self._wanted = pa.schema([known.field(own).with_name(name) for name, own in self._own.items()])
        for one, other in zip(from_arrow_schema(self._wanted), wanted, strict=True):
            if one.dataType != other.dataType:
                raise InvalidArgument(
                    f"column {one.name!r} is a {one.dataType.simpleString()}, not a {other.dataType.simpleString()}: "
                    "cast it afterwards",
                    field=one.name,
                )

    def partitions(self) -> Sequence[Share]:
        """Plan what each task reads."""
        with self._question.client() as client:
            window = client.window(self._question.window)
            plan = TaskPlan(self._question, self.shape, self.info, self._narrowed, window)
            shares = getattr(plan, self._question.what)()
        # Without any partition, Spark makes one of its own, without a share.
        return shares or [Share(keys=())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a task as Arrow batches."""
        assert isinstance(partition, Share)
        if partition.keys == ():
            return
        with self._question.client() as client:
            window = client.window(self._question.window)
            for columns in _READS[self._question.what](self._question, self.shape, window, partition):
                yield pa.RecordBatch.from_arrays([columns[own] for own in self._own.values()], schema=self._wanted)


class PushedReader(Reader):
    """A reader that uses Spark's filters, for a DataFrame of one query (see the module)."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Narrow what is read; leave all filters to Spark."""
        for condition in filters:
            self._narrowed.apply(self.shape, condition, self._own)
        return filters


def _own(name: str, known: Sequence[str]) -> str:
    """Return the name of a column that Spark calls `name`, perhaps in another case.

    Raises:
        InvalidArgument: there is none, or there are several.
    """
    found = meant(name, known)
    if len(found) == 1:
        return found[0]
    there = f"it is one of {', '.join(found)}" if found else f"there are {', '.join(known)}"
    raise InvalidArgument(f"no column {name!r}; {there}", field=name)


def _entries(question: Question, shape: Shape, window: Window, share: Share) -> Iterator[dict[str, Any]]:
    names = share.names(window)
    if names == ():
        return
    chunks: list[Any] = [names] if names is None else in_chunks(names, KEYS_PER_STREAM)
    for bulk in chain.from_iterable(
        window.entries(share.start, share.end, keys=shape.key_filter(some)) for some in chunks
    ):
        columns = {"time": instants(bulk.times, shape.unit)}
        columns |= shape.key_columns([] if bulk.keys is None else bulk.keys.tolist())
        for name, values in bulk.columns.items():
            columns[name] = pa.array(values, shape.columns[name])
        yield columns


def _answers(question: Question, shape: Shape, window: Window, share: Share) -> Iterator[dict[str, Any]]:
    names = share.names(window)
    chunks: list[Any] = [names]
    if shape.by_key:
        chunks = in_chunks(tuple(window.keys(limit=None)) if names is None else names, KEYS_PER_CALL)
    for some in chunks:
        found = window.query(keys=shape.key_filter(some), **question.asked(shape))
        yield (
            shape.key_columns([one.key for one in found])
            | {
                "lookback": pa.array([one.lookback for one in found], pa.string()),
                "start": instants([one.start for one in found], shape.unit),
                "end": instants([one.end for one in found], shape.unit),
                "entries": pa.array([one.entries for one in found], pa.int64()),
            }
            | {column.name: column.array([one.aggregates[column.name] for one in found]) for column in shape.answers}
        )


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
            yield (
                shape.key_columns([of.get("key")] * len(found))
                | {
                    "time": instants(found.times, shape.unit),
                    "entries": pa.array(found.entries, pa.int64()),
                }
                | {column.name: column.array(found.aggregates[column.name]) for column in shape.answers}
            )


_READS = {"entries": _entries, "answers": _answers, "series": _series}
