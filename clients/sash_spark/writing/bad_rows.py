"""Rows that a window would refuse (`sash_wire.rows`): they fail the task, or are dropped and counted."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sash_client import InvalidArgument
from sash_wire.rows import Columns, faults

_SAMPLE_CHARACTERS = 300


def good_rows(table: pa.Table, columns: Columns) -> tuple[Any, InvalidArgument | None]:
    """Return the rows that the window takes, and an error about the other rows, or None if it takes all."""
    bad, first = _bad(table, columns)
    if first is None:
        return table, None
    good = table.filter(pc.invert(bad))
    column, reason, at = first
    sample = str({name: table[name][at].as_py() for name in columns.all()})
    if len(sample) > _SAMPLE_CHARACTERS:
        sample = sample[:_SAMPLE_CHARACTERS] + "…"
    return good, InvalidArgument(
        f"{table.num_rows - good.num_rows} of {table.num_rows} rows cannot go into the window: column "
        f"{column!r} {reason} in {sample}. Filter such rows, or leave them out: bad_rows='drop'",
        field=column,
    )


def bad_rows_of(rows: pa.Table, table: pa.Table, columns: Columns) -> Any:
    """Return the rows that the window would refuse, or None if it takes all; `table` has the columns that it reads."""
    bad, first = _bad(table, columns)
    return None if first is None else rows.filter(bad)


def _bad(table: pa.Table, columns: Columns) -> tuple[Any, tuple[str, str, int] | None]:
    """Return a mask of the bad rows, and the first fault: column, reason, row number."""
    bad, first = None, None
    for column, reason, mask in faults(table, columns):
        bad = mask if bad is None else pc.or_(bad, mask)
        first = first or (column, reason, pc.index(mask, True).as_py())
    return bad, first
