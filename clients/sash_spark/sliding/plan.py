"""What a sliding aggregation computes: columns, aggregates, widths, and which windows there are.

    step     |----|----|----|----|----|----|          a window starts at every multiple of the step, as in Spark
    rows          x  x              x
    width    [---------)                              start 0: no multiple before it holds a row
                  [---------)                         …
                            [---------)               windows without a row do not count

Everything here is decided once, on the driver, and pickled to the executors. Times are int64 microseconds, which
is what Spark keeps; a window is start <= time < end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    AtomicType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sash_engine.errors import InvalidArgument
from sash_engine.forest import Layout
from sash_engine.monoids import Monoid
from sash_engine.monoids.base import NUMPY_TYPES, Array, FieldType
from sash_spark.reading.answer_columns import FIELD_TYPES, arrow_type

NEVER, EVER = -(2**62), 2**62
"""Before and after all times: half of int64, so that a width more or less does not overflow."""

OWN_COLUMNS = ("width", "start", "end", "entries")
"""Columns of a result besides the key and the aggregates."""
_SAMPLES: dict[str, Array] = {
    "float64": np.array([1.0, 2.0]),
    "int64": np.array([1, 2]),
    "string": np.array(["a", "b"], object),
    "bool": np.array([False, True]),
}


@dataclass(frozen=True)
class Plan:
    """Make it with `Plan.of`.

    Args:
        key: the column whose values have windows of their own; None where there is one for all.
        key_type: its type.
        time: the column with the event time.
        zoned: whether that is a timestamp with (True) or without a time zone.
        fields: the columns that aggregates read, and what the engine takes them for.
        aggregates: name -> (monoid, the columns it reads).
        widths: the windows: as written, and in microseconds.
        step: microseconds between starts of windows; None where the current answers are wanted.
        marks: columns that say in which rows a field has a value -> that field; empty where nulls are refused.
    """

    key: str | None
    key_type: DataType
    time: str
    zoned: bool
    fields: Mapping[str, FieldType]
    aggregates: Mapping[str, tuple[Monoid, tuple[str, ...]]]
    widths: tuple[tuple[str, int], ...]
    step: int | None
    marks: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        schema: StructType,
        key: str | None,
        time: str,
        windows: Sequence[str],
        aggregates: Mapping[str, Mapping[str, Any]],
        emit: str,
        nulls: str = "fail",
    ) -> Plan:
        """Check everything against the columns there are.

        Raises:
            InvalidArgument: what does not fit, with `field` set to the argument (or the path into it).
        """
        columns = {f.name: f.dataType for f in schema.fields}
        wanted = [time, *([] if key is None else [key])]
        for name, document in aggregates.items():
            if not isinstance(document, Mapping):
                raise refused(f"aggregates.{name}: write {{'function': …}}", f"aggregates.{name}")
            wanted += [str(document[option]) for option in ("field", "returns") if document.get(option) is not None]
        if key is not None and not is_plain(columns.get(key, LongType())):
            raise refused(f"column {key!r} is a {columns[key].simpleString()}: cast the key to a string", key)
        for column in wanted:
            if column not in columns:
                raise refused(f"no column {column!r}; there are {', '.join(columns)}", column)
        if not isinstance(columns[time], TimestampType | TimestampNTZType):
            raise refused(f"column {time!r} is a {columns[time].simpleString()}: cast it to a timestamp", time)
        if isinstance(windows, str) or not windows or len(set(windows)) < len(windows):
            raise refused("windows are one or several different durations: ['10m', '1h']", "windows")
        for name in (*aggregates, *([] if key is None else [key])):
            if name in OWN_COLUMNS or (name == key and name in aggregates):
                raise refused(f"{name!r} is a column of the result already", name)
        fields = {c: _field_type(c, columns[c]) for c in dict.fromkeys(wanted[1 if key is None else 2 :])}
        try:
            widths = tuple((width, _micros(width, "windows")) for width in windows)
            step = None if emit == "update" else _micros(emit, "emit")
            monoids = _monoids(fields, aggregates)
        except InvalidArgument as error:
            raise refused(error.message, error.field, error.limit) from None
        if step is not None and step > min(width for _, width in widths):
            raise refused(f"a step of {emit} leaves gaps between windows", "emit")
        if nulls not in ("fail", "ignore"):
            raise refused(f"nulls is 'fail' or 'ignore', not {nulls!r}", "nulls")
        key_type = LongType() if key is None else columns[key]
        zoned = isinstance(columns[time], TimestampType)
        longer = "_" * (1 + max(map(len, columns)))  # than the name of every column
        marks = {longer + name: name for name in fields} if nulls == "ignore" else {}
        if marks:
            monoids = {name: _ignoring(monoid, reads, longer) for name, (monoid, reads) in monoids.items()}
        return cls(key, key_type, time, zoned, fields, monoids, widths, step, marks)

    @cached_property
    def layout(self) -> Layout:
        """The engine's view of columns and aggregates."""
        return Layout(self.columns, self.aggregates)

    @property
    def columns(self) -> dict[str, FieldType]:
        """The columns of an entry besides its time: fields, and marks."""
        return {**self.fields, **dict.fromkeys(self.marks, "bool")}

    @property
    def longest(self) -> int:
        """The widest window, in microseconds."""
        return max(width for _, width in self.widths)

    @cached_property
    def digest(self) -> bytes:
        """Eight bytes that change with anything that stored state depends on."""
        aggregates = [[name, repr(m), repr(sorted(vars(m).items())), reads] for name, (m, reads) in self._sorted()]
        facts = [
            str(self.key_arrow_type),
            dict(self.fields),
            aggregates,
            [width for _, width in self.widths],
            self.step,
        ]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).digest()

    def _sorted(self) -> list[tuple[str, tuple[Monoid, tuple[str, ...]]]]:
        return sorted(self.aggregates.items(), key=lambda item: item[0])

    # ---------------------------------------------------------------- schemas

    @cached_property
    def key_arrow_type(self) -> Any:
        """The Arrow type of keys."""
        if isinstance(self.key_type, TimestampType):
            return pa.timestamp("us", "UTC")
        return to_arrow_type(self.key_type)

    @cached_property
    def rows_schema(self) -> Any:
        """Rows as Arrow columns: the key, then those of `entries_schema`."""
        return pa.schema([("key", self.key_arrow_type), *self.entries_schema])

    @cached_property
    def entries_schema(self) -> Any:
        """Entries as Arrow columns: int64 times, then the fields."""
        return pa.schema([("time", pa.int64()), *((c, FIELD_TYPES[kind]) for c, kind in self.columns.items())])

    @cached_property
    def answers_schema(self) -> Any:
        """A result, with its key under the name `key`."""
        instant = pa.timestamp("us", "UTC" if self.zoned else None)
        answers = [(name, _answer_type(monoid)) for name, (monoid, _) in self.aggregates.items()]
        return pa.schema(
            [
                ("key", self.key_arrow_type),
                *(("width", pa.string()), ("start", instant), ("end", instant), ("entries", pa.int64())),
                *answers,
            ]
        )

    @property
    def result(self) -> list[StructField]:
        """The columns of the answers, with the key first."""
        answers = [StructField(f.name, from_arrow_type(f.type)) for f in list(self.answers_schema)[1:]]
        return [StructField("key", self.key_type), *answers]

    def table(self, keys: Any, width: int, spans: tuple[Array, Array], entries: Array, answers: Sequence[Array]) -> Any:
        """Answers as a record batch of `answers_schema`.

        Args:
            keys: (k,) in Arrow.
            width: the number of the windows' width.
            spans: starts and ends, int64 (k,).
            entries: int64 (k,).
            answers: (k,) of each aggregate.

        Raises:
            InvalidArgument: an answer fits no column, as a sum of integers of more than 64 bits.
        """
        schema, k = self.answers_schema, len(entries)
        instant = schema.field("start").type
        columns = [
            keys,
            pa.repeat(pa.scalar(self.widths[width][0]), k),
            *(pa.array(times).cast(instant) for times in spans),
            pa.array(entries),
        ]
        for field, column in zip(list(schema)[5:], answers, strict=True):
            try:
                columns.append(pa.array(column if column.dtype.kind != "O" else column.tolist(), field.type))
            except (pa.ArrowException, OverflowError) as error:
                raise refused(f"{field.name}: an answer is no {field.type}: {error}", field.name) from None
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    # ---------------------------------------------------------------- which windows

    def closes(self, times: Array) -> Array:
        """When the last window with an entry of each time ends."""
        assert self.step is not None
        return times // self.step * self.step + self.longest

    def needed(self, watermark: int) -> int:
        """The start of the oldest window that is open."""
        assert self.step is not None
        return (watermark - self.longest) // self.step * self.step + self.step

    def due(self, first: Array, last: Array, after: int) -> int | None:
        """The earliest end of a window with end > after that may hold an entry; None where there is none.

        Args:
            first, last: int64 (k,), spans of time with entries.
        """
        step = self.step
        assert step is not None
        dues = []
        for _, width in self.widths:
            low = np.maximum((first - width) // step, (after - width) // step) + 1
            low = low[low <= last // step]
            if len(low):
                dues.append(int(low.min()) * step + width)
        return min(dues, default=None)


def refused(message: str, field: str | None, limit: str | None = None) -> Exception:
    """Make an InvalidArgument of `sash_client`, which is imported here: Python workers rarely need it, nor gRPC."""
    from sash_client import InvalidArgument

    return InvalidArgument(message, field=field, limit=limit)


def columns_of(plan: Plan, batch: Any) -> list[Array]:
    """A record batch of `entries_schema` as the engine's columns."""
    kinds: list[FieldType] = ["int64", *plan.columns.values()]
    return [
        column.to_numpy(zero_copy_only=False).astype(NUMPY_TYPES[kind], copy=False)
        for column, kind in zip(batch.columns, kinds, strict=True)
    ]


def record_batch_of(plan: Plan, columns: Sequence[Array]) -> Any:
    """The opposite of `columns_of`."""
    schema = plan.entries_schema
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _micros(text: str, field: str) -> int:
    from sash_engine.windows.spec.window import parse_duration

    plain = str(text).strip()
    if re.fullmatch(r"\d+", plain):
        raise refused(f"{field} {plain!r} has no unit; write 10m, 1h30m, 250ms", field)
    return parse_duration(plain, "us", field)


def _monoids(
    fields: Mapping[str, FieldType], aggregates: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[Monoid, tuple[str, ...]]]:
    """The aggregates by the rules of a window's spec."""
    # Imported here, on the driver only: every Python worker would spend most of a second on it.
    from sash_engine.windows.spec.window import WindowSpec

    document = {"name": "sliding", "aggregates": {name: dict(one) for name, one in aggregates.items()}}
    return WindowSpec.parse(document | ({"fields": dict(fields)} if fields else {})).monoids()


def _ignoring(monoid: Monoid, reads: tuple[str, ...], prefix: str) -> tuple[Monoid, tuple[str, ...]]:
    """The aggregate without rows in which a field that it reads is null."""
    from sash_engine.monoids import IgnoresNulls

    marks = tuple(prefix + name for name in reads if name != "time")
    return (IgnoresNulls(monoid, len(marks)), reads + marks) if marks else (monoid, reads)


def is_plain(kind: DataType) -> bool:
    """Whether values of a type are equal where their bytes are: not those of collations, nor of nested types."""
    if isinstance(kind, StringType):
        return getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"
    return isinstance(kind, AtomicType)


def _field_type(column: str, kind: DataType) -> FieldType:
    if isinstance(kind, DoubleType | FloatType):
        return "float64"
    if isinstance(kind, IntegralType):
        return "int64"
    if isinstance(kind, StringType):
        return "string"
    if isinstance(kind, BooleanType):
        return "bool"
    raise refused(f"column {column!r} is a {kind.simpleString()}: cast it to double, long, string or boolean", column)


def _answer_type(monoid: Monoid) -> Any:
    """Return the Arrow type of answers. An aggregate of another package may have no schema: then try two rows."""
    if monoid.schema is not None:
        return arrow_type(monoid.schema)
    sample = monoid.lower(monoid.reduce([_SAMPLES[kind] for kind in monoid.types]))
    return pa.array([sample]).type
