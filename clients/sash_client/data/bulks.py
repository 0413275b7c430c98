"""Bulks, checked and converted to columns of a window's types, and these to messages.

frame ──from_frame──▶ Bulk ──checked──▶ Columns ──requests──▶ BulkInsertRequest, BulkInsertRequest, …
                        ▲                                               │
                        └─────────────────── from_bulk ─────────────────┘
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from sash_client.answers import PartialColumn
from sash_client.data.columns import to_coded, to_column, to_nullable, to_part
from sash_client.data.libraries import eager, is_pandas
from sash_client.data.times import Ticks, to_ticks
from sash_client.errors import InvalidArgument, refusing
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.columns import Column, fill_column, fill_strings, read_column, read_strings, read_valid
from sash_wire.key_parts import check_named, joined
from sash_wire.meant import no_field
from sash_wire.nulls import is_mark, mark_of, named_by

TIME, KEY, ENTRIES = "time", "key", "entries"
"""Columns that are no fields."""
_KNOWN_AT = "known_at"

_PART = re.compile(r"partials\.(.+)\[([0-9]{1,4})\]")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bulk:
    """n entries as columns, as `Window.bulk_insert` takes them and `Window.entries` gives them.

    Args:
        times: n ticks or instants; from the service, int64 (n,), ticks.
        columns: n values for each field, by name; or n values alone if the window has one field. From the service,
            arrays (n,) by name: float64, int64, bool, or objects (str). None if there are partials.
        keys: n keys in a keyed window, or one string for all entries; from the service, objects (str) (n,).
        partials: in the place of columns, for windows with a granularity: for each aggregate the parts of n partials.
        entries: with partials: int64 (n,), how many entries each row stands for.
    """

    times: Any
    columns: Any = None
    keys: Any = None
    partials: Mapping[str, Any] | None = None
    entries: Any = None

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        given = self.partials if self.columns is None else self.columns
        names = ", ".join(map(str, given)) if isinstance(given, Mapping) else "value"
        return f"Bulk({'no times' if self.times is None else f'{len(self.times)} entries'}: {names})"

    @staticmethod
    def from_frame(frame: Any, time: str | None = None, key: str | None = None) -> Bulk:
        """Return the rows of a data frame as a bulk; nothing is copied.

        Args:
            frame: a DataFrame of pandas or Polars, a LazyFrame, a Table or RecordBatch of Arrow. Every column besides
                the two below is the field of its name.
            time: the column with the times, ticks or instants; "time" if None. With pandas, it may be a level of the
                index; a `DatetimeIndex` is the time of a frame without such a column.
            key: the column with the keys; if None, "key", if the frame has it.

        Raises:
            InvalidArgument: the frame has no such column, or two columns of one name.
        """
        return from_frame(frame, time, key)


class Rows(TypedDict, total=False):
    """The arguments of `Window.bulk_insert` besides times and columns; it describes them."""

    keys: Any
    partials: Mapping[str, Any] | None
    entries: Any
    time: str | None
    key: str | None


class _Columned:
    """A dict of columns, or a list of dicts, with the shape of a frame. What a row lacks is None."""

    def __init__(self, given: Mapping[Any, Any] | list[Mapping[Any, Any]]) -> None:
        if isinstance(given, Mapping):
            self._columns = dict(given)
        else:
            names = dict.fromkeys(name for row in given for name in row)
            self._columns = {name: [row.get(name) for row in given] for name in names}
        self.column_names = list(self._columns)

    def __getitem__(self, name: Any) -> Any:
        return self._columns[name]


def is_frame(values: Any) -> bool:
    """Whether an object is a DataFrame of pandas or Polars, or a Table or RecordBatch of Arrow."""
    kind = type(values)
    names = {"pandas": ("DataFrame",), "polars": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}
    return any(base.__name__ in names.get(base.__module__.partition(".")[0], ()) for base in kind.__mro__)


def from_frame(frame: Any, time: str | None = None, key: str | None = None, timeless: bool = False) -> Bulk:
    """Return the rows of a frame as a bulk; see `Bulk.from_frame`. `timeless`: it may have no times."""
    frame = eager(frame)
    columns = _columns(frame)
    times = _taken(columns, frame, time, TIME)
    if times is None and time is None and is_pandas(frame) and type(frame.index).__name__ == "DatetimeIndex":
        times = frame.index
    if times is None and (time is not None or not timeless):
        raise InvalidArgument(
            f"the frame has no column {time or TIME!r}; it has {', '.join(map(str, columns)) or 'none'}. "
            "Say which one holds the times: time=…",
            field=time or TIME,
        )
    keys = _taken(columns, frame, key, KEY)
    if keys is None and key is not None:
        raise InvalidArgument(f"the frame has no column {key!r}", field=key)
    parts = {name: found for name in columns if isinstance(name, str) and (found := _PART.fullmatch(name))}
    if not parts:
        return Bulk(times, columns, keys)
    partials: dict[str, dict[int, Any]] = {}
    for name, found in parts.items():
        partials.setdefault(found[1], {})[int(found[2])] = columns.pop(name)
    entries = columns.pop(ENTRIES, None)
    for name in columns:
        raise InvalidArgument(f"column {name!r} stands beside partials: those stand in the place of fields", field=name)
    return Bulk(
        times,
        keys=keys,
        partials={name: [each[at] for at in sorted(each)] for name, each in partials.items()},
        entries=entries,
    )


def bulk_of(
    times: Any,
    columns: Any = None,
    keys: Any = None,
    partials: Mapping[str, Any] | None = None,
    entries: Any = None,
    time: str | None = None,
    key: str | None = None,
    timeless: bool = False,
) -> Bulk:
    """Return the bulk that the arguments of `Window.bulk_insert` stand for; `timeless`: a frame may have no times.

    Raises:
        InvalidArgument: arguments for a frame without a frame, or for columns with one.
    """
    times = eager(times)
    if isinstance(times, Mapping) or (isinstance(times, list) and times and isinstance(times[0], Mapping)):
        times = _Columned(times)
    if not is_frame(times) and not isinstance(times, _Columned):
        for name, given in (("time", time), ("key", key)):
            if given is not None:
                raise InvalidArgument(f"{name} names a column of a data frame, and there is none", field=name)
        return Bulk(times, columns, keys, partials, entries)
    for name, value in (("columns", columns), ("partials", partials), ("entries", entries)):
        if value is not None:
            raise InvalidArgument(f"give either a data frame or {name}", field=name)
    bulk = from_frame(times, time, key, timeless)
    if keys is None:
        return bulk
    if bulk.keys is not None:
        raise InvalidArgument("the data frame has keys already: give either key or keys", field="keys")
    return Bulk(bulk.times, bulk.columns, keys, bulk.partials, bulk.entries)


def part_name(aggregate: str, part: int) -> str:
    """Return the name of the column with one part of an aggregate's partials."""
    return f"partials.{aggregate}[{part}]"


def _columns(frame: Any) -> dict[Any, Any]:
    """The columns of a frame by name, in its order."""
    names = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"the frame has two columns {name!r}", field=str(name))
    return {name: frame[name] for name in names}


def _taken(columns: dict[Any, Any], frame: Any, name: str | None, usual: str) -> Any:
    """Take a column, or a level of pandas' index; return None if the frame has neither."""
    name = usual if name is None else name
    if name in columns:
        return columns.pop(name)
    if is_pandas(frame) and name in frame.index.names:
        return frame.index.get_level_values(name)
    return None


@dataclass(frozen=True, slots=True)
class Columns:
    """n entries of one window, ready to travel.

    Args:
        times: int64 (n,), ticks.
        fields: field -> n values of its type; and the mark of a field in which a value is null, see `sash_wire.nulls`.
        keys: n keys; None if the window is not keyed.
        partials: aggregate -> the parts of n partials.
        entries: with partials: int64 (n,).
    """

    times: Ticks
    fields: Mapping[str, Column] = field(default_factory=dict)
    keys: Coded | None = None
    partials: Mapping[str, Sequence[Column]] = field(default_factory=dict)
    entries: npt.NDArray[np.int64] | None = None

    def requests(self, window: str, *, entries_max: int, bytes_max: int) -> Iterator[pb.BulkInsertRequest]:
        """Yield them as requests of at most `entries_max` rows and `bytes_max` bytes each, in order.

        Where they are cut depends on nothing else, so that the same bulk is cut in the same places again. A single
        row larger than `bytes_max` is sent as it is: the service's refusal names its limit.
        """
        # Later parts are taken from the end of a stack, so that halving an oversized part keeps the order.
        n = len(self.times)
        stops = range(0, max(n, 1), entries_max)
        parts = [(start, min(start + entries_max, n)) for start in reversed(stops)]
        while parts:
            start, stop = parts.pop()
            request = self._request(window, start, stop)
            if request.ByteSize() > bytes_max and stop - start > 1:
                middle = (start + stop) // 2
                parts += [(middle, stop), (start, middle)]
            else:
                yield request

    def split(self, of: npt.NDArray[Any]) -> Iterator[tuple[int, Columns]]:
        """Yield the rows by the part that each is `of` (n,), in their order; and the part."""
        for part in np.unique(of).tolist():
            yield part, self._picked(np.flatnonzero(of == part))

    def _picked(self, rows: npt.NDArray[np.intp]) -> Columns:
        if len(rows) == len(self.times):
            return self
        return Columns(
            self.times[rows],
            {name: _picked(column, rows) for name, column in self.fields.items()},
            None if self.keys is None else self.keys.rows(rows),
            {name: [_picked(part, rows) for part in parts] for name, parts in self.partials.items()},
            None if self.entries is None else self.entries[rows],
        )

    def _request(self, window: str, start: int, stop: int) -> pb.BulkInsertRequest:
        request = pb.BulkInsertRequest(window=window, time=self.times[start:stop].tobytes())
        for name, column in self.fields.items():
            some = _rows(column, start, stop)
            if is_mark(name) and isinstance(some, np.ndarray):
                request.fields[named_by(name)].valid = some.tobytes()
            else:
                fill_column(request.fields[name], some)
        if self.keys is not None:
            fill_strings(request.key, _strings(self.keys, start, stop))
        for name, parts in self.partials.items():
            columns = request.partials[name].columns
            for part in parts:
                fill_column(columns.add(), _rows(part, start, stop))
        if self.entries is not None:
            request.entries = self.entries[start:stop].tobytes()
        return request


def checked(bulk: Bulk, spec: pb.WindowSpec) -> Columns:
    """Return the columns of a bulk, converted to the window's types.

    Raises:
        InvalidArgument: names the column that does not fit in `field`.
    """
    ticks = to_ticks(bulk.times, spec.time_unit or "us")
    n = len(ticks)
    bulk = _with_keys(bulk, spec)
    if bulk.partials is None:
        if bulk.entries is not None:
            raise InvalidArgument("entries go with partials; give partials, too", field="entries")
        fields = _fields(bulk, spec)
        columns = Columns(ticks, fields, _keys(bulk.keys, n))
    else:
        if bulk.columns is not None:
            raise InvalidArgument("give either columns or partials", field="partials")
        partials = {name: _parts(parts, name) for name, parts in bulk.partials.items()}
        entries = None if bulk.entries is None else to_column(bulk.entries, "int64", "entries")
        assert not isinstance(entries, Coded | list)
        columns = Columns(ticks, {}, _keys(bulk.keys, n), partials, entries)
    _check_lengths(columns)
    return columns


def pairs_of(bulk: Bulk, spec: pb.WindowSpec, known_at: Any = None) -> Columns:
    """The times and keys of pairs, of which a frame may have other columns, too; raises as `checked`.

    Args:
        known_at: of what each is known at: the name of a column of the frame, n numbers, or one for all; None: nothing.
            It becomes a field.
    """
    ticks, asked = to_ticks(bulk.times, spec.time_unit or "us"), dict[str, Column]()
    if isinstance(known_at, str):
        if not isinstance(bulk.columns, Mapping) or known_at not in bulk.columns:
            raise InvalidArgument(f"known_at names a column {known_at!r}, and there is none", field=_KNOWN_AT)
        known_at = bulk.columns[known_at]
    if known_at is not None:
        each = [known_at] * len(ticks) if isinstance(known_at, int) else known_at
        asked[_KNOWN_AT] = to_column(each, "int64", _KNOWN_AT)
    bulk = _with_keys(bulk, spec)
    columns = Columns(ticks, asked, _keys(bulk.keys, len(ticks)))
    _check_lengths(columns)
    return columns


def by_key(pairs: Columns) -> tuple[Columns, npt.NDArray[np.intp] | None]:
    """The pairs sorted by key, those of a key in their order, and which row each was; None: they are as they were."""
    if pairs.keys is None:
        return pairs, None
    order = np.argsort(pairs.keys.codes, kind="stable")
    fields: dict[str, Column] = {name: np.asarray(column)[order] for name, column in pairs.fields.items()}
    return Columns(pairs.times[order], fields, Coded(pairs.keys.dictionary, pairs.keys.codes[order])), order


def keyed_times(request: pb.AnswersAtRequest, pairs: Columns, start: int, stop: int) -> None:
    """Write the times and keys of some rows into a request."""
    request.time = pairs.times[start:stop].tobytes()
    if (known_at := pairs.fields.get(_KNOWN_AT)) is not None:
        assert isinstance(known_at, np.ndarray)
        request.known_at = known_at[start:stop].tobytes()
    if pairs.keys is not None:
        fill_strings(request.key, _strings(pairs.keys, start, stop))


def from_bulk(message: pb.BulkInsertRequest) -> Bulk:
    """Return the entries of a message."""
    return Bulk(
        times=np.frombuffer(message.time, "<i8"),
        columns=None
        if message.partials
        else {name: _array(each, name) for name, each in sorted(message.fields.items())},
        keys=read_strings(message.key, "key").decode() if message.HasField("key") else None,
        partials={name: from_partials(parts) for name, parts in sorted(message.partials.items())} or None,
        entries=np.frombuffer(message.entries, "<i8") if message.partials else None,
    )


def from_partials(message: pb.PartialColumns) -> tuple[PartialColumn, ...]:
    """Return the parts of n partials."""
    return tuple(_array(column, "partials") for column in message.columns)


def _fields(bulk: Bulk, spec: pb.WindowSpec) -> dict[str, Column]:
    """The columns of the fields, and the marks of those in which a value is null."""
    fields: dict[str, Column] = {}
    for name, each in _named(bulk.columns, spec).items():
        if name in spec.nullable:
            fields[name], there = to_nullable(each, spec.fields[name], name)
            if there is not None:
                fields[mark_of(name)] = there
        else:
            fields[name] = to_column(each, spec.fields[name], name)
    return fields


def _named(columns: Any, spec: pb.WindowSpec) -> Mapping[str, Any]:
    fields = spec.fields
    if not isinstance(columns, Mapping):
        if columns is None or len(fields) != 1:
            raise InvalidArgument(
                f"give a column for each field, by name: {', '.join(sorted(fields))}",
                field="columns",
            )
        return {next(iter(fields)): columns}
    for name in [*columns, *fields]:
        if name not in fields:
            raise InvalidArgument(no_field(spec.name, str(name), sorted(fields)), field=name)
        if name not in columns:
            raise InvalidArgument(f"field {name!r} is missing", field=name)
    return columns


@refusing
def _with_keys(bulk: Bulk, spec: pb.WindowSpec) -> Bulk:
    """Return a bulk whose keys are joined, where their parts are given: as keys by name, or among the columns."""
    keys, columns = bulk.keys, bulk.columns
    if keys is None and spec.keys and isinstance(columns, Mapping) and any(name in columns for name in spec.keys):
        keys = {name: columns[name] for name in spec.keys if name in columns}
        columns = {name: column for name, column in columns.items() if name not in spec.keys}
    if not isinstance(keys, Mapping):
        return bulk
    check_named(keys, spec.keys, f"window {spec.name!r}", set(columns or ()) - set(spec.fields))
    parts = {name: _keys(keys[name], len(bulk.times), name) for name in spec.keys}
    whole = joined({name: part for name, part in parts.items() if part is not None})
    return replace(bulk, keys=whole, columns=columns)


def _keys(keys: Any, n: int, name: str = "key") -> Coded | None:
    if keys is None:
        return None
    if isinstance(keys, str):
        return Coded([keys], np.zeros(n, dtype="<u4"))
    return keys if isinstance(keys, Coded) else to_coded(keys, name)


def _parts(parts: Any, name: str) -> list[Column]:
    """The parts of an aggregate's partials: by name or in order; or its only part, alone."""
    path = f"partials.{name}"
    if isinstance(parts, Mapping):
        return [to_part(part, f"{path}.{key}") for key, part in parts.items()]
    if isinstance(parts, list | tuple) and parts and not np.isscalar(parts[0]):
        return [to_part(part, f"{path}[{i}]") for i, part in enumerate(parts)]
    return [to_part(parts, path)]


def _check_lengths(columns: Columns) -> None:
    n = len(columns.times)
    named: list[tuple[str, Any]] = [*columns.fields.items(), ("key", columns.keys), ("entries", columns.entries)]
    named += [(f"partials.{name}", part) for name, parts in columns.partials.items() for part in parts]
    for name, column in named:
        if column is not None and len(column) != n:
            raise InvalidArgument(
                f"column {name!r} has {len(column)} values, and there are {n} rows", field=name, limit=str(n)
            )


def _picked(column: Any, rows: npt.NDArray[np.intp]) -> Any:
    if isinstance(column, Coded):
        return column.rows(rows)
    return [column[row] for row in rows.tolist()] if isinstance(column, list) else column[rows]


def _rows(column: Column, start: int, stop: int) -> Column:
    return _strings(column, start, stop) if isinstance(column, Coded) else column[start:stop]


def _strings(column: Coded, start: int, stop: int) -> Coded:
    whole = start == 0 and stop == len(column)
    return column if whole else column.part(start, stop)


def _array(column: pb.Column, name: str) -> Any:
    found = read_column(column, name)
    there = read_valid(column, name, len(found)) if column.valid else None
    if isinstance(found, Coded):
        texts = found.decode()
        if there is not None:
            texts[~there] = None
        return texts
    return found if there is None else np.ma.masked_array(found, ~there)
