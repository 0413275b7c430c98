"""Files of pairs as tables of a bounded number of rows, and files of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from sash_cli.load_files import WrongFile

__all__ = ["WrongFile", "batches", "written"]


def batches(file: str, kind: str, rows: int) -> Iterator[tuple[Any, float | None]]:
    """Yield tables of at most so many rows of a file, and how much of it they end: from 0 to 1, None if not known.

    Of a file without rows there is one table.

    Raises:
        WrongFile: the file is not of this format.
        OSError: it cannot be read.
    """
    try:
        with ExitStack() as opened:
            found, schema, done = _READERS[kind](opened, file, rows)
            count = 0
            for batch in found:
                for start in range(0, batch.num_rows, rows):
                    some = batch.slice(start, rows)
                    count += some.num_rows
                    yield pa.Table.from_batches([some]), done(count)
            if not count:
                # A CSV file without rows does not say of what type its columns are.
                types = [pa.string() if pa.types.is_null(field.type) else field.type for field in schema]
                yield pa.schema(list(zip(schema.names, types, strict=True))).empty_table(), 1.0
    except pa.ArrowException as error:
        raise WrongFile(str(error)) from None


_Opened = tuple[Iterator[Any], Any, Callable[[int], float | None]]


def _parquet(opened: ExitStack, file: str, rows: int) -> _Opened:
    reader = opened.enter_context(pa_parquet.ParquetFile(file))
    return reader.iter_batches(rows), reader.schema_arrow, lambda count: count / reader.metadata.num_rows


def _arrow(opened: ExitStack, file: str, rows: int) -> _Opened:
    source = opened.enter_context(pa.memory_map(file))
    try:
        reader = opened.enter_context(pa.ipc.open_file(source))
        found = (reader.get_batch(i) for i in range(reader.num_record_batches))
        return found, reader.schema, lambda _: None
    except pa.ArrowInvalid:
        source.seek(0)
        stream = opened.enter_context(pa.ipc.open_stream(source))
        return iter(stream), stream.schema, lambda _: source.tell() / source.size()


def _csv(opened: ExitStack, file: str, rows: int) -> _Opened:
    source = opened.enter_context(pa.OSFile(file))
    reader = opened.enter_context(pa_csv.open_csv(source))
    return iter(reader), reader.schema, lambda _: source.tell() / source.size()


_READERS: Mapping[str, Callable[[ExitStack, str, int], _Opened]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
}


def written(file: Path, kind: str, tables: Iterator[Any]) -> int:
    """Write tables into one file, and return how many rows they have.

    Raises:
        WrongFile: a later table has a column of another type.
        OSError: it cannot be written.
    """
    writers = {"parquet": pa_parquet.ParquetWriter, "csv": pa_csv.CSVWriter, "arrow": pa.ipc.new_file}
    rows, writer = 0, None
    with ExitStack() as opened:
        for table in tables:
            if writer is None:
                # A column in which no row has an answer yet is one of numbers.
                types = [pa.float64() if pa.types.is_null(field.type) else field.type for field in table.schema]
                schema = pa.schema(list(zip(table.column_names, types, strict=True)))
                writer = opened.enter_context(writers[kind](str(file), schema))
            try:
                writer.write_table(table.cast(schema))
            except pa.ArrowException as error:
                raise WrongFile(f"from row {rows + 1} on: {error}") from None
            rows += table.num_rows
    return rows
