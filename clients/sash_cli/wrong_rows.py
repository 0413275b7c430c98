"""Rows of files that no window takes: the first one ends a load, or all of them are left out, and kept.

    rows   [ . . . . x . . . ]           all at once: one of them is wrong
           [ . . . . ] [ x . . . ]       halves, until a part is right or one row
           [ . . . . ] [x] [.] [ . . ]

So what is right is read in large parts, and what is wrong is known by its row.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, Protocol, TextIO

import pyarrow as pa

from sash_client import InvalidArgument

_TEXT_MAX = 80
"""So many characters of a value are told."""


class WrongFile(Exception):
    """A file is not what it should be; the message says why."""


class WrongRow(Exception):
    """A row is not what it should be.

    Args:
        column: of the file; None: the row itself.
        reason: what is wrong with the value, or with the row: the end of a sentence.
        value: what stands there; None: nothing, or nobody knows it.
    """

    def __init__(self, column: str | None, reason: str, value: Any = None) -> None:
        super().__init__(reason)
        self.column, self.reason, self.value = column, reason, value

    def __str__(self) -> str:
        of = "" if self.column is None else f"column {self.column!r}"
        value = "" if self.value is None else f"{str(self.value)[:_TEXT_MAX]!r}"
        return " ".join(filter(None, (f"{of}:" if of and value else of, value, self.reason)))


class BadRows:
    """What becomes of wrong rows.

    Args:
        missing: rows in which a column has no value are left out.
        every: all wrong rows are left out. Else the first one is a `WrongFile`.
        out: where those are written that are left out, a JSON object each; None: nowhere.
    """

    def __init__(self, missing: bool = False, every: bool = False, out: TextIO | None = None) -> None:
        self.missing, self.every, self._out = missing, every, out
        self._file, self._left_out = "", 0

    def begin(self, file: str) -> None:
        """Begin with another file."""
        self._file, self._left_out = file, 0

    def taken(self) -> int:
        """Return how many rows were left out since it was asked last."""
        found, self._left_out = self._left_out, 0
        return found

    def refuse(self, row: int, wrong: WrongRow, record: Any) -> None:
        """Leave a row out, or raise WrongFile.

        Args:
            row: its number, from 1 on.
            record: the row, as it stands in the file.
        """
        if not self.every:
            ways = "--skip-missing leaves such rows out, " if wrong.reason == MISSING else ""
            raise WrongFile(f"row {row}: {wrong}; {ways}--bad-rows leaves out all wrong ones")
        self._left_out += 1
        if self._out is not None:
            told = {"file": self._file, "row": row, "column": wrong.column, "reason": str(wrong), "record": record}
            self._out.write(json.dumps(told, ensure_ascii=False, default=str) + "\n")


MISSING = "has no value"


class Part(Protocol):
    """Some rows of a file."""

    def __len__(self) -> int:
        """How many there are; a blank line may be one of them."""

    def table(self, start: int = 0, stop: int | None = None) -> Any:
        """Read some of them, or all; raises if one is wrong."""

    def wrong(self, row: int, error: Exception) -> WrongRow:
        """Say what is wrong with a row, by the error of reading it alone."""

    def record(self, row: int) -> Any:
        """A row, as it stands in the file."""


def right_rows(part: Part, row: int, bad: BadRows) -> Generator[tuple[int, Any], None, int]:
    """Yield the rows of a part that are right, in tables, each with how many rows of the file are before it.

    Args:
        row: how many rows of the file are before the part.

    Returns:
        how many are before what is behind the part.
    """
    try:
        table = part.table()
    except _WRONG:
        return (yield from _halves(part, 0, len(part), row, bad))
    yield row, table
    return row + int(table.num_rows)


def _halves(part: Part, start: int, stop: int, row: int, bad: BadRows) -> Generator[tuple[int, Any], None, int]:
    try:
        table = part.table(start, stop)
    except _WRONG as error:
        if stop - start == 1:
            bad.refuse(row + 1, part.wrong(start, error), part.record(start))
            return row + 1
        middle = (start + stop) // 2
        row = yield from _halves(part, start, middle, row, bad)
        return (yield from _halves(part, middle, stop, row, bad))
    yield row, table
    return row + int(table.num_rows)


_WRONG = (pa.ArrowException, WrongRow, InvalidArgument)
