"""The values of records as columns: a batch at once where it is as it should be, else record by record.

    values ──▶ joined by newlines ──▶ Arrow, with the types of the columns ──▶ table        fast: no object per record
                  └── a record is odd: each on its own ──▶ table, and a reason for each that does not fit

Fast only counts where row n is record n. So each newline must be between two records, JSON must begin with ``{`` and
end with ``}``, and nothing may look like two objects in one record. Otherwise the slow way decides, and says why. It
makes the same table of the same values.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from sash_wire.file_formats import MISSING, csv_values
from sash_wire.mapping import Source
from sash_wire.rows import instants

_TYPES = {"float64": pa.float64(), "int64": pa.int64(), "bool": pa.bool_(), "string": pa.string()}
_TWO = re.compile(rb"\}[ \t\r]*[\{\[]")
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MICROS = {"s": 10**6, "ms": 10**3, "us": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Wanted(NamedTuple):
    """A column that a window reads.

    Args:
        source: where its values come from.
        kind: float64, int64, bool or string; ``key``: a text, or an integer as one; ``time``: ticks or an instant.
    """

    source: Source
    kind: str


Read = Callable[[Wanted], Any]


class Reject(NamedTuple):
    """A record that does not fit.

    Args:
        row: its place in the batch.
        field: which value; None: the record itself.
        reason: what is wrong with it.
    """

    row: int
    field: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Records as columns.

    Args:
        columns: of the good ones, in the order in which they were wanted.
        rows: their places in the batch; None: all are good.
        rejects: the other ones.
    """

    columns: list[Any]
    rows: list[int] | None
    rejects: list[Reject]


class _OddError(Exception):
    """A batch that has to be looked at record by record."""


class Form:
    """What a record is."""

    def decode(self, values: Sequence[bytes | None], wanted: Sequence[Wanted]) -> Decoded:
        """Return columns of the values; those that do not fit are left out, with a reason."""
        try:
            return Decoded(self._fast(values, wanted), None, [])
        except (_OddError, pa.ArrowException, orjson.JSONDecodeError, UnicodeDecodeError, TypeError):
            return self._slow(values, wanted)

    def _fast(self, values: Sequence[bytes | None], wanted: Sequence[Wanted]) -> list[Any]:
        raise _OddError

    def _read(self, value: bytes) -> Read:
        """Return what gives the values of one record, None where it has none; both raise ValueError."""
        raise NotImplementedError

    def _slow(self, values: Sequence[bytes | None], wanted: Sequence[Wanted]) -> Decoded:
        columns: list[list[Any]] = [[] for _ in wanted]
        rows, rejects = [], []
        ticks: bool | None = None
        for row, value in enumerate(values):
            field = None
            try:
                if value is None or not value.strip():
                    raise ValueError("is empty")
                get, found = self._read(value), []
                for each in wanted:
                    field = str(each.source)
                    found.append(_fitting(get(each), each))
                    if each.kind == "time" and found[-1] is not None and each.source.unit is None:
                        is_tick = type(found[-1]) is int
                        if ticks is None:
                            ticks = is_tick
                        elif ticks is not is_tick:
                            raise ValueError(f"is {'ticks' if is_tick else 'an instant'}, and not as in other records")
            except ValueError as error:
                rejects.append(Reject(row, field, str(error)[:300]))
                continue
            rows.append(row)
            for column, item in zip(columns, found, strict=True):
                column.append(item)
        made = [_column(column, each) for column, each in zip(columns, wanted, strict=True)]
        return Decoded(made, rows, rejects)


class Json(Form):
    """A JSON object each."""

    def _fast(self, values: Sequence[bytes | None], wanted: Sequence[Wanted]) -> list[Any]:
        joined = b"\n".join(values)  # type: ignore[arg-type]  # None is odd
        inner = len(values) - 1
        if joined[:1] != b"{" or joined[-1:] != b"}" or joined.count(b"\n") != inner or joined.count(b"}\n{") != inner:
            raise _OddError
        if _TWO.search(joined):
            raise _OddError
        if not joined.isascii():
            joined.decode()  # Arrow would not check it
        get = self._read(values[0])  # type: ignore[arg-type]
        schema = _schema([(each.source.path, _sniffed(get(each), each)) for each in wanted])
        table = pa_json.read_json(
            pa.BufferReader(joined),
            pa_json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(values):
            raise _OddError
        return [_as_wanted(_at(table, each.source.path), each) for each in wanted]

    def _read(self, value: bytes) -> Read:
        try:
            document = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"is no JSON: {error}") from None
        if type(document) is not dict:
            raise ValueError("is JSON, and no object")
        return partial(member, document)


class Csv(Form):
    """A line of CSV each, without a header.

    Args:
        names: of the columns.
        separator: one character.
    """

    def __init__(self, names: Sequence[str], separator: str = ",") -> None:
        self._names, self._separator = list(names), separator

    def _fast(self, values: Sequence[bytes | None], wanted: Sequence[Wanted]) -> list[Any]:
        joined = b"\n".join(values)  # type: ignore[arg-type]  # None is odd
        if joined.count(b"\n") != len(values) - 1 or not joined or b"\n\n" in joined:
            raise _OddError
        first = self._read(values[0])  # type: ignore[arg-type]
        types = {each.source.path[0]: _sniffed(first(each), each) for each in wanted}
        table = pa_csv.read_csv(
            pa.BufferReader(joined),
            pa_csv.ReadOptions(use_threads=False, block_size=len(joined) + 1, column_names=self._names),
            pa_csv.ParseOptions(delimiter=self._separator),
            csv_values(types, missing=True, columns=dict.fromkeys(types)),
        )
        if table.num_rows != len(values):
            raise _OddError
        return [_as_wanted(table[each.source.path[0]], each) for each in wanted]

    def _read(self, value: bytes) -> Read:
        try:
            (cells,) = csv.reader([value.decode()], delimiter=self._separator, strict=True)
        except (ValueError, csv.Error) as error:
            raise ValueError(f"is no line of CSV: {error}") from None
        if len(cells) != len(self._names):
            raise ValueError(f"has {len(cells)} columns, and not {len(self._names)}")
        named = dict(zip(self._names, cells, strict=True))

        def get(wanted: Wanted) -> Any:
            text = named.get(wanted.source.path[0])
            if wanted.kind in ("string", "key") or text is None:
                return text
            if text in MISSING:
                return None
            if wanted.kind == "bool":
                return {"true": True, "false": False}.get(text.lower() if text in _BOOLS else text, text)
            for number in (int,) if wanted.kind == "int64" else (int, float) if wanted.kind == "float64" else ():
                try:
                    return number(text)
                except ValueError:
                    pass
            return int(text) if wanted.kind == "time" and re.fullmatch(r"-?\d+", text) else text

        return get


def member(document: Any, wanted: Wanted) -> Any:
    """The value that the path of a column leads to, None where there is none."""
    for name in wanted.source.path:
        if type(document) is not dict:
            return None
        document = document.get(name)
    return document


_BOOLS = ("true", "True", "TRUE", "false", "False", "FALSE")


def _sniffed(value: Any, wanted: Wanted) -> Any:
    """The type in which a column is read: times and keys are what the first one is."""
    if wanted.kind in ("time", "key"):
        return pa.int64() if type(value) is int else pa.string()
    return _TYPES[wanted.kind]


def _as_wanted(column: Any, wanted: Wanted) -> Any:
    if wanted.kind == "time":
        return instants(column, wanted.source.unit)
    return column.cast(pa.string()) if wanted.kind == "key" and pa.types.is_integer(column.type) else column


def _schema(columns: Iterable[tuple[tuple[str, ...], Any]]) -> Any:
    tree: dict[str, Any] = {}
    for path, kind in columns:
        at: Any = tree
        for name in path[:-1]:
            at = at.setdefault(name, {})
            if type(at) is not dict:
                raise _OddError
        if type(at.get(path[-1])) is dict or at.setdefault(path[-1], kind) != kind:
            raise _OddError  # one value in two types
    return pa.schema(_fields(tree))


def _fields(tree: dict[str, Any]) -> list[Any]:
    return [pa.field(name, pa.struct(_fields(kind)) if isinstance(kind, dict) else kind) for name, kind in tree.items()]


def _at(table: Any, path: tuple[str, ...]) -> Any:
    column = table[path[0]]
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def _fitting(value: Any, wanted: Wanted) -> Any:
    """Return a value in the type of its column; raises ValueError."""
    kind, found = wanted.kind, type(value)
    if value is None:
        return None
    if kind == "float64" and found in (float, int, Decimal):
        return float(value)
    if kind == "float64" and found is str and value in _SPECIAL:
        return _SPECIAL[value]
    if kind in ("int64", "time", "key") and found is int:
        if not -(2**63) <= value < 2**63:
            raise ValueError("is out of range of int64")
        return str(value) if kind == "key" else _instant(value, wanted.source.unit)
    if kind in ("string", "key") and found in (str, UUID):
        return str(value)
    if kind == "bool" and found is bool:
        return value
    if kind == "time" and found is str:
        return _parsed(value)
    if kind == "time" and found is datetime:
        return _since_1970(value)
    article = "an" if found is int else "a"
    raise ValueError(f"is {str(value)[:40]!r}, {article} {found.__name__}, and no {kind}")


def _instant(value: int, unit: str | None) -> Any:
    if unit is None:
        return value
    micros = value * _MICROS[unit]
    if not -(2**63) < micros < 2**63:
        raise ValueError("is out of range of microseconds")
    return pa.scalar(micros, pa.timestamp("us", "UTC"))


def _parsed(text: str) -> Any:
    if re.search(r"\.\d{7}", text):
        raise ValueError("has more digits than microseconds")
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"is {text[:40]!r}, and no time of ISO 8601") from None
    return _since_1970(at)


def _since_1970(at: datetime) -> Any:
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
    return pa.scalar(micros, pa.timestamp("us", "UTC"))


def _column(values: list[Any], wanted: Wanted) -> Any:
    if wanted.kind == "time":
        first = next((each for each in values if each is not None), None)
        kind = pa.int64() if first is None or type(first) is int else first.type
        return pa.chunked_array([pa.array(values, kind)])
    return pa.chunked_array([pa.array(values, _TYPES["string" if wanted.kind == "key" else wanted.kind])])
