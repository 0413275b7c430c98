"""Values in CSV and NDJSON, for bodies of REST and for `sash load` alike.

    CSV       4.5   NaN   Infinity   true                  a value that is missing: nothing, NA, NULL …
    NDJSON    4.5   "NaN"   "Infinity"   "-Infinity"       a value that is missing: null

NaN is a number, and not a value that is missing.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.csv as pa_csv

MISSING = ("", "#N/A", "#NA", "N/A", "NA", "NULL", "n/a", "null")
"""What stands in CSV for a value that is missing; in a text it is a text."""


def csv_values(types: Mapping[str, Any], missing: bool, columns: Iterable[str] = ()) -> Any:
    """How pyarrow reads the values of CSV.

    Args:
        types: of columns, as pyarrow's; of others it finds out.
        missing: whether numbers and bools may be missing.
        columns: to be read, where others may be there.
    """
    return pa_csv.ConvertOptions(
        column_types=types,
        include_columns=list(columns),
        null_values=list(MISSING) if missing else [],
        strings_can_be_null=False,
        quoted_strings_can_be_null=True,
        true_values=["true", "True", "TRUE"],
        false_values=["false", "False", "FALSE"],
    )


class Unquoted(io.RawIOBase):
    """NDJSON in which the special values of some columns are bare, as pyarrow reads them: `{"v": "NaN"}`, `{"v": NaN}`.

    Args:
        source: has `read`; the lines.
        names: of columns of floats.
        block_bytes: how much to look at together; a longer line is looked at whole.
    """

    def __init__(self, source: Any, names: Iterable[str], block_bytes: int) -> None:
        spelt = {json.dumps(name, ensure_ascii=ascii_).encode() for name in names for ascii_ in (False, True)}
        some = b"|".join(map(re.escape, sorted(spelt)))
        self._source, self._block_bytes = source, block_bytes
        self._special = re.compile(rb'((?:%s)[ \t\r]*:[ \t\r]*)"(NaN|-?Infinity)"' % some) if spelt else None
        self._rest = b""
        """The beginning of a line."""
        self._ready, self._ended = memoryview(b""), False

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, into: Any) -> int:
        """Read the next bytes of whole lines; return how many."""
        while not self._ready and not self._ended:
            block = bytes(self._source.read(self._block_bytes))
            self._ended = not block
            lines, end, rest = (self._rest + block).rpartition(b"\n") if block else (self._rest, b"", b"")
            self._ready, self._rest = memoryview(self._bare(lines + end)), rest
        count = min(len(into), len(self._ready))
        into[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _bare(self, lines: bytes) -> bytes:
        """The lines with special values bare. What looks like one inside of a text has escapes before its quotes."""
        if self._special is None or (b'"NaN"' not in lines and b'Infinity"' not in lines):
            return lines
        return self._special.sub(rb"\1\2", lines)
