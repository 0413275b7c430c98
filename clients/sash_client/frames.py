"""Data frames of pandas and Polars and tables of Arrow into bulks: one row for each entry.

A column holds the times, another one the keys, and every other column is the field of its name. Frames that
`Entries.to_pandas`, `to_polars` and `to_arrow` made are taken as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sash_client.answers import Bulk
from sash_client.errors import InvalidArgument
from sash_client.libraries import is_pandas

__all__ = ["ENTRIES", "KEY", "TIME", "bulk_of", "from_frame", "is_frame", "part_name"]

TIME, KEY, ENTRIES = "time", "key", "entries"
"""Columns that are no fields."""

_PART = re.compile(r"partials\.(.+)\[([0-9]{1,4})\]")


def is_frame(values: Any) -> bool:
    """Whether an object is a DataFrame of pandas or Polars, or a Table or RecordBatch of Arrow."""
    kind = type(values)
    names = {"pandas": ("DataFrame",), "polars": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}
    return any(base.__name__ in names.get(base.__module__.partition(".")[0], ()) for base in kind.__mro__)


def from_frame(frame: Any, time: str | None = None, key: str | None = None, timeless: bool = False) -> Bulk:
    """Return the rows of a frame as a bulk; see `Bulk.from_frame`. `timeless`: it may have no times."""
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
    if not is_frame(times):
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
    names = list(getattr(frame, "column_names", frame.columns))
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
