"""One window of a pipeline: which columns it reads of records, which records fit, and what is written of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sash_client import InvalidArgument, Window, WriteResult
from sash_ingest.connector import Records
from sash_ingest.decode import Decoded, Reject, Wanted
from sash_wire.mapping import Sources, source_of
from sash_wire.rows import Columns, faults, instants


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for one window.

    Args:
        numbers: of their records, int64 (n,), ascending.
        table: their columns: time, key or parts, fields.
    """

    numbers: Any
    table: Any

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, start: int, stop: int) -> Rows:
        """Return some of them."""
        return Rows(self.numbers[start:stop], self.table.slice(start, stop - start))


class Target:
    """A window, and where its columns come from.

    Args:
        window: the window.
        sources: the expressions for its columns.
        place: the window's place in the document, for errors.
        beside: the columns that the source has beside the values.

    Raises:
        WireError: an expression needs Spark.
    """

    def __init__(self, window: Window, sources: Sources, place: str, beside: frozenset[str]) -> None:
        self.window, self.spec = window, window.spec
        # A part, a field and the time may have one name.
        self._parts = {name: f"part {name}" for name in sources.parts}
        self._fields = {name: f"field {name}" for name in sources.fields}
        self._read = {"time": Wanted(source_of(sources.time, f"{place}.time"), "time")}
        if sources.key is not None:
            self._read["key"] = Wanted(source_of(sources.key, f"{place}.key"), "key")
        for name, text in sources.parts.items():
            self._read[self._parts[name]] = Wanted(source_of(text, f"{place}.parts.{name}"), "key")
        for name, text in sources.fields.items():
            source = source_of(text, f"{place}.fields.{name}")
            self._read[self._fields[name]] = Wanted(source, self.spec["fields"][name])
        self._beside = {name for name, each in self._read.items() if each.source.path[0] in beside}
        self.needs = frozenset(self._read[name].source.path[0] for name in self._beside)
        self.wanted = tuple(each for name, each in self._read.items() if name not in self._beside)
        self._columns = Columns(
            *("time", "key" if sources.key is not None else None, self._parts, self._fields),
            *(self.spec["time_unit"], frozenset(self.spec.get("nullable") or ())),
        )

    def rows(self, records: Records, decoded: Decoded) -> tuple[Rows, list[Reject]]:
        """Return the rows of records that were decoded, and those that the window would refuse."""
        places = np.arange(len(records)) if decoded.rows is None else np.array(decoded.rows, np.int64)
        columns, made = {}, iter(decoded.columns)
        for name in self._read:
            columns[name] = self._besides(name, records, places) if name in self._beside else next(made)
        table = pa.table(columns)
        if self.spec["time_unit"] == "none" and pa.types.is_timestamp(table["time"].type):
            raise InvalidArgument("time: the window counts ticks, and the records have instants", field="time")
        rejects: dict[int, Reject] = {}
        for column, reason, mask in faults(table, self._columns):
            bad = mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask
            for row in np.flatnonzero(bad.to_numpy(zero_copy_only=False)).tolist():
                what = Reject(int(places[row]), str(self._read[column].source), reason.removesuffix(","))
                rejects.setdefault(row, what)
        numbers = np.array(records.numbers, np.int64)[places]
        if rejects:
            good = np.ones(len(places), bool)
            good[list(rejects)] = False
            table, numbers = table.filter(pa.array(good)), numbers[good]
        return Rows(numbers, table), [rejects[row] for row in sorted(rejects)]

    def _besides(self, name: str, records: Records, places: Any) -> Any:
        source, kind = self._read[name]
        column = pa.array(records.beside[source.path[0]]).take(pa.array(places))
        if kind == "time":
            return instants(column, source.unit)
        return column.cast(pa.string()) if kind in ("key", "string") else column

    def has_changed(self) -> bool:
        """Whether the window takes other columns by now: it was deleted, and made anew."""
        spec = self.window.describe().spec
        return any(spec.get(name) != self.spec.get(name) for name in ("fields", "keyed", "keys", "time_unit"))

    def write(self, rows: Rows, producer: str, number: int, epoch: int, after: int) -> WriteResult:
        """Write rows as what is behind `after` up to a number; raises as `Window.bulk_insert`."""
        table = rows.table
        keys: Any = table["key"] if "key" in table.column_names else None
        if self._parts:
            keys = {name: table[column] for name, column in self._parts.items()}
        columns = {name: table[column] for name, column in self._fields.items()}
        times = table["time"]
        if not table.num_rows:  # no type of a column says anything
            times, columns = [], dict.fromkeys(columns, ())
            keys = {name: [] for name in self._parts} if self._parts else None if keys is None else []
        return self.window.bulk_insert(
            times, columns, keys=keys, producer=producer, sequence=number, epoch=epoch, after=after
        )
