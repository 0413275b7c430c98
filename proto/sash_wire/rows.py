"""Rows of tables that a window would refuse, found before they are sent.

time     null, out of range, or not a whole number of ticks in the window's unit
key      null, empty, or longer than 512 bytes; where it has parts: a null part, or more than 512 bytes in all
fields   null, unless nulls are written and the field may be null (NaN in a float64 field is a value)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_KEY_BYTES = 512
_TICK_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_LEAST, _LARGEST = -(2**63) + 1, 2**63 - 2
"""The first and the last tick."""


def instants(column: Any, unit: str | None) -> Any:
    """Return a column of times as instants, where it is none of ticks.

    Args:
        column: integers, texts in ISO 8601, or instants.
        unit: what integers count since 1970; None: they are ticks, and stay.

    Raises:
        pyarrow.ArrowInvalid: a text is no time, or a number is out of range.
    """
    if pa.types.is_integer(column.type):
        return column if unit is None else column.cast(pa.int64()).cast(pa.timestamp(unit, "UTC"))
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    fine = pc.utf8_slice_codeunits(column, -1)  # a zone, or none: without one, a time is UTC
    zoned = pc.or_(pc.equal(fine, "Z"), pc.match_substring_regex(column, r"[+-]\d\d:?\d\d$"))
    return column.cast(pa.timestamp("us", "UTC")) if pc.all(zoned).as_py() else column.cast(pa.timestamp("us"))


class Columns:
    """The columns of a table that a window reads.

    Args:
        time, key, fields: names of columns in the table; `key` is None for a window without keys, or with parts.
        parts: name of a part of the key -> column.
        unit: the window's time unit.
        nullable: the fields that may be null; None: nulls are not written.
    """

    def __init__(
        self,
        time: str,
        key: str | None,
        parts: Mapping[str, str],
        fields: Mapping[str, str],
        unit: str,
        nullable: Collection[str] | None = None,
    ) -> None:
        self.time, self.key, self.parts, self.fields = time, key, parts, fields
        self.unit, self.nullable = unit, nullable

    def all(self) -> list[str]:
        """Return every column once."""
        keys = [self.key] if self.key else self.parts.values()
        return list(dict.fromkeys([self.time, *keys, *self.fields.values()]))


def faults(table: pa.Table, columns: Columns) -> Iterator[tuple[str, str, Any]]:
    """Yield each fault: column, reason, and a mask of its rows without nulls. Tables without faults cost little."""
    times = table[columns.time]
    if times.null_count:
        yield columns.time, "is null", pc.is_null(times)
    yield from _wrong_times(times, columns)
    if columns.key is not None:
        keys = table[columns.key]
        if keys.null_count:
            yield columns.key, "is null", pc.is_null(keys)
        if not pa.types.is_integer(keys.type):
            lengths = pc.binary_length(keys)
            shortest_longest = pc.min_max(lengths)
            if shortest_longest["min"].as_py() == 0:
                yield columns.key, "is empty", pc.fill_null(pc.equal(lengths, 0), False)
            if (shortest_longest["max"].as_py() or 0) > MAX_KEY_BYTES:
                too_long = pc.fill_null(pc.greater(lengths, MAX_KEY_BYTES), False)
                yield columns.key, f"is longer than {MAX_KEY_BYTES} bytes", too_long
    yield from _wrong_parts(table, columns)
    for name, column in columns.fields.items():
        if table[column].null_count and name not in (columns.nullable or ()):
            why = (
                ""
                if columns.nullable is None
                else f", which field {name!r} may not be (nullable in the window's spec),"
            )
            yield column, f"is null{why}", pc.is_null(table[column])


def _wrong_parts(table: pa.Table, columns: Columns) -> Iterator[tuple[str, str, Any]]:
    """Yield the faults of the columns with parts of keys. A part may be empty."""
    lengths = None
    for column in columns.parts.values():
        values = table[column]
        if values.null_count:
            yield column, "is null", pc.is_null(values)
        text = values.cast(pa.string())
        # A "\\" stands before each "|" and "\\" of a part, and a "|" between two parts.
        escapes = pc.add(pc.count_substring(text, "|"), pc.count_substring(text, "\\"))
        length = pc.add(pc.binary_length(text), escapes)
        lengths = length if lengths is None else pc.add(pc.add(lengths, length), 1)
    if lengths is None or (pc.max(lengths).as_py() or 0) <= MAX_KEY_BYTES:
        return
    too_long = pc.fill_null(pc.greater(lengths, MAX_KEY_BYTES), False)
    yield column, f"makes its key longer than {MAX_KEY_BYTES} bytes", too_long


def _wrong_times(times: Any, columns: Columns) -> Iterator[tuple[str, str, Any]]:
    """Yield the faults of the column with the times."""
    if pa.types.is_timestamp(times.type):
        have, want = _TICK_NS[times.type.unit], _TICK_NS[columns.unit]
        times = times.cast(pa.int64())
    else:
        have = want = 1
    ticks = pc.fill_null(times, 0).to_numpy()
    low, high = _LEAST, _LARGEST
    if have > want:
        low, high = -(-_LEAST // (have // want)), _LARGEST // (have // want)
    outside = (ticks < low) | (ticks > high)
    if outside.any():
        yield columns.time, f"is out of range in {columns.unit!r} ticks", pa.array(outside)
    if want > have and (broken := np.fmod(ticks, want // have) != 0).any():
        yield columns.time, f"is not a whole number of {columns.unit!r} ticks", pa.array(broken)
