"""Bulks, checked and converted to columns of a window's types, and these to messages.

Bulk ──checked──▶ Columns ──requests──▶ BulkInsertRequest, BulkInsertRequest, …     each within the limits
  ▲                                               │
  └─────────────────── from_bulk ─────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.answers import Bulk, PartialColumn
from sash_client.columns import to_coded, to_column, to_part
from sash_client.errors import InvalidArgument
from sash_client.nullable import to_nullable
from sash_client.times import Ticks, to_ticks
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.columns import Column, fill_column, fill_strings, read_column, read_strings, read_valid
from sash_wire.errors import WireError
from sash_wire.key_parts import check_named, joined
from sash_wire.nulls import is_mark, mark_of, named_by

__all__ = ["Columns", "checked", "from_bulk", "from_partials"]


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
            known = ", ".join(sorted(fields))
            raise InvalidArgument(f"window {spec.name!r} has no field {name!r}; it has {known}", field=name)
        if name not in columns:
            raise InvalidArgument(f"field {name!r} is missing", field=name)
    return columns


def _with_keys(bulk: Bulk, spec: pb.WindowSpec) -> Bulk:
    """Return a bulk whose keys are joined, where their parts are given: as keys by name, or among the columns."""
    keys, columns = bulk.keys, bulk.columns
    if keys is None and spec.keys and isinstance(columns, Mapping) and any(name in columns for name in spec.keys):
        keys = {name: columns[name] for name in spec.keys if name in columns}
        columns = {name: column for name, column in columns.items() if name not in spec.keys}
    if not isinstance(keys, Mapping):
        return bulk
    n = len(bulk.times)
    try:
        check_named(keys, spec.keys, f"window {spec.name!r}")
        parts = {name: _keys(keys[name], n, name) for name in spec.keys}
        whole = joined({name: part for name, part in parts.items() if part is not None})
    except WireError as error:
        raise InvalidArgument(error.message, field=error.field, limit=error.limit) from None
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
