"""Files of entries as chunks: tables of a window's columns, of a bounded size, the same each time they are read.

    CSV, NDJSON, Arrow, Parquet ──▶ record batches ──▶ chunks      at most CHUNK_ROWS rows and CHUNK_BYTES bytes each

Where the chunks are cut depends on the file and the window only. So a chunk has the same number each time.

A history is loaded key by key (`by_key`): each key's rows then come into the window as whole blocks. In the order of a
file of many keys, each chunk has a few rows of each key. Every key's last block would be read, merged and stored again
with each chunk: 10 M rows of 2,000 keys came in at 340,000 rows a second of processor time, and at 4.9 M key by key.
"""

from __future__ import annotations

import io
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pa_parquet

from sash_wire.file_formats import Unquoted, csv_values
from sash_wire.rows import instants

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "FORMATS", "Chunk", "Mapped", "WrongFile", "by_key", "chunks", "format_of"]

CHUNK_ROWS = 131_072
CHUNK_BYTES = 8 * 2**20
"""A chunk is one message, which may have 16 MiB. It takes a little more there than in Arrow."""

_BUCKETS = 64
"""Files into which the keys of a file are divided, before the rows of each are put together."""
_SORTED_BYTES = 256 * 2**20
"""So many bytes of such a file are sorted at once."""

_BLOCK_BYTES = 4 * 2**20
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


class WrongFile(Exception):
    """A file is not what it should be; the message says why."""


@dataclass(frozen=True)
class Mapped:
    """Where the columns of a window come from.

    Args:
        types: the type of each column of the window: ``key`` or the parts of keys, and the fields. ``time`` has none.
        columns: for ``time`` and each of them, the name of the column in the file.
        nullable: the fields that may be null.
        time_unit: what the time counts since 1970, or texts in it are; None: ticks of the window, or instants.
    """

    types: Mapping[str, str]
    columns: Mapping[str, str]
    nullable: Collection[str] = ()
    time_unit: str | None = None


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


def chunks(name: str, kind: str, mapped: Mapped, skip_missing: bool) -> Iterator[Chunk]:
    """Yield the chunks of a file.

    Args:
        name: the path; ``-`` is standard input.
        kind: one of the values of `FORMATS`.
        skip_missing: whether to leave out rows in which a column has no value.

    Raises:
        WrongFile: the file is not of this format, lacks a column, or has a value that does not fit.
        OSError: it cannot be read.
    """
    first_row = 1
    with ExitStack() as opened:
        try:
            batches, done = _OPENERS[kind](opened, name, mapped)
            for table in _cut(_selected(batch, mapped) for batch in batches):
                whole = _without_missing(table, mapped) if skip_missing else table
                if whole.num_rows == table.num_rows:
                    _check_missing(table, mapped, first_row)
                yield Chunk(whole, table.num_rows, done())
                first_row += table.num_rows
        except (pa.ArrowException, KeyError) as error:
            raise WrongFile(f"row {first_row} or one behind it: {_line(error)}") from None


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


def _selected(batch: Any, mapped: Mapped) -> Any:
    """The window's columns of a batch, in the window's types."""
    names = batch.schema.names
    columns = {}
    for name, source in mapped.columns.items():
        if names.count(source) != 1:
            several = "has several columns" if source in names else "has no column"
            raise WrongFile(f"the file {several} {source!r}; its columns are {', '.join(names)}")
        column = batch.column(names.index(source))
        if name == "time":
            columns[name] = column if mapped.time_unit is None else instants(column, mapped.time_unit)
        else:
            columns[name] = _cast(column, mapped.types[name], source)
    return pa.record_batch(columns)


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
    except pa.ArrowInvalid as error:
        raise WrongFile(f"column {name!r}: {_line(error)}") from None


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


def _without_missing(table: Any, mapped: Mapped) -> Any:
    """The rows that have a value in every column that may not be null."""
    for name in mapped.columns:
        if name not in mapped.nullable and table[name].null_count:
            table = table.filter(pc.is_valid(table[name]))
    return table


def _check_missing(table: Any, mapped: Mapped, first_row: int) -> None:
    for name, source in mapped.columns.items():
        if table[name].null_count and name not in mapped.nullable:
            row = first_row + pc.index(pc.is_null(table[name]), True).as_py()
            raise WrongFile(f"column {source!r} has no value in row {row}; --skip-missing leaves such rows out")


# ---------------------------------------------------------------- formats

Opened = tuple[Iterable[Any], Callable[[], float | None]]
"""The batches of a file, and how much of it has been read."""


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


def _csv(opened: ExitStack, name: str, mapped: Mapped) -> Opened:
    source, done = _source(opened, name)
    types = {column: _TYPES[mapped.types[name]] for name, column in mapped.columns.items() if name != "time"}
    reader = pa_csv.open_csv(
        source,
        pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        pa_csv.ParseOptions(newlines_in_values=True),
        csv_values(types, missing=True, columns=dict.fromkeys(mapped.columns.values())),
    )
    return opened.enter_context(reader), done


def _ndjson(opened: ExitStack, name: str, mapped: Mapped) -> Opened:
    source, done = _source(opened, name)
    floats = [column for field, column in mapped.columns.items() if mapped.types.get(field) == "float64"]
    schema = pa.schema(
        {column: _TYPES[mapped.types[name]] for name, column in mapped.columns.items() if name != "time"}
    )
    reader = pa_json.open_json(
        opened.enter_context(pa.PythonFile(io.BufferedReader(Unquoted(source, floats, _BLOCK_BYTES)), mode="r")),
        pa_json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
    )
    return reader, done


def _parquet(opened: ExitStack, name: str, mapped: Mapped) -> Opened:
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
            yield batch

    return batches(), lambda: read / rows


def _arrow(opened: ExitStack, name: str, mapped: Mapped) -> Opened:
    source, done = _source(opened, name)
    if name != "-" and source.read(6) == b"ARROW1":
        file = opened.enter_context(pa.ipc.open_file(pa.memory_map(name)))
        count, read = max(file.num_record_batches, 1), 0

        def batches() -> Iterator[Any]:
            nonlocal read
            for read in range(1, count + 1):
                yield file.get_batch(read - 1)

        return batches() if file.num_record_batches else (), lambda: read / count
    if name != "-":
        source.seek(0)
    return opened.enter_context(pa.ipc.open_stream(source)), done


_OPENERS: Mapping[str, Callable[[ExitStack, str, Mapped], Opened]] = {
    "csv": _csv,
    "ndjson": _ndjson,
    "parquet": _parquet,
    "arrow": _arrow,
}


def _line(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).strip("'\"").splitlines() or ["?"])[0][:300]
