"""Files of entries as chunks: tables of a window's columns, of a bounded size, the same each time they are read.

    CSV, NDJSON, Arrow, Parquet ──▶ record batches ──▶ chunks      at most CHUNK_ROWS rows and CHUNK_BYTES bytes each

Where the chunks are cut depends on the file and the window only. So a chunk has the same number each time.

A history is loaded key by key (`by_key`): each key's rows then come into the window as whole blocks. In the order of a
file of many keys, each chunk has a few rows of each key. Every key's last block would be read, merged and stored again
with each chunk: 10 M rows of 2,000 keys came in at 340,000 rows a second of processor time, and at 4.9 M key by key.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pa_parquet

from sash_cli.wrong_rows import MISSING, BadRows, Part, WrongFile, WrongRow, right_rows
from sash_client import InvalidArgument
from sash_client.data.times import to_ticks
from sash_wire.file_formats import Unquoted, csv_values
from sash_wire.rows import Columns, faults, instants

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "FORMATS", "Chunk", "Mapped", "WrongFile", "by_key", "chunks", "format_of"]

CHUNK_ROWS = 131_072
CHUNK_BYTES = 8 * 2**20
"""A chunk is one message, which may have 16 MiB. It takes a little more there than in Arrow."""

_BUCKETS = 64
"""Files into which the keys of a file are divided, before the rows of each are put together."""
_SORTED_BYTES = 256 * 2**20
"""So many bytes of such a file are sorted at once."""

_BLOCK_BYTES = 4 * 2**20
_ROW_BYTES_MAX = 64 * 2**20
Array = npt.NDArray[Any]
_TYPES = {"float64": pa.float64(), "int64": pa.int64(), "bool": pa.bool_(), "string": pa.string()}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
FORMATS = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}
"""Formats by the ends of names."""


@dataclass(frozen=True)
class Mapped:
    """Where the columns of a window come from.

    Args:
        types: the type of each column of the window: ``key`` or the parts of keys, and the fields. ``time`` has none.
        columns: for ``time`` and each of them, the name of the column in the file.
        nullable: the fields that may be null.
        time_unit: what the time counts since 1970, or texts in it are; None: ticks of the window, or instants.
        unit: of the window's ticks.
        keys: those of the columns of the window that are its key, or parts of it.
    """

    types: Mapping[str, str]
    columns: Mapping[str, str]
    nullable: Collection[str] = ()
    time_unit: str | None = None
    unit: str = "us"
    keys: Collection[str] = ("key",)

    @property
    def looked_at(self) -> Columns:
        """What `faults` looks at, in a table with the names of the window."""
        keys = [name for name in self.types if name in self.keys]
        parts = {name: name for name in keys if name != "key"}
        fields = {name: name for name in self.types if name not in keys}
        return Columns("time", "key" if "key" in keys else None, parts, fields, self.unit, self.nullable)


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file, one after the other.

    Args:
        table: the rows, with the names and types of the window.
        rows: how many the file has there.
        done: how much of the file has been read, from 0 to 1; None if that is not known.
    """

    table: Any
    rows: int
    done: float | None


def format_of(name: str) -> str | None:
    """Return the format of a file by its name; None if the name does not say."""
    path = Path(name.lower())
    return FORMATS.get(path.with_suffix("").suffix if path.suffix in _COMPRESSIONS else path.suffix)


def chunks(name: str, kind: str, mapped: Mapped, bad: BadRows) -> Iterator[Chunk]:
    """Yield the chunks of a file; their times are ticks.

    Args:
        name: the path; ``-`` is standard input.
        kind: one of the values of `FORMATS`.
        bad: what becomes of wrong rows.

    Raises:
        WrongFile: the file is not of this format, lacks a column, or has a wrong row that is not left out.
        OSError: it cannot be read.
    """
    bad.begin(name)
    with ExitStack() as opened:
        try:
            numbered, done = _OPENERS[kind](opened, name, mapped, bad)
            if bad.every:  # else they are found in the chunks, which are cut where they always were
                numbered = (each for at, some in numbered for each in right_rows(_Rows(some, mapped, _right), at, bad))
            row = 0
            for table in _cut(batch for _, some in numbered for batch in some.to_batches()):
                if bad.every:
                    yield Chunk(table, table.num_rows + bad.taken(), done())
                    continue
                places = _places(table, mapped) if bad.missing else None
                whole = _Rows(table if places is None else table.take(places), mapped, _right)
                [(_, right)] = list(right_rows(whole, row, bad if places is None else _Among(bad, row, places)))
                yield Chunk(right, table.num_rows, done())
                row += table.num_rows
            if left_out := bad.taken():
                yield Chunk(_right(_nothing(mapped), mapped), left_out, done())
        except (pa.ArrowException, KeyError) as error:
            raise WrongFile(_line(error)) from None


def by_key(found: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the rows of a file again, those of a key one after the other, and otherwise in the order of the file.

    The rows are divided by key into temporary files, which take the room of the rows. Of these, one is in memory at a
    time, or a part of it. While rows are divided, chunks without rows are yielded. Rows that were left out count with
    the first chunk that has rows.
    """
    rows = left_out = 0
    with tempfile.TemporaryDirectory(prefix="sash-load-") as folder, ExitStack() as opened:
        sinks: dict[int, Any] = {}
        for chunk in found:
            rows, left_out = rows + chunk.table.num_rows, left_out + chunk.rows - chunk.table.num_rows
            table = _plain(chunk.table)
            for bucket, part in _divided(table):
                if bucket not in sinks:
                    path = str(Path(folder, f"{bucket:02}"))
                    sinks[bucket] = opened.enter_context(pa.ipc.new_stream(path, table.schema))
                sinks[bucket].write_table(part)
            yield Chunk(table.slice(0, 0), 0, None if chunk.done is None else chunk.done / 2)
        opened.close()
        sent = 0
        paths = sorted(Path(folder).iterdir())
        if not rows and left_out:
            yield Chunk(table, left_out, 1.0)
        for table in _cut(batch for path in paths for batch in _together(path)):
            sent += table.num_rows
            yield Chunk(table, table.num_rows + left_out, 0.5 + sent / rows / 2)
            left_out = 0


def _plain(table: Any) -> Any:
    """A table without dictionaries, which each chunk has its own of."""
    columns = [
        pc.cast(each, each.type.value_type) if pa.types.is_dictionary(each.type) else each for each in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def _divided(table: Any) -> Iterator[tuple[int, Any]]:
    """The rows of a table by bucket: one that follows from the key."""
    keys = table["key"].combine_chunks().dictionary_encode()
    hashes = [zlib.crc32(key.encode()) % _BUCKETS for key in keys.dictionary.to_pylist()]
    buckets = np.array(hashes, np.int64)[keys.indices.to_numpy()]
    ends = np.cumsum(np.bincount(buckets, minlength=_BUCKETS))
    ordered = table.take(np.argsort(buckets, kind="stable"))
    for bucket, end in enumerate(ends.tolist()):
        start = int(ends[bucket - 1]) if bucket else 0
        if end > start:
            yield bucket, ordered.slice(start, end - start)


def _together(path: Path) -> Iterator[Any]:
    """The rows of a file of some keys, those of each key together, in parts of a bounded size."""
    with pa.memory_map(str(path)) as source:
        parts, size = list[Any](), 0
        reader = pa.ipc.open_stream(source)
        for batch in reader:
            parts.append(batch)
            size += batch.nbytes
            if size >= _SORTED_BYTES:
                yield from _by_key(parts)
                parts, size = [], 0
        if parts:
            yield from _by_key(parts)


def _by_key(parts: list[Any]) -> list[Any]:
    table = pa.Table.from_batches(parts)
    codes = table["key"].combine_chunks().dictionary_encode().indices.to_numpy()
    return table.take(np.argsort(codes, kind="stable")).to_batches(max_chunksize=CHUNK_ROWS)  # type: ignore[no-any-return]


def _selected(given: Any, mapped: Mapped) -> Any:
    """The window's columns of a batch or a table, in the window's types, as a table."""
    names = given.schema.names
    columns = {}
    for name, source in mapped.columns.items():
        _check_column(names, source)
        column = given.column(names.index(source))
        if name == "time":
            columns[name] = column if mapped.time_unit is None else instants(column, mapped.time_unit)
        else:
            columns[name] = _cast(column, mapped.types[name], source)
    return pa.table(columns)


def _check_column(names: Sequence[str], wanted: str) -> None:
    if names.count(wanted) != 1:
        several = "has several columns" if wanted in names else "has no column"
        raise WrongFile(
            f"the file {several} {wanted!r}; its columns are {', '.join(names)}"
            "; --time, --key, --field and --part name others"
        )


def _nothing(mapped: Mapped) -> Any:
    """A table without rows."""
    return pa.table({name: pa.array([], _TYPES[mapped.types.get(name, "int64")]) for name in mapped.columns})


def _cast(column: Any, kind: str, name: str) -> Any:
    wanted, found = _TYPES[kind], column.type
    if found == wanted or (kind == "string" and pa.types.is_dictionary(found)):
        return column
    # A bool is no number, and a text is none either.
    takes: dict[str, tuple[Any, ...]] = {"bool": (pa.types.is_boolean,), "string": (_is_text, pa.types.is_integer)}
    tests = (pa.types.is_null, *takes.get(kind, (pa.types.is_integer, pa.types.is_floating)))
    if not any(test(found) for test in tests):
        raise WrongFile(f"column {name!r} is {found}, which is no {kind}")
    try:
        return pc.cast(column, wanted)
    except pa.ArrowInvalid:
        raise WrongRow(name, f"is no {kind}", column[0].as_py()) from None  # the value, where it is the only one


def _is_text(found: Any) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


def _cut(batches: Iterable[Any]) -> Iterator[Any]:
    """Join and cut batches to tables of CHUNK_ROWS, and halve those that have more than CHUNK_BYTES."""
    parts: list[Any] = []
    rows = 0
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            part = batch.slice(at, CHUNK_ROWS - rows)
            parts.append(part)
            at, rows = at + part.num_rows, rows + part.num_rows
            if rows == CHUNK_ROWS:
                yield from _halved(pa.Table.from_batches(parts))
                parts, rows = [], 0
    if parts:
        yield from _halved(pa.Table.from_batches(parts))


def _halved(table: Any) -> Iterator[Any]:
    if table.nbytes <= CHUNK_BYTES or table.num_rows == 1:
        yield table
        return
    middle = table.num_rows // 2
    yield from _halved(table.slice(0, middle))
    yield from _halved(table.slice(middle))


def _places(table: Any, mapped: Mapped) -> Array | None:
    """Where the rows are that have a value in every column that may not be null; None: all have."""
    lacking = [name for name in mapped.columns if name not in mapped.nullable and table[name].null_count]
    valid = [pc.is_valid(table[name]).to_numpy() for name in lacking]
    return np.flatnonzero(np.logical_and.reduce(valid)) if valid else None


class _Among(BadRows):
    """Knows rows by their places among more rows."""

    def __init__(self, bad: BadRows, row: int, places: Array) -> None:
        super().__init__()
        self._bad, self._row, self._places = bad, row, places

    def refuse(self, row: int, wrong: WrongRow, record: Any) -> None:
        self._bad.refuse(self._row + self._places.item(row - self._row - 1) + 1, wrong, record)


class _Rows:
    """Rows of a table, or of a batch; `read` makes a table of the window of some of them."""

    def __init__(self, rows: Any, mapped: Mapped, read: Callable[[Any, Mapped], Any]) -> None:
        self._rows, self._mapped, self._read = rows, mapped, read

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def table(self, start: int = 0, stop: int | None = None) -> Any:
        return self._read(self._rows if stop is None else self._rows.slice(start, stop - start), self._mapped)

    def wrong(self, row: int, error: Exception) -> WrongRow:
        if isinstance(error, WrongRow):
            return error
        if self._read is _selected:
            return WrongRow(None, f"is wrong: {_line(error)}")
        time = self._rows["time"][row].as_py()
        said = error.message if isinstance(error, InvalidArgument) else _line(error)
        return WrongRow(self._mapped.columns["time"], _OF_TIME.sub("", said), time)

    def record(self, row: int) -> Any:
        return self._rows.slice(row, 1).to_pylist()[0]


def _right(table: Any, mapped: Mapped) -> Any:
    """Rows that have the columns of the window, with ticks for times; raises if a value is wrong."""
    for name, source in mapped.columns.items():
        if table[name].null_count and name not in mapped.nullable:
            raise WrongRow(source, MISSING)
    ticks = pa.array(to_ticks(table["time"], mapped.unit))
    table = table.set_column(table.column_names.index("time"), "time", ticks)
    for name, reason, _ in faults(table, mapped.looked_at):
        raise WrongRow(mapped.columns[name], reason, str(table[name][0]))  # as in `_cast`
    return table


_OF_TIME = re.compile(r"^time(\[\d+\])?:? ?('[^']*' )?")
"""Where an error about a time begins; the row and the value are told otherwise."""

# ---------------------------------------------------------------- formats

Opened = tuple[Iterable[tuple[int, Any]], Callable[[], float | None]]
"""Tables of the rows of a file that can be read, each with how many rows are before it; how much has been read."""


def _source(opened: ExitStack, name: str) -> tuple[Any, Callable[[], float | None]]:
    if name == "-":
        return pa.PythonFile(sys.stdin.buffer, mode="r"), lambda: None
    path = Path(name)
    file = opened.enter_context(path.open("rb"))
    size = max(path.stat().st_size, 1)
    source = opened.enter_context(pa.PythonFile(file, mode="r"))
    if compression := _COMPRESSIONS.get(path.suffix.lower()):
        source = opened.enter_context(pa.CompressedInputStream(source, compression))
    return source, lambda: file.tell() / size


def _blocks(source: Any, ends_of: Callable[[bytes], Array]) -> Iterator[bytes]:
    """Yield the lines of a source, in blocks of whole rows; `ends_of`: where the rows of some bytes end."""
    rest = b""
    while block := bytes(source.read(_BLOCK_BYTES)):
        rest += block
        if len(ends := ends_of(rest)):
            yield rest[: ends[-1]]
            rest = rest[ends[-1] :]
        elif len(rest) > _ROW_BYTES_MAX:
            raise WrongFile(f"a row has more than {_ROW_BYTES_MAX // 2**20} MiB: is a quote left open?")
    if rest:
        yield rest


def _line_ends(block: bytes) -> Array:
    return np.flatnonzero(np.frombuffer(block, np.uint8) == _BREAK) + 1


def _row_ends(block: bytes) -> Array:
    """Where rows of CSV end: behind line breaks that are in no quotes."""
    data, ends = np.frombuffer(block, np.uint8), _line_ends(block)
    quotes = np.flatnonzero(data == _QUOTE)
    if not len(quotes):
        return ends
    before = data[np.maximum(quotes[::2] - 1, 0)]
    # Where every other quote opens a value, or is the second of two in one, a break behind an even number ends a row.
    if np.isin(before, (_BREAK, _COMMA, _QUOTE)).all():
        outside: Array = ends[np.searchsorted(quotes, ends) % 2 == 0]
        return outside
    return np.array([found.end() for found in _VALUE.finditer(block) if found[0].endswith(b"\n")], np.int64)


_BREAK, _QUOTE, _COMMA = b'\n",'
_VALUE = re.compile(rb'(?:"(?:[^"]|"")*+"?)?[^,\n]*(?:,|\n|\Z)')
"""A value of CSV, and what is behind it. Quotes that do not begin a value are part of it."""


class _Lines:
    """Lines of a file that are rows.

    Args:
        block: the lines.
        ends_of: where rows end in it.
        read: makes a table of some lines.
        wrong: says what is wrong with a line, by the error of reading it alone.
    """

    def __init__(
        self,
        block: bytes,
        ends_of: Callable[[bytes], Array],
        read: Callable[[bytes], Any],
        wrong: Callable[[str, Exception], WrongRow],
    ) -> None:
        self._block, self._ends_of, self._read, self._wrong = block, ends_of, read, wrong

    @cached_property
    def _bounds(self) -> list[int]:
        ends = self._ends_of(self._block).tolist()
        whole = bool(ends) and ends[-1] == len(self._block)
        return [0, *ends, *([] if whole else [len(self._block)])]

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def table(self, start: int = 0, stop: int | None = None) -> Any:
        return self._read(self._block if stop is None else self._block[self._bounds[start] : self._bounds[stop]])

    def wrong(self, row: int, error: Exception) -> WrongRow:
        return error if isinstance(error, WrongRow) else self._wrong(self.record(row), error)

    def record(self, row: int) -> str:
        return self._block[self._bounds[row] : self._bounds[row + 1]].decode("utf-8", "replace").rstrip("\r\n")


def _csv(opened: ExitStack, name: str, mapped: Mapped, bad: BadRows) -> Opened:
    source, done = _source(opened, name)
    blocks = _blocks(source, _row_ends)
    first = next(blocks, b"")
    ends = _row_ends(first)
    head, first = (first[: ends[0]], first[ends[0] :]) if len(ends) else (first, b"")
    try:
        names = next(csv.reader([head.decode("utf-8-sig").rstrip("\r\n")], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise WrongFile(f"its first line names no columns: {error}") from None
    if not names:
        raise WrongFile("it is empty: the first line names the columns")
    for column in mapped.columns.values():
        _check_column(names, column)

    def parsed(lines: bytes, types: Mapping[str, Any]) -> Any:
        return pa_csv.read_csv(
            pa.BufferReader(lines),
            pa_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(lines) + 1),
            pa_csv.ParseOptions(newlines_in_values=True),
            csv_values(types, missing=True, columns=dict.fromkeys(mapped.columns.values())),
        )

    def wrong(line: str, error: Exception) -> WrongRow:
        values = next(csv.reader([line]), [])
        if len(values) != len(names):
            return WrongRow(None, f"has {len(values)} values, and the first line names {len(names)} columns", line)
        if not (found := _CSV_COLUMN.search(str(error))):
            return WrongRow(None, f"is wrong: {_line(error)}", line)
        column = names[int(found[1])]
        kinds = {source: mapped.types[of] for of, source in mapped.columns.items() if of != "time"}
        kind = "UTF-8" if "UTF8" in str(error) else kinds.get(column, "time")
        return WrongRow(column, f"is no {kind}", values[int(found[1])])

    read = _reading(mapped, parsed)
    return _numbered((_Lines(block, _row_ends, read, wrong) for block in chain([first], blocks)), bad), done


_CSV_COLUMN = re.compile(r"In CSV column #(\d+)")


def _numbered(parts: Iterable[Part], bad: BadRows) -> Iterator[tuple[int, Any]]:
    row = 0
    for part in parts:
        row = yield from right_rows(part, row, bad)


def _reading(mapped: Mapped, parsed: Callable[[bytes, Mapping[str, Any]], Any]) -> Callable[[bytes], Any]:
    """Return what reads lines by the types of their columns. Later times are read as the first ones.

    Ticks are integers: with one that is none, pyarrow makes floats of all.
    """
    types = {column: _TYPES[mapped.types[of]] for of, column in mapped.columns.items() if of != "time"}
    time = mapped.columns["time"]

    def read(lines: bytes) -> Any:
        if not lines.strip():
            return _nothing(mapped)
        table = parsed(lines, types)
        found = table.schema.field(time).type if time in table.schema.names else pa.null()
        if time not in types and not pa.types.is_null(found):
            types[time] = pa.int64() if pa.types.is_floating(found) else found
            if types[time] != found:
                return read(lines)
        return _selected(table, mapped)

    return read


def _ndjson(opened: ExitStack, name: str, mapped: Mapped, bad: BadRows) -> Opened:
    source, done = _source(opened, name)
    floats = [column for field, column in mapped.columns.items() if mapped.types.get(field) == "float64"]

    def parsed(lines: bytes, types: Mapping[str, Any]) -> Any:
        bare = io.BufferedReader(Unquoted(io.BytesIO(lines), floats, len(lines))).read()
        return pa_json.read_json(
            pa.BufferReader(bare),
            pa_json.ReadOptions(use_threads=False, block_size=len(bare) + 1),
            pa_json.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior="infer"),
        )

    def wrong(line: str, error: Exception) -> WrongRow:
        try:
            row = json.loads(line)
        except ValueError as found:
            return WrongRow(None, f"is no JSON: {found}", line)
        if not isinstance(row, dict):
            return WrongRow(None, "is no object", line)
        for of, column in mapped.columns.items():
            kind, value = mapped.types.get(of), row.get(column)
            if value is not None and kind is not None and not _JSON_IS[kind](value):
                return WrongRow(column, f"is no {kind}", value)
        return WrongRow(None, f"is wrong: {_line(error)}", line)

    read = _reading(mapped, parsed)
    return _numbered((_Lines(block, _line_ends, read, wrong) for block in _blocks(source, _line_ends)), bad), done


_JSON_IS: Mapping[str, Callable[[Any], bool]] = {
    "float64": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "int64": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "bool": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
}


def _parquet(opened: ExitStack, name: str, mapped: Mapped, bad: BadRows) -> Opened:
    if name == "-":
        raise WrongFile("a Parquet file is read from its end; save standard input to a file first")
    file = opened.enter_context(pa_parquet.ParquetFile(name))
    there = file.schema_arrow.names
    rows, read = max(file.metadata.num_rows, 1), 0

    def batches() -> Iterator[Any]:
        nonlocal read
        wanted = [column for column in there if column in mapped.columns.values()]
        for batch in file.iter_batches(CHUNK_ROWS, columns=wanted if len(wanted) else None):
            read += batch.num_rows
            yield _Rows(batch, mapped, _selected)

    return _numbered(batches(), bad), lambda: read / rows


def _arrow(opened: ExitStack, name: str, mapped: Mapped, bad: BadRows) -> Opened:
    source, done = _source(opened, name)
    if name != "-" and source.read(6) == b"ARROW1":
        file = opened.enter_context(pa.ipc.open_file(pa.memory_map(name)))
        count, read = max(file.num_record_batches, 1), 0

        def batches() -> Iterator[Any]:
            nonlocal read
            for read in range(1, count + 1):
                yield _Rows(file.get_batch(read - 1), mapped, _selected)

        return _numbered(batches() if file.num_record_batches else (), bad), lambda: read / count
    if name != "-":
        source.seek(0)
    reader = opened.enter_context(pa.ipc.open_stream(source))
    return _numbered((_Rows(batch, mapped, _selected) for batch in reader), bad), done


_OPENERS: Mapping[str, Callable[[ExitStack, str, Mapped, BadRows], Opened]] = {
    "csv": _csv,
    "ndjson": _ndjson,
    "parquet": _parquet,
    "arrow": _arrow,
}


def _line(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).strip("'\"").splitlines() or ["?"])[0][:300]
