"""Results as data frames of pandas and Polars and tables of Arrow, none of which is a dependency.

    result ──▶ Table: name -> Values ──▶ to_pandas, to_polars, to_arrow

Times are instants in UTC, or int64 ticks if the window counts logical time. No answer is a null; pandas has NaN in
columns of floats, and `Int64` and `boolean` in the place of int64 and bool. Structured answers are structs and lists,
and objects in pandas. Strings are plain strings.

A table needs the window's spec, which says what a tick is. It is fetched when a table is made, if it is not known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from sash_client.answers import Answer
from sash_client.data.bulks import ENTRIES, KEY, TIME, Bulk, part_name
from sash_client.data.libraries import imported
from sash_client.errors import Unsupported
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.key_parts import key_columns

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

Kind: TypeAlias = Literal["float64", "int64", "bool", "string", "binary", "time", "any"]
_POLARS_MAX_S = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """One column of a table.

    Args:
        kind: what the values are; "any" stands for Python objects of other types.
        data: (n,): an array of the kind; for "time" int64, ticks; objects (None for no value) for the last three kinds.
        missing: bool (n,): which values are missing, if some are; objects need none.
        unit: of times: "ns", "us", "ms" or "s".
        tells_nan: of floats: a missing value is something else than NaN.
    """

    kind: Kind
    data: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_] | None = None
    unit: str = ""
    tells_nan: bool = False

    @classmethod
    def times(cls, ticks: Sequence[int | None] | npt.NDArray[np.int64], unit: str) -> Values:
        """Return times; None stands for none. Ticks of unit "none" are integers."""
        missing = None
        if not isinstance(ticks, np.ndarray):
            missing = np.array([tick is None for tick in ticks], dtype=bool)
            ticks = np.array([0 if tick is None else tick for tick in ticks], dtype=np.int64)
        if missing is None or not missing.any():
            missing = None
        return cls("int64", ticks, missing) if unit == "none" else cls("time", ticks, missing, unit)

    @classmethod
    def texts(cls, texts: Sequence[str | None] | npt.NDArray[Any]) -> Values:
        """Return strings; None stands for none."""
        return cls("string", _objects(texts))

    @classmethod
    def of(cls, values: npt.NDArray[Any] | Sequence[Any]) -> Values:
        """Return an array, masked or not, or Python values: of the kind that all of them have, but for None."""
        if isinstance(values, np.ma.MaskedArray):
            missing = np.ma.getmaskarray(values)
            plain = cls.of(values.data)
            return cls(plain.kind, plain.data, missing if missing.any() else None)
        if isinstance(values, np.ndarray) and values.dtype != object:
            return cls(_KINDS[values.dtype.kind], values)
        items = list(values)
        kinds = {type(item) for item in items if item is not None}
        missing = np.array([item is None for item in items], dtype=bool)
        kept = missing if missing.any() else None
        if kinds == {bool}:
            return cls("bool", np.array([bool(item) for item in items], dtype=bool), kept)
        if kinds == {int} and all(-(2**63) <= item < 2**63 for item in items if item is not None):
            return cls("int64", np.array([item or 0 for item in items], dtype=np.int64), kept)
        if float in kinds and kinds <= {int, float}:
            return cls("float64", np.array([np.nan if item is None else item for item in items], np.float64), kept)
        kind: Kind = "string" if kinds == {str} else "binary" if kinds == {bytes} else "any"
        return cls(kind, _objects(items))


Table: TypeAlias = Mapping[str, Values]

_HTML_ROWS = 20


def html_of(table: Table) -> str:
    """Return the first rows of a table as HTML; what was written by anybody is escaped."""
    n = max([len(column.data) for column in table.values()], default=0)
    head = "".join(f"<th>{escape(name)}</th>" for name in table)
    columns = [_html_cells(column) for column in table.values()]
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in zip(*columns, strict=True)
    )
    rest = f"<p>{n:,} rows</p>" if n > _HTML_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{rest}"


def _html_cells(column: Values) -> list[str]:
    data = column.data[:_HTML_ROWS]
    if column.kind == "time":
        texts = np.datetime_as_string(data.view(f"datetime64[{column.unit}]"), timezone="UTC").tolist()
    else:
        texts = [f"{value:.6g}" if isinstance(value, float) else str(value)[:200] for value in data.tolist()]
    missing = [False] * len(texts) if column.missing is None else column.missing[:_HTML_ROWS].tolist()
    return [
        "" if gone or value is None else text for gone, value, text in zip(missing, data.tolist(), texts, strict=True)
    ]


_KINDS: Mapping[str, Kind] = {"f": "float64", "i": "int64", "b": "bool"}


class Tabular:
    """A result that is also a table."""

    __slots__ = ()

    def _table(self) -> Table:
        """The columns by name."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, which notebooks show."""
        return html_of(self._table())

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame of pandas.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        return to_pandas(self._table())

    def to_polars(self) -> pl.DataFrame:
        """Return a DataFrame of Polars.

        Raises:
            ModuleNotFoundError: Polars is not installed.
            Unsupported: Polars has no type for the answers of an aggregate.
        """
        return to_polars(self._table())

    def to_arrow(self) -> pa.Table:
        """Return a Table of Arrow.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
            Unsupported: Arrow has no type for the answers of an aggregate.
        """
        return to_arrow(self._table())


class AsyncTabular:
    """A result of the client for asyncio that is also a table; as `Tabular`."""

    __slots__ = ()

    async def _table(self) -> Table:
        """The columns by name."""
        raise NotImplementedError

    async def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame of pandas; raises as `Tabular.to_pandas`."""
        return to_pandas(await self._table())

    async def to_polars(self) -> pl.DataFrame:
        """Return a DataFrame of Polars; raises as `Tabular.to_polars`."""
        return to_polars(await self._table())

    async def to_arrow(self) -> pa.Table:
        """Return a Table of Arrow; raises as `Tabular.to_arrow`."""
        return to_arrow(await self._table())


def with_aggregates(table: Mapping[str, Values], aggregates: Table) -> Table:
    """Return a table with the columns of aggregates behind its own."""
    return {**table, **{f"aggregates.{name}" if name in table else name: each for name, each in aggregates.items()}}


def to_pandas(table: Table) -> pd.DataFrame:
    """Return a table as pandas' DataFrame; see `Tabular.to_pandas`."""
    pd = imported("pandas", "to_pandas")
    return pd.DataFrame({name: _in_pandas(pd, column) for name, column in table.items()})


def _in_pandas(pd: Any, column: Values) -> Any:
    data, missing = column.data, column.missing
    match column.kind:
        case "time":
            instants = data.view(f"datetime64[{column.unit}]")
            if missing is not None:
                instants = np.where(missing, np.array("NaT", instants.dtype), instants)
            return pd.Series(instants).dt.tz_localize("UTC")
        case "float64" if missing is not None and column.tells_nan:
            return pd.arrays.FloatingArray(data.copy(), missing.copy())
        case "float64":
            return data if missing is None else np.where(missing, np.nan, data)
        case "int64":
            return data if missing is None else pd.arrays.IntegerArray(data.copy(), missing.copy())
        case "bool":
            return data if missing is None else pd.arrays.BooleanArray(data.copy(), missing.copy())
        case "string":
            return pd.Series(data, dtype=object if pd.__version__ < "3" else "str")  # pandas 3 has a type for strings
        case _:
            return pd.Series(data, dtype=object)


def to_arrow(table: Table) -> pa.Table:
    """Return a table as Arrow's Table; see `Tabular.to_arrow`."""
    pa = imported("pyarrow", "to_arrow")
    return pa.table({name: _in_arrow(pa, name, column) for name, column in table.items()})


def _in_arrow(pa: Any, name: str, column: Values) -> Any:
    if column.kind == "time":
        return pa.array(column.data, pa.int64(), mask=column.missing).cast(pa.timestamp(column.unit, "UTC"))
    if column.kind == "any":
        try:
            return pa.array(column.data.tolist())
        except (pa.ArrowException, OverflowError) as error:
            raise _unsupported("Arrow", name, error) from None
    types = {"float64": pa.float64, "int64": pa.int64, "bool": pa.bool_, "string": pa.string, "binary": pa.binary}
    return pa.array(column.data, types[column.kind](), mask=column.missing, from_pandas=False)


def to_polars(table: Table) -> pl.DataFrame:
    """Return a table as Polars' DataFrame; see `Tabular.to_polars`."""
    library = imported("polars", "to_polars")
    frame: pl.DataFrame = library.DataFrame([_in_polars(library, name, column) for name, column in table.items()])
    return frame


def _in_polars(pl: Any, name: str, column: Values) -> Any:
    data, missing, kind = column.data, column.missing, column.kind
    if kind in ("string", "binary"):
        return pl.Series(name, data.tolist(), dtype=pl.String if kind == "string" else pl.Binary)
    if kind == "any":
        try:
            return pl.Series(name, _alike(data.tolist()))
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise _unsupported("Polars", name, error) from None
    unit = column.unit
    if unit == "s":  # Polars has no seconds
        if data.size and not -_POLARS_MAX_S <= int(data.min()) <= int(data.max()) <= _POLARS_MAX_S:
            raise Unsupported(f"column {name!r} has times that Polars cannot hold: its coarsest unit is ms", field=name)
        data, unit = data * 1000, "ms"
    series = pl.Series(name, data)
    if missing is not None:
        series = series.set(pl.Series(missing), None)
    return series.cast(pl.Datetime(unit)).dt.replace_time_zone("UTC") if kind == "time" else series


def _alike(items: list[Any]) -> list[Any]:
    """Mappings, each with the names of all: Polars takes the names of the first one, and drops all others."""
    mappings = [item for item in items if isinstance(item, Mapping)]
    names = dict.fromkeys(name for item in mappings for name in item)
    if len(mappings) + items.count(None) < len(items):
        return items
    return [None if item is None else {name: item.get(name) for name in names} for item in items]


def _objects(items: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.fromiter(items, dtype=object, count=len(items))


def _unsupported(library: str, name: str, error: Exception) -> Unsupported:
    return Unsupported(f"{library} has no type for all values of {name!r}: {error}", field=name)


_DTYPES: dict[str, Any] = {"float64": np.float64, "int64": np.int64, "bool": np.bool_, "string": np.object_}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Series(Tabular):
    """Answers over n buckets: bucket i has the entries with `times[i] <= time < times[i] + width`.

    As a table it has a row for each bucket, with the columns "time", "key" if it has one, or one for each part of it,
    "entries", and one for each aggregate by its name. An aggregate with the name of another column is in
    `aggregates.NAME`.

    Args:
        key: the key; None if the window is not keyed, or the answers are over several keys together.
        times: int64 (n,), ticks: where each bucket starts.
        width: ticks that a bucket is long.
        entries: int64 (n,): how many entries each bucket has.
        aggregates: name -> array (n,): float64 or int64, masked (`numpy.ma`) if some buckets have no answer; under the
            mask stands NaN, or 0. Answers that are no numbers have the dtype object, with None for no answer. Sorted by
            name.
        time_unit: what a tick is: "ns", "us", "ms", "s", or "none".
        parts: as of `Answer`.
        last: of sessions: int64 (n,), the times of their last entries, as `times` are of the first; else None.
        missing_shards: as of `Answer`.
    """

    key: str | None
    times: npt.NDArray[np.int64]
    width: int
    entries: npt.NDArray[np.int64]
    aggregates: Mapping[str, npt.NDArray[Any]]
    time_unit: str
    parts: Mapping[str, str] | None = None
    last: npt.NDArray[np.int64] | None = None
    missing_shards: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        named = f"{self.parts or self.key!r}, " if self.parts or self.key is not None else ""
        aggregates = ", ".join(self.aggregates)
        return f"Series({named}{len(self)} buckets of {self.width} {self.time_unit}, aggregates {aggregates})"

    def datetimes(self) -> npt.NDArray[np.datetime64]:
        """Return `times` as datetime64 (n,) of the window's unit, UTC; ValueError if it counts logical ticks."""
        if self.time_unit == "none":
            raise ValueError("the window counts logical ticks, which are no instants")
        return self.times.view(f"datetime64[{self.time_unit}]")

    def _table(self) -> Table:
        table = {"time": Values.times(self.times, self.time_unit)}
        for name, part in (self.parts or {}).items():
            table[name] = Values.texts([part] * len(self))
        if self.key is not None and self.parts is None:
            table["key"] = Values.texts([self.key] * len(self))
        if self.last is not None:
            table["last"] = Values.times(self.last, self.time_unit)
        table["entries"] = Values.of(self.entries)
        return with_aggregates(table, {name: Values.of(column) for name, column in self.aggregates.items()})


class _Listed(list[Answer]):
    """The answers of a question, and what it says of them together."""

    def __init__(self, answers: Iterable[Answer], spec: Callable[[], Any]) -> None:
        super().__init__(answers)
        self.next = getattr(answers, "next", None)
        self.missing_shards = getattr(answers, "missing_shards", ())
        self._spec = spec


class Answers(Tabular, _Listed):
    """The answers of a query: a list, and a table with a row for each answer.

    The table has the columns "key" if the window is keyed, or one for each part of keys, and "lookback" if the query
    had lookbacks. Then come "start", "end" (the first and the last time that are included), "entries", and one column
    for each aggregate by its name. An aggregate with the name of another column is in `aggregates.NAME`. Partials are
    not in the table.

    Args:
        answers: the answers.
        spec: returns the window's spec.

    Attributes:
        next: of a question with a limit: the position to go on at; None after the last answers.
        missing_shards: with `partial`: the shards that are away, whose part the answers lack.
    """

    def _table(self) -> Table:
        return _answers_table(self, self._spec())


class RangeAnswer(Answer):
    """The answer of a range query: an `Answer`, and a table with one row."""

    __slots__ = ("_answers",)
    _answers: Any

    @classmethod
    def of(cls, answer: Answer, answers: Any) -> RangeAnswer:
        """Return an answer that is also a table.

        Args:
            answers: the `Answers` or `AsyncAnswers` that have it alone.
        """
        made = cls(**{each.name: getattr(answer, each.name) for each in fields(Answer)})
        object.__setattr__(made, "_answers", answers)
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Answer):
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(Answer) if each.compare)

    __hash__ = Answer.__hash__

    def __reduce__(self) -> Any:
        return Answer, tuple([getattr(self, each.name) for each in fields(Answer)])

    def __repr__(self) -> str:
        return super().__repr__().removeprefix("Range")

    def _repr_html_(self) -> Any:
        # The table of the client for asyncio is awaited: notebooks show the text.
        return self._answers._repr_html_() if isinstance(self._answers, Tabular) else None

    def to_pandas(self) -> Any:
        """Return a DataFrame of pandas with one row; awaited in the client for asyncio."""
        return self._answers.to_pandas()

    def to_polars(self) -> Any:
        """Return a DataFrame of Polars with one row; awaited in the client for asyncio."""
        return self._answers.to_polars()

    def to_arrow(self) -> Any:
        """Return a Table of Arrow with one row; awaited in the client for asyncio."""
        return self._answers.to_arrow()


class AsyncAnswers(AsyncTabular, _Listed):
    """`Answers` of the client for asyncio.

    Args:
        answers: the answers.
        spec: returns the window's spec.
    """

    async def _table(self) -> Table:
        return _answers_table(self, await self._spec())


class Entries(Tabular, Iterator[Bulk]):
    """Entries as they arrive: an iterator of bulks; and as a table, which reads all bulks that are still to come.

    A table has the columns "time", "key" if the window is keyed, or one for each part of keys, and one for each field.
    With `known` it has the numbers of arrivals, too. If the window has a granularity, it has "entries" and the parts of
    partials, `partials.NAME[0]`, instead of fields. `Window.bulk_insert` takes it.

    Args:
        bulks: the bulks.
        spec: returns the window's spec.
    """

    def __init__(self, bulks: Iterator[Bulk], spec: Callable[[], pb.WindowSpec]) -> None:
        self._bulks = bulks
        self._spec = spec

    def __next__(self) -> Bulk:
        return next(self._bulks)

    def close(self) -> None:
        """End the call; there are no more bulks then."""
        close: Callable[[], None] | None = getattr(self._bulks, "close", None)
        if close is not None:
            close()

    def _table(self) -> Table:
        bulks = list(self._bulks)
        return _entries_table(bulks, self._spec())


class AsyncEntries(AsyncTabular, AsyncIterator[Bulk]):
    """`Entries` of the client for asyncio.

    Args:
        bulks: the bulks.
        spec: returns the window's spec.
    """

    def __init__(self, bulks: AsyncIterator[Bulk], spec: Callable[[], Awaitable[pb.WindowSpec]]) -> None:
        self._bulks = bulks
        self._spec = spec

    async def __anext__(self) -> Bulk:
        return await anext(self._bulks)

    async def aclose(self) -> None:
        """End the call; there are no more bulks then."""
        close: Callable[[], Awaitable[None]] | None = getattr(self._bulks, "aclose", None)
        if close is not None:
            await close()

    async def _table(self) -> Table:
        bulks = [bulk async for bulk in self._bulks]
        return _entries_table(bulks, await self._spec())


def _answers_table(answers: Sequence[Answer], spec: pb.WindowSpec) -> Table:
    unit = spec.time_unit or "us"
    table: dict[str, Values] = {}
    parts = [name for name in spec.keys if not answers or all(name in (each.parts or {}) for each in answers)]
    for name in parts or sorted(answers[0].parts or {} if answers else ()):
        table[name] = Values.texts([(answer.parts or {}).get(name) for answer in answers])
    if spec.keyed and not table and (not answers or any(answer.key is not None for answer in answers)):
        table[KEY] = Values.texts([answer.key for answer in answers])
    if any(answer.lookback is not None for answer in answers):
        table["lookback"] = Values.texts([answer.lookback for answer in answers])
    table["start"] = Values.times([answer.start for answer in answers], unit)
    table["end"] = Values.times([answer.end for answer in answers], unit)
    if answers and all(answer.known_at is not None for answer in answers):
        table["known_at"] = Values.of(np.array([answer.known_at for answer in answers], dtype=np.int64))
    table[ENTRIES] = Values.of(np.array([answer.entries for answer in answers], dtype=np.int64))
    # Somebody may have added aggregates since the spec was fetched.
    names = sorted({name for answer in answers for name in answer.aggregates} or spec.aggregates)
    columns = {name: Values.of([answer.aggregates.get(name) for answer in answers]) for name in names}
    return with_aggregates(table, columns)


def _entries_table(bulks: Sequence[Bulk], spec: pb.WindowSpec) -> Table:
    table = {TIME: Values.times(_joined([bulk.times for bulk in bulks], np.int64), spec.time_unit or "us")}
    if spec.keyed:
        keys = _joined([bulk.keys for bulk in bulks], np.object_)
        for name, column in key_columns(Coded.of(keys.tolist()), spec.keys).items():
            table[name] = Values.texts(column.decode())
    if not spec.granularity:
        for name, kind in sorted(spec.fields.items()):
            values = _joined([bulk.columns[name] for bulk in bulks], _DTYPES[kind])
            table[name] = Values.texts(values) if kind == "string" else replace(Values.of(values), tells_nan=True)
        for name in sorted((bulks[0].columns if bulks else {}).keys() - spec.fields.keys()):  # the numbers of `known`
            table[name] = Values.of(_joined([bulk.columns[name] for bulk in bulks]))
        return table
    table[ENTRIES] = Values.of(_joined([bulk.entries for bulk in bulks], np.int64))
    for name, parts in ((bulks[0].partials or {}) if bulks else {}).items():
        for at in range(len(parts)):
            found: list[Any] = [(bulk.partials or {})[name][at] for bulk in bulks]
            blobs = isinstance(found[0], list)
            table[part_name(name, at)] = Values.of(
                [blob for part in found for blob in part] if blobs else _joined(found)
            )
    return table


def _joined(arrays: Sequence[Any], dtype: Any = None) -> npt.NDArray[Any]:
    if any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        return np.ma.concatenate(arrays)  # type: ignore[no-any-return, no-untyped-call]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
