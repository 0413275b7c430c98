"""A read as its options describe it, and the columns that it returns.

entries    key  time  fields …                                 a row for each entry
answers    key  lookback  start  end  entries  aggregates …    a row for each key and lookback
series     key  time  entries  aggregates …                    a row for each key and bucket

Where keys have parts, there is a column for each part in place of `key`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sash_client import ALL_KEYS, Client, InvalidArgument, Unsupported, WindowInfo
from sash_client.data.times import to_tick
from sash_client.errors import refusing
from sash_spark.login import LOGIN_OPTIONS, Login
from sash_spark.names import meant
from sash_spark.options import Options
from sash_spark.reading.answer_columns import FIELD_TYPES, AnswerColumn, time_type
from sash_wire.coded import Coded
from sash_wire.durations import parse_duration
from sash_wire.key_parts import key_columns

_TABLES = ("entries", "answers", "series")
_APPLIES = {
    "lookback": ("answers",),
    "as_of": ("answers",),
    "start": ("entries", "series"),
    "end": ("entries", "series"),
    "step": ("series",),
    "width": ("series",),
    "combine": ("answers", "series"),
    "aggregates": ("answers", "series"),
}
"""Options that only some tables have: option -> their `what`. With another one they are refused, not ignored."""
_NAMED = {"lookbacks": "lookback"}
"""Options whose field has another name."""
_DURATION = refusing(parse_duration)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MICROSECONDS = {"us": 1, "ms": 1000, "s": 1_000_000}


@dataclass(frozen=True)
class Question:
    """The options of a read; made by `Question.of`."""

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
    delay: str | None = None

    @classmethod
    def of(cls, options: Options) -> Question:
        """Read the options.

        Raises:
            InvalidArgument: an option is unknown, missing, or has a wrong value.
        """
        texts = {_NAMED.get(each.name, each.name) for each in fields(cls)} - {"login"}
        options.only({*texts, "pushdown", *LOGIN_OPTIONS})
        found = cls(
            target=options.required("target"),
            window=options.required("window"),
            what=options.text("what") or "entries",
            keys=options.names("keys"),
            combine=options.flag("combine"),
            lookbacks=options.names("lookback") or (),
            aggregates=options.names("aggregates"),
            partitions=options.number("partitions", 0, least=1),
            timeout_s=options.seconds("timeout_s", 60.0),
            login=Login.of(options),
            **{name: options.text(name) for name in ("as_of", "start", "end", "step", "width", "delay")},
        )
        if found.what not in _TABLES:
            raise InvalidArgument(f"what is one of {', '.join(_TABLES)}, not {found.what!r}", field="what")
        for name, tables in _APPLIES.items():
            if found.what not in tables and options.text(name) is not None:
                raise InvalidArgument(
                    f"{name} is an option of {' and '.join(tables)}, and what is {found.what}", field=name
                )
        if found.what == "series":
            options.required("step")
        return found

    def client(self) -> Client:
        """Connect to the service."""
        return self.login.client(self.target, self.timeout_s)

    def schema(self) -> StructType:
        """Return the columns, in Spark's types."""
        with self.client() as client:
            return from_arrow_schema(Shape.of(self, client.window(self.window).describe()).schema)

    def asked(self, shape: Shape) -> dict[str, Any]:
        """Return the arguments of `Window.query`, besides the keys."""
        as_of = None if self.as_of is None else shape.tick(self.as_of, "as_of")
        return {"lookbacks": self.lookbacks, "as_of": as_of, "combine": shape.keyed and not shape.by_key}


@dataclass(frozen=True)
class Shape:
    """What a read needs to know of its window.

    Attributes:
        unit: the window's time unit.
        keyed: whether the window has keys.
        by_key: whether each row has a key.
        columns: name -> Arrow type.
        answers: how each aggregate becomes a column.
        parts: the names of the parts of keys; none where a key is one text.
    """

    unit: str
    keyed: bool
    by_key: bool
    columns: dict[str, Any]
    answers: tuple[AnswerColumn, ...] = ()
    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, question: Question, info: WindowInfo) -> Shape:
        """Find the columns of a question's rows.

        Raises:
            InvalidArgument: an aggregate does not exist, or has the name of another column; an option is no time or
                duration of the window's unit.
            Unsupported: the question asks for entries, and the window stores panes.
        """
        spec = info.spec
        unit, keyed, fields = spec["time_unit"], spec["keyed"], spec["fields"]
        if not keyed and (question.keys is not None or question.combine):
            raise InvalidArgument(f"window {info.name!r} is not keyed", field="keys" if question.keys else "combine")
        _check_times(question, unit)
        by_key = keyed and not question.combine
        instant = time_type(unit)
        parts = tuple(spec.get("keys") or ())
        columns = dict.fromkeys(parts or ("key",), pa.string()) if by_key else {}
        if question.what == "entries":
            if spec.get("granularity"):
                raise Unsupported(f"window {info.name!r} stores panes instead of entries: read its answers or a series")
            columns |= {"time": instant, **{name: FIELD_TYPES[kind] for name, kind in fields.items()}}
            return cls(unit, keyed, by_key, columns, parts=parts)
        if question.what == "answers":
            columns |= {"lookback": pa.string(), "start": instant, "end": instant, "entries": pa.int64()}
        else:
            columns |= {"time": instant, "entries": pa.int64()}
        known = spec["aggregates"]
        answers = []
        for name in aggregates_of(info.name, known, question.aggregates):
            if name.lower() in columns:
                raise InvalidArgument(
                    f"an aggregate and a column of the {question.what} are both called {name!r}: "
                    "name the others in the option aggregates",
                    field="aggregates",
                )
            answers.append(AnswerColumn.of(name, known[name], fields))
        return cls(unit, keyed, by_key, columns | {one.name: one.type for one in answers}, tuple(answers), parts)

    @cached_property
    def schema(self) -> Any:
        """All columns, as an Arrow schema."""
        return pa.schema(list(self.columns.items()))

    def key_columns(self, keys: Sequence[str | None]) -> dict[str, Any]:
        """Return the columns of n keys; none where rows have no key."""
        if not self.by_key:
            return {}
        coded = Coded.of([key or "" for key in keys])
        return {
            name: pa.array(column.dictionary, pa.string()).take(pa.array(column.codes))
            for name, column in key_columns(coded, self.parts).items()
        }

    def tick(self, text: str, name: str) -> int:
        """Parse an option that is a time: ticks, ISO 8601 (UTC unless it has an offset), now or -1h."""
        return to_tick(text, self.unit, name)

    def pushed(self, value: Any) -> int | None:
        """Return the last tick that is not after a value of the column `time`, or None for a value of another type."""
        if isinstance(value, datetime) and self.unit in _MICROSECONDS:
            instant = value if value.tzinfo else value.replace(tzinfo=UTC)
            return int((instant - _EPOCH) // _MICROSECOND // _MICROSECONDS[self.unit])
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def key_filter(self, keys: Sequence[str] | None) -> Any:
        """Return the argument `keys` of the client's calls."""
        return (list(keys) if keys is not None else ALL_KEYS) if self.keyed else None


def aggregates_of(window: str, known: Mapping[str, Any], wanted: str | Sequence[str] | None) -> list[str]:
    """Return the names of aggregates of a window, which are asked for in any case; all if None.

    Raises:
        InvalidArgument: there is none of that name, or several.
    """
    names = list(known) if wanted is None else [wanted] if isinstance(wanted, str) else wanted
    found = [meant(name, known) for name in names]
    for name, same in zip(names, found, strict=True):
        if len(same) != 1:
            raise InvalidArgument(
                f"window {window!r} has no aggregate {name!r}; it has {', '.join(known)}", field="aggregates"
            )
    return [same[0] for same in found]


def _check_times(question: Question, unit: str) -> None:
    """Refuse times and durations on the driver: the tasks, which use them, would fail only later, and each of them."""
    for lookback in question.lookbacks:
        _DURATION(lookback, unit, "lookback")
    for name in ("step", "width"):
        if (duration := getattr(question, name)) is not None:
            _DURATION(duration, unit, name)
    for name in ("start", "end", "as_of"):
        if (instant := getattr(question, name)) is not None:
            to_tick(instant, unit, name)
