"""Entries as CSV: the first line names the columns, every other line is an entry.

    time,key,delay
    17,JFK,4.5
    18,LGA,-2

Where keys have parts, each part may be a column in place of the key.

Values are written as in JSON: times are ticks, or texts such as 2013-01-01T05:30Z if the first one is such a text, and
bools true or false. Where a number or a bool may be null, an empty value is null; an empty text is a text. A text may
stand in quotes, but has no line break.

Blocks of whole lines are parsed by pyarrow, in 1 to 2 ms.
"""

from __future__ import annotations

import csv
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from sash.rest.arrow import batch_of_table
from sash.rest.lines import LineError
from sash.rest.scalars import NowNs, tick
from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.file_formats import csv_values
from sash_wire.meant import instead

_STRINGS = pa.dictionary(pa.int32(), pa.string())
_TYPES = {"float64": pa.float64(), "int64": pa.int64(), "bool": pa.bool_(), "string": _STRINGS}
_INTEGER = re.compile(r"\s*[+-]?[0-9]*\s*")
_ROW = re.compile(r"Row #(\d+): ?")
_COLUMN = re.compile(r"In CSV column #(\d+): ?")


class CsvReader:
    """Reads the lines of one body.

    Args:
        spec: the window's.
        now_ns: tells wall time.
    """

    block_bytes = 262_144

    def __init__(self, spec: WindowSpec, now_ns: NowNs) -> None:
        self._spec, self._now_ns = spec, now_ns
        self._types = {"time": pa.int64(), **({"key": _STRINGS} if spec.keyed else {})}
        self._types |= dict.fromkeys(spec.parts, _STRINGS)
        self._types |= {name: _TYPES[kind] for name, kind in spec.fields.items()}
        self._names: list[str] = []
        self._nullable = spec.nullable or ()

    def read(self, block: bytes, line: int) -> Steps[Batch]:
        """Parse whole lines; see `LineReader.read`."""
        yield
        if not self._names:
            head, _, block = block.partition(b"\n")
            self._names = self._header(head)
            line += 1
            self._types["time"] = self._time_type(block)
        try:
            table = self._table(block)
        except pa.ArrowInvalid as error:
            raise self._first_error(block, line, error) from None
        if table.num_rows != block.count(b"\n"):
            raise LineError(line + _open_quote(block), "a value has a line break, which is not taken", field="body")
        self._check_there(table, line)
        if self._types["time"] != pa.int64():
            table = self._with_ticks(table, line)
        batch = batch_of_table(table, self._spec)
        assert isinstance(batch, Batch)
        return batch

    def _time_type(self, block: bytes) -> Any:
        """The type of the times: integers, unless the first one is none."""
        first = next(csv.reader([block.partition(b"\n")[0].decode("utf-8", "replace")]), [])
        at = self._names.index("time")
        return pa.int64() if at >= len(first) or _INTEGER.fullmatch(first[at]) else pa.string()

    def _with_ticks(self, table: Any, line: int) -> Any:
        at, ticks = self._names.index("time"), list[int]()
        for row, text in enumerate(table.column(at).to_pylist()):
            try:
                ticks.append(tick(text, "time", self._spec.time_unit, self._now_ns))
            except InvalidArgument as error:
                raise LineError.of(line + row, error) from None
        return table.set_column(at, "time", pa.array(ticks, pa.int64()))

    def _check_there(self, table: Any, line: int) -> None:
        """Raise LineError for an empty value of a column that may not be null."""
        for name, column in zip(self._names, table.columns, strict=True):
            if column.null_count and name not in self._nullable:
                row = pc.index(pc.is_null(column), True).as_py()
                raise LineError(line + row, f"column {name!r} has no value", field=name)

    def _header(self, head: bytes) -> list[str]:
        """Return the names of the columns.

        Raises:
            LineError: they are not those of the window.
        """
        try:
            text = head.decode("utf-8-sig").rstrip("\r")
            names = next(csv.reader([text], strict=True), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise LineError(1, f"the names of the columns are no CSV: {error}", field="body") from None
        for i, name in enumerate(names):
            if name in names[:i]:
                raise LineError(1, f"there are two columns {name[:200]!r}", field=name)
            if name in self._spec.parts and "key" in names:
                raise LineError(1, "give either a column key or a column for each part", field=name)
            if name not in self._types:
                no = f"no {name[:200]!r}{instead(name, self._types, 'it has')}"
                raise LineError(1, f"window {self._spec.name!r} has {no}", field=name)
        left_out = self._spec.parts if "key" in names else ("key",) if self._spec.parts else ()
        for name in self._types:
            if name not in names and name not in left_out:
                raise LineError(1, f"column {name!r} is missing: the first line names the columns", field=name)
        return names

    def _table(self, block: bytes) -> Any:
        if not block:
            return pa.table({name: pa.array([], self._types[name]) for name in self._names})
        return pa_csv.read_csv(
            pa.BufferReader(block),
            read_options=pa_csv.ReadOptions(use_threads=False, column_names=self._names, block_size=len(block) + 1),
            parse_options=pa_csv.ParseOptions(ignore_empty_lines=False),
            convert_options=csv_values(self._types, missing=bool(self._nullable)),
        )

    def _first_error(self, block: bytes, line: int, error: pa.ArrowInvalid) -> LineError:
        """Return the error of the first line that is wrong: pyarrow converts column by column."""
        row = _row_of(error)
        while row > 1:
            try:
                self._table(b"\n".join([*block.split(b"\n", row - 1)[: row - 1], b""]))
            except pa.ArrowInvalid as earlier:
                row, error = _row_of(earlier), earlier
            else:
                break
        text = _ROW.sub("", str(error), 1)
        name = "body"
        if found := _COLUMN.search(text):
            name = self._names[int(found[1])]
            text = f"column {name!r}: {_COLUMN.sub('', text, 1)}"
        return LineError(line + row - 1, text, field=name)


def _row_of(error: pa.ArrowInvalid) -> int:
    found = _ROW.search(str(error))
    return int(found[1]) if found else 1


def _open_quote(block: bytes) -> int:
    """Return the index of the first line in which a quote is left open."""
    lines = block.split(b"\n")
    return next((i for i, each in enumerate(lines) if each.count(b'"') % 2), 0)
