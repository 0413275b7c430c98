"""Single entries, checked one by one and gathered into a bulk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

import numpy as np

from sash_client.answers import Bulk
from sash_client.errors import InvalidArgument
from sash_client.keys import Key, text
from sash_client.parts import parts_joined
from sash_client.times import TimeLike, to_tick
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["OpenBulk", "Row", "checked_row"]

Row = tuple[int, str | None, list[Any]]
"""An entry: its tick, its key, and its values by the names of the fields."""

_ENTRY_BYTES = 16
"""Bytes that an entry counts for, besides its values."""


class OpenBulk:
    """The bulk that is being gathered, as lists.

    Args:
        fields: the names of the window's fields.
    """

    def __init__(self, fields: Iterable[str]) -> None:
        self.entries, self.bytes = 0, 0
        self._since_s = 0.0
        self._times: list[int] = []
        self._keys: list[str] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in fields}

    def take(self, row: Row) -> None:
        """Take an entry that `checked_row` has checked."""
        tick, key, values = row
        if not self.entries:
            self._since_s = monotonic()
        self.entries += 1
        self.bytes += _ENTRY_BYTES + 8 * len(values) + len(key or "")
        self._times.append(tick)
        if key is not None:
            self._keys.append(key)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
            if isinstance(value, str):
                self.bytes += len(value)

    def due_s(self, linger_s: float) -> float | None:
        """Return the seconds until it is to be sent; None if it is empty."""
        return self._since_s + linger_s - monotonic() if self.entries else None

    def bulk(self) -> Bulk:
        """Return the entries."""
        return Bulk(np.array(self._times, "<i8"), self._columns, self._keys or None)


def checked_row(
    spec: pb.WindowSpec,
    kinds: Mapping[str, str],
    time: TimeLike,
    value: float | None,
    fields: Mapping[str, Any] | None,
    key: Key | None,
) -> Row:
    """Check an entry, so that one bad entry does not spoil a bulk.

    Args:
        spec: the window's spec.
        kinds: the types of its fields by name, in the order of the row's values.
        time, value, fields, key: as in `Window.insert`.

    Raises:
        InvalidArgument: the entry does not fit the window.
    """
    if (value is None) == (fields is None):
        raise InvalidArgument("give either a value or fields", field="value")
    if fields is None:
        if len(kinds) != 1:
            raise InvalidArgument(f"give every field, by name: {', '.join(kinds)}", field="value")
        fields = dict.fromkeys(kinds, value)
    for name in [*fields, *kinds]:
        if name not in kinds or (name not in fields and name not in spec.nullable):
            what = "is missing" if name in kinds else f"is none of {', '.join(kinds)}"
            raise InvalidArgument(f"field {name!r} {what}", field=name)
    if (key is not None) != spec.keyed:
        what = "needs a key" if spec.keyed else "takes no key"
        raise InvalidArgument(f"window {spec.name!r} {what}", field="key")
    values = [
        None if name in spec.nullable and fields.get(name) is None else _fitting(fields[name], kind, name)
        for name, kind in kinds.items()
    ]
    return to_tick(time, spec.time_unit or "us", "time"), _key(key, spec), values


def _key(key: Key | None, spec: pb.WindowSpec) -> str | None:
    if key is None:
        return None
    return parts_joined(key, spec) if isinstance(key, Mapping) else text(key)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "float64": (float, int, np.floating, np.integer),
    "int64": (int, np.integer),
    "bool": (bool, np.bool_),
    "string": (str,),
}


def _fitting(value: Any, kind: str, name: str) -> Any:
    """Return a value of a field; raises InvalidArgument if it has another type."""
    fits = isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
    if not fits:
        raise InvalidArgument(f"{name} is a {kind} field; {value!r:.80} is a {type(value).__name__}", field=name)
    if kind == "int64" and not -(2**63) <= value < 2**63:
        raise InvalidArgument(f"{name}: {value} is out of range", field=name, limit="-2^63 <= value < 2^63")
    if kind == "string" and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{name}: {value!r:.80} has no UTF-8", field=name) from None
    return float(value) if kind == "float64" else value
